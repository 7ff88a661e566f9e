"""Exact facts: what differs is named, decides where nothing but a regression explains it, and never makes a PASS."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from verdicts import check

from canary_mlflow.gates import CheckOutcome, Outcome, ReasonCode, Run, Version, judge
from canary_mlflow.gates.facts.check import differences, said
from canary_mlflow.gates.facts.exact import FACTS, TOKENS, covers
from canary_mlflow.gates.model.sides import ABSENT
from canary_mlflow.gates.model.verdict import Difference, verdict_from_dict, verdict_to_dict
from canary_mlflow.pages.session import side_by_side

FACTS_OF = {
    "parameters.trainable": "14080",
    "parameters.total": "14080",
    "training.precision": "fp32",
    "first.tokens": "56 in 4 sequences, 91ef",
    "data.tokens.input_ids": "936 in 80 rows, longest 22, cd57",
    "data.labels.label.input_ids": f"40 of 80 rows are not 0, {16 * 'a'}",
    "arguments.learning_rate": "0.003",
    "defaults.bf16": "false",
    "defaults.warmup_steps": "0",
}
SETTINGS = {"tier.name": "smoke", "train.learning_rate": "0.003", "seed": "0"}
WORK = {"algo": "sft", "max_steps": "100", "data_digest": "ab12"}


@pytest.fixture(scope="session")
def recorded(make_run: Any) -> Any:
    """A run of a seed that recorded facts; its first loss follows from the seed, `facts` replaces, None removes."""

    def made(name: str, seed: int, loss: float | None = None, **changes: Any) -> Run:
        facts = {**FACTS_OF, "first.tokens": f"{50 + seed} in 4 sequences, {seed}"} | changes.pop("facts", {})
        plain = {key: value for key, value in facts.items() if value is not None}
        own = {"facts": plain, "configuration": SETTINGS, "workload": WORK} | changes
        run = make_run(f"{name}{seed}", seed=seed, **own)
        held = dict(run.series)
        for name, first in (("loss", 5.0 + seed if loss is None else loss), ("grad_norm", 2.0)):
            values = run.series[name].values.copy()
            values[:3] = first, 3.0, 2.5
            held[name] = replace(run.series[name], values=values)
        return replace(run, series=held)

    return made


@pytest.fixture(scope="session")
def side(recorded: Any) -> Any:
    def made(name: str, seeds: Any = range(3), **changes: Any) -> Version:
        return Version(model="m", version=name, runs=tuple(recorded(name, seed, **changes) for seed in seeds))

    return made


def facts_in(verdict: Any) -> dict[str, Difference]:
    return {one.key: one for one in verdict.differences if one.group == FACTS}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"facts": {"parameters.trainable": "512"}}, "trainable parameters 14080 → 512"),
        ({"facts": {"data.tokens.input_ids": "1016 in 80 rows, longest 23, 0ddb"}}, "the data's input_ids 936 in 80"),
        (
            {"facts": {"data.labels.label.input_ids": f"40 of 80 rows are not 0, {16 * 'b'}"}},
            "the data's label.input_ids 40 of 80 rows are not 0, but others",
        ),
        ({"loss": 20.0}, "first loss 5 → 20 (4 times) in seeds 0, 1, 2"),
    ],
)
def test_what_only_a_regression_explains_blocks_and_is_named(smoke: Any, side: Any, changes: Any, said: str) -> None:
    verdict = judge(smoke, side("a"), side("b", **changes))
    assert verdict.outcome is Outcome.BLOCK
    assert verdict.reason.startswith(f"Facts: configuration, data and seeds are the same, but {said}")
    assert [one.decides for one in facts_in(verdict).values()] == [True]
    assert verdict_from_dict(verdict_to_dict(verdict)).differences == verdict.differences


def test_equal_facts_pass_their_check_and_decide_nothing(smoke: Any, side: Any) -> None:
    """Fresh seeds have other first losses and other first tokens, which is no difference."""
    for seeds in (range(3), range(3, 6)):
        verdict = judge(smoke, side("a"), side("b", seeds))
        assert (check(verdict, FACTS).outcome, facts_in(verdict)) == (CheckOutcome.PASS, {})
    slower = judge(smoke, side("a"), side("b", factor={"step_time": 3.0, "step_cost": 3.0}))
    assert (slower.outcome, check(slower, FACTS).outcome) == (Outcome.BLOCK, CheckOutcome.PASS)
    unclear = judge(smoke, side("a"), side("b", series_={"step_time": None}))
    assert (unclear.outcome, check(unclear, FACTS).outcome) == (Outcome.INCONCLUSIVE, CheckOutcome.PASS)


def test_rounding_is_shown_and_decides_nothing(smoke: Any, side: Any) -> None:
    near = judge(smoke, side("a", loss=5.0), side("b", loss=5.0 * (1 + 5e-6)))
    assert (facts_in(near)["first.loss.1"].rounding, check(near, FACTS).outcome) == (True, CheckOutcome.PASS)
    assert judge(smoke, side("a", loss=5.0), side("b", loss=5.0 * (1 + 5e-5))).outcome is Outcome.BLOCK
    half = {"facts": {"training.precision": "bf16"}}
    assert check(judge(smoke, side("a", **half), side("b", loss=5.02, **half)), FACTS).outcome is CheckOutcome.BLOCK
    low = judge(smoke, side("a", loss=5.0, **half), side("b", loss=5.02, **half))
    assert check(low, FACTS).outcome is CheckOutcome.PASS
    kept = judge(smoke, side("a", loss=0.6931), side("b", loss=0.6931471805599453))  # a trainer that logs four digits
    assert check(kept, FACTS).outcome is CheckOutcome.PASS


@pytest.mark.parametrize(
    "changes",
    [
        {"configuration": {**SETTINGS, "tier.name": "ours"}},
        {"workload": {**WORK, "data_digest": "cd34"}},
        {"workload": {"algo": "sft", "max_steps": "100"}, "loss": 9.0},
    ],
)
def test_a_change_on_purpose_and_what_is_not_known_block_nothing(smoke: Any, side: Any, changes: Any) -> None:
    loss = {"loss": 20.0, **changes}
    verdict = judge(smoke, side("a"), side("b", **loss))
    assert FACTS not in [one.metric for one in verdict.checks if one.outcome is CheckOutcome.BLOCK]
    assert not any(one.decides for one in verdict.differences)
    assert "first.loss.1" in facts_in(verdict)


def test_data_that_is_known_by_its_rows_alone_may_have_been_changed(smoke: Any, side: Any) -> None:
    known = {"workload": {"algo": "sft", "max_steps": "100", "train_data": "80 rows"}}
    unread = known | {"facts": {"data.tokens.input_ids": None}}
    assert check_or_none(judge(smoke, side("a", **unread), side("b", **unread, loss=9.0))) is None
    assert judge(smoke, side("a", **known), side("b", **known, loss=9.0)).outcome is Outcome.BLOCK  # by their tokens
    fewer = {**unread, "facts": {**unread["facts"], "parameters.trainable": "3"}}
    assert judge(smoke, side("a", **unread), side("b", **fewer)).outcome is Outcome.BLOCK


@pytest.mark.parametrize(
    ("silent", "what"),
    [
        ({"facts": dict.fromkeys(FACTS_OF) | {"first.tokens": None}}, "exact facts"),
        ({"configuration": {}}, "their configuration"),
        ({"facts": {"parameters.trainable": None}}, "how many parameters they train"),
    ],
)
def test_a_candidate_hides_no_fact_by_leaving_it_out(smoke: Any, side: Any, silent: Any, what: str) -> None:
    before, now = side("a"), side("b", **silent)
    some = replace(now, runs=(*now.runs[:1], *side("b").runs[1:]))
    for candidate in (now, some):
        verdict = judge(smoke, before, candidate)
        assert (verdict.outcome, verdict.reason_code) == (Outcome.INCONCLUSIVE, ReasonCode.MISSING_DATA)
        assert verdict.reason == f"The candidate's runs do not say {what}, the baseline's do."
    assert judge(smoke, now, before).outcome is Outcome.PASS  # a baseline from before there were facts


def test_an_evaluation_of_other_rows_or_of_unknown_ones_does_not_pass(smoke: Any, side: Any) -> None:
    before = side("a", facts={"evaluated.eval": "8 rows, 1f"})
    assert judge(smoke, before, side("b", facts={"evaluated.eval": "8 rows, 1f"})).outcome is Outcome.PASS
    silent = judge(smoke, before, side("b"))
    assert (silent.outcome, silent.reason_code) == (Outcome.INCONCLUSIVE, ReasonCode.MISSING_DATA)
    assert "do not say on which rows they were evaluated" in silent.reason
    assert judge(smoke, before, side("b", facts={"evaluated.eval": "streamed"})).outcome is Outcome.BLOCK


def check_or_none(verdict: Any) -> Any:
    return next((one for one in verdict.checks if one.metric == FACTS), None)


def test_a_default_that_a_library_flipped_is_no_change_on_purpose(smoke: Any, side: Any) -> None:
    def given(**more: str) -> dict[str, Any]:
        return {"configuration": {"learning_rate": "0.003", "bf16": "False", **more}}

    before = side("a", **given())
    assert judge(smoke, before, side("b", loss=9.0, **given(bf16="True"))).outcome is Outcome.BLOCK
    for own in ({"recipe": "after"}, {"label_smoothing_factor": "0.1"}):
        assert judge(smoke, before, side("b", loss=9.0, **given(bf16="True", **own))).outcome is not Outcome.BLOCK


FEWER = {"facts": {"parameters.trainable": "512"}}
OTHER_TOKENS = {"facts": {"data.tokens.input_ids": "1016 in 80 rows, longest 23, 0ddb"}}


@pytest.mark.parametrize(
    ("setting", "explained"),
    [
        ("adam_epsilon", []),
        ("train.learning_rate", []),
        ("model.learning_rate.sft", []),
        ("logging_steps", []),
        ("transformers_version", []),
        ("load_best_model_at_end", []),
        ("save_strategy", []),
        ("dataloader_num_workers", ["loss"]),  # the tokens are those of the prepared rows
        ("preprocessing_num_workers", ["tokens", "loss"]),
        ("train.max_length", ["tokens", "loss"]),
        ("per_device_eval_batch_size", []),
        ("fp16", ["loss"]),
        ("algo.beta", ["loss"]),
        ("lora_dropout", ["loss"]),
        ("recipe", ["tokens", "loss"]),
        ("lora-r", ["fewer", "tokens", "loss"]),
        ("modules_to_save", ["fewer", "tokens", "loss"]),
        ("adapter.r", ["fewer", "tokens", "loss"]),
        ("unfreeze_from", ["fewer", "tokens", "loss"]),
        ("model_init_kwargs", ["fewer", "tokens", "loss"]),
        ("fault.name", []),
    ],
)
def test_a_setting_excuses_only_what_it_may_explain(smoke: Any, side: Any, setting: str, explained: list[str]) -> None:
    """An optimizer's number freezes no layer, and comes after the first loss."""

    def told(value: str) -> dict[str, Any]:
        return {"configuration": {**SETTINGS, setting: value}}

    differing = {"fewer": FEWER, "tokens": OTHER_TOKENS, "loss": {"loss": 20.0}}
    found = {
        what: judge(smoke, side("a", **told("1")), side("b", **told("2"), **own)) for what, own in differing.items()
    }
    assert [what for what, verdict in found.items() if verdict.outcome is not Outcome.BLOCK] == explained
    for verdict in found.values():
        if verdict.outcome is Outcome.BLOCK:
            unexplained = "Facts: data and seeds are the same, and no setting that was changed can explain "
            assert verdict.reason.startswith(unexplained)


def test_of_several_changes_one_that_explains_is_enough(smoke: Any, side: Any) -> None:
    now = {**SETTINGS, "train.learning_rate": "0.01", "adapter.r": "8"}
    before = side("a", configuration={**SETTINGS, "adapter.r": "16"})
    assert judge(smoke, before, side("b", configuration=now, **FEWER)).outcome is Outcome.PASS


def test_a_setting_that_only_one_version_of_the_canaries_has_excuses_nothing(smoke: Any, side: Any) -> None:
    later = {**SETTINGS, "model.chat_template": "None", "memory.weights": "auto"}
    verdict = judge(smoke, side("a"), side("b", configuration=later, **FEWER))
    assert "trainable parameters 14080 → 512" in check(verdict, FACTS).reason
    own = {"layers": "4"}  # of a script, whose settings come and go with what somebody passes
    assert (
        judge(smoke, side("a", configuration={"seed": "0"}), side("b", configuration=own, **FEWER)).outcome
        is Outcome.PASS
    )


def test_fewer_is_a_regression_and_more_is_shown(smoke: Any, side: Any) -> None:
    more = judge(smoke, side("a"), side("b", facts={"parameters.trainable": "20000"}))
    assert (check_or_none(more), facts_in(more)["parameters.trainable"].decides) == (None, False)


@pytest.mark.parametrize("seeds", [(7, 8, 9), (0, 0, 1, 2)], ids=["other seeds", "a seed twice"])
def test_fewer_in_every_run_is_a_regression_whatever_the_seeds(
    smoke: Any, side: Any, recorded: Any, seeds: tuple[int, ...]
) -> None:
    """A candidate whose runs train another number each, all of them fewer, does not hide it by its seeds."""

    def with_counts(first: int) -> Version:
        some = [
            recorded(f"b{at}-", seed, facts={"parameters.trainable": str(first + 10 * at)})
            for at, seed in enumerate(seeds)
        ]
        return Version(model="m", version="b", runs=tuple(some))

    fewer = judge(smoke, side("a"), with_counts(9_000))
    assert (fewer.outcome, facts_in(fewer)["parameters.trainable"].decides) == (Outcome.BLOCK, True)
    assert judge(smoke, side("a"), with_counts(14_080)).outcome is not Outcome.BLOCK


@pytest.mark.parametrize(("seeds", "outcome"), [((0, 1, 2), Outcome.BLOCK), ((7, 8, 9), Outcome.PASS)])
def test_labels_follow_from_the_seed_and_count_beside_it_alone(
    smoke: Any, side: Any, recorded: Any, seeds: tuple[int, ...], outcome: Outcome
) -> None:
    """100 steps of shuffled rows have 14061, 14059 and 14062 labels; of other rows, all of them may be fewer."""

    def with_labels(name: str, counts: Mapping[int, int]) -> Version:
        runs = [
            recorded(f"{name}{seed}-", seed, facts={"labels.trained": str(count)}) for seed, count in counts.items()
        ]
        return Version(model="m", version=name, runs=tuple(runs))

    before = with_labels("a", {0: 14_061, 1: 14_059, 2: 14_062})
    now = with_labels("b", dict(zip(seeds, (14_052, 13_987, 13_991), strict=True)))
    assert judge(smoke, before, now).outcome is outcome


def test_first_steps_that_are_not_compared_are_said(smoke: Any, side: Any, recorded: Any) -> None:
    def told(baseline: Version, candidate: Version) -> str:
        return " ".join(note for note in judge(smoke, baseline, candidate).notes if "not compared" in note)

    assert told(side("a"), side("b")) == ""
    assert told(side("a"), side("b", range(3, 6))).endswith("are not compared: no seed in common")
    twice = replace(side("b"), runs=(*side("b").runs, recorded("again", 0, loss=5.5)))
    assert told(side("a"), twice) == "not compared, as runs of one seed and side differ: first.loss.1"
    fresh = replace(side("a"), fresh=(recorded("fresh", 0, loss=7.0), recorded("fresh", 1, loss=8.0)))
    assert told(fresh, side("b")) == ""  # stored runs of these seeds do not count


def test_rows_that_are_drawn_by_another_data_seed_have_other_first_steps(smoke: Any, side: Any) -> None:
    shuffled = {"configuration": {**SETTINGS, "data_seed": "7"}, "loss": 9.0}
    verdict = judge(smoke, side("a"), side("b", **shuffled))
    assert (verdict.outcome, facts_in(verdict)) == (Outcome.PASS, {})
    assert "exact facts that follow from a seed are not compared in 3 seeds: another data_seed" in verdict.notes
    assert judge(smoke, side("a", **{**shuffled, "loss": None}), side("b", **shuffled)).outcome is Outcome.BLOCK
    (alike,) = side("b", [7], **shuffled).runs  # its seed, which is also what no data_seed means
    assert facts_in(judge(smoke, side("a", [7]), Version(model="m", version="b", runs=(alike,))))
    fewer = side("b", **shuffled, facts={"parameters.trainable": "1"})
    assert judge(smoke, side("a"), fewer).outcome is Outcome.BLOCK


def test_rows_in_another_order_excuse_what_each_step_is_about_and_nothing_else(smoke: Any, side: Any) -> None:
    before = side("a", facts={"data.order.input_ids": "1f"})
    now = {"facts": {"data.order.input_ids": "2e", "first.tokens": "99 in 4 sequences, 9"}, "loss": 9.0}
    verdict = judge(smoke, before, side("b", **now))
    assert verdict.outcome is Outcome.PASS
    assert verdict.differences[0].key == "data.order.input_ids"
    assert (
        judge(smoke, before, side("b", **{**now, "facts": {**now["facts"], "data.order.input_ids": "1f"}})).outcome
        is Outcome.BLOCK
    )  # type: ignore[dict-item]
    for fact, held, found in (
        ("data.tokens.input_ids", FACTS_OF["data.tokens.input_ids"], "900 in 80 rows, longest 22, cd58"),
        ("labels.evaluated", "37", "25"),
        ("evaluated.eval", "4 rows, ab", "3 rows, cd"),
    ):
        known = side("a", facts={"data.order.input_ids": "1f", fact: held})
        assert (
            judge(smoke, known, side("b", facts={"data.order.input_ids": "2e", fact: found})).outcome is Outcome.BLOCK
        )


def test_another_order_excuses_no_seed_whose_order_or_first_tokens_are_the_same(smoke: Any, side: Any) -> None:
    """Who moves the rows of one seed, or the last two of all, hides no loss four times as large and no other labels."""
    moved = {"data.order.input_ids": "2e", "first.tokens": "99 in 4 sequences, 9"}
    before = side("a", facts={"data.order.input_ids": "1f"})
    as_before = side("b", [1, 2], loss=20.0, facts={"data.order.input_ids": "1f"})
    one = replace(as_before, runs=(*side("b", [0], loss=20.0, facts=moved).runs, *as_before.runs))
    assert judge(smoke, before, one).outcome is Outcome.BLOCK
    last = {"data.order.input_ids": "2e"}
    assert judge(smoke, before, side("b", loss=20.0, facts=last)).outcome is Outcome.BLOCK
    masked = side("a", facts={"data.order.input_ids": "1f", "first.labels": "30, 1"})
    assert judge(smoke, masked, side("b", facts={**last, "first.labels": "56, 2"})).outcome is Outcome.BLOCK
    unseen = [
        side(name, facts={"data.order.input_ids": at, TOKENS: None}, loss=loss)
        for name, at, loss in (("a", "1f", 5.0), ("b", "2e", 20.0))
    ]
    assert judge(smoke, unseen[0], unseen[1]).outcome is Outcome.PASS
    counted = {"data.order.input_ids": "2e", "labels.which": "8"}  # of an epoch that was not whole
    known = side("a", facts={"data.order.input_ids": "1f", "labels.which": "7"})
    assert judge(smoke, known, side("b", facts=counted)).outcome is Outcome.PASS


def test_one_token_in_a_list_is_the_token(smoke: Any, side: Any) -> None:
    ends = [side(name, facts={"generation.eos_token_id": said}) for name, said in (("a", "[1]"), ("b", "1"))]
    assert facts_in(judge(smoke, *ends)) == {}
    assert facts_in(judge(smoke, ends[0], side("c", facts={"generation.eos_token_id": "2"})))
    assert facts_in(judge(smoke, ends[0], side("d", facts={"generation.eos_token_id": "[1, 2]"})))


def test_texts_that_give_the_same_tokens_are_the_same_work(smoke: Any, side: Any) -> None:
    work = {"algo": "sft", "max_steps": "100", "train_data": "80 rows, 1f"}
    before = side("a", workload=work)
    for texts in ("80 rows", "80 rows, 2e"):  # tokens prepared before, another column
        other = {"workload": {**work, "train_data": texts}}
        assert judge(smoke, before, side("b", **other)).outcome is Outcome.PASS
        assert judge(smoke, before, side("b", **other, loss=9.0)).outcome is Outcome.BLOCK
        for tokens in (None, "936 in 80 rows, longest 22, cd58"):
            unlike = judge(smoke, before, side("b", **other, facts={"data.tokens.input_ids": tokens}))
            assert unlike.reason_code is ReasonCode.NOT_COMPARABLE
        asked = {"workload": {**work, "eval_data": "1 rows, 3d"}}
        assert (
            judge(smoke, side("a", **asked), side("b", workload={**work, "eval_data": texts})).outcome
            is not Outcome.PASS
        )


def test_labels_are_those_of_tokens_and_say_nothing_where_these_differ(smoke: Any, side: Any) -> None:
    """As in KTO with TRL 1.12 and 1.16, which end a prompt elsewhere: its labels are the same."""
    tokens = {"data.tokens.input_ids": "1016 in 80 rows, longest 23, 0ddb"}
    labels = {"data.labels.label.input_ids": f"40 of 80 rows are not 0, {16 * 'b'}"}
    found = facts_in(judge(smoke, side("a"), side("b", facts=tokens | labels)))
    assert {key for key, one in found.items() if one.decides} == tokens.keys()
    assert [key for key, one in facts_in(judge(smoke, side("a"), side("b", facts=labels))).items() if one.decides]


def test_a_run_that_does_not_repeat_itself_tells_nothing(smoke: Any, side: Any, recorded: Any) -> None:
    """On some hardware two runs of one seed have other first losses."""
    before = side("a")
    twice = replace(before, runs=(*before.runs, recorded("again", 0, loss=5.5)))
    assert "first.loss.1" not in facts_in(judge(smoke, twice, side("b", loss=9.0)))


def test_a_fresh_run_of_the_baseline_stands_for_its_seed(asks_fresh: Any, side: Any, recorded: Any) -> None:
    """Its code beside the candidate's, in seeds that the stored runs lack, and in the environment of today."""
    fresh = tuple(recorded("fresh", seed, loss=7.0 + seed) for seed in (0, 7))
    before = replace(side("a"), fresh=fresh)
    assert facts_in(judge(asks_fresh, before, side("b", [0, 7], loss=None)))["first.loss.1"].seeds == (0, 7)
    alike = Version(model="m", version="b", runs=tuple(recorded("b", seed, loss=7.0 + seed) for seed in (0, 7)))
    assert not facts_in(judge(asks_fresh, before, alike))


@pytest.mark.parametrize(
    ("precision", "backend", "blocks"), [("bf16", "cpu", 0), ("fp32", "cuda", 0), ("fp32", "cpu", 1)]
)
def test_sampled_answers_decide_where_no_rounding_draws_others(
    smoke: Any, side: Any, precision: str, backend: str, blocks: int
) -> None:
    work = {**WORK, "algo": "ppo"}
    how = {"facts": {"training.precision": precision}, "workload": work, "hardware": {"backend": backend}}
    verdict = judge(smoke, side("a", **how), side("b", loss=9.0, **how))
    assert (check_or_none(verdict) is not None, "first.loss.1" in facts_in(verdict)) == (bool(blocks), True)
    near = judge(smoke, side("a", loss=2e-9, **how), side("b", loss=-3e-9, **how))  # a sum of both signs
    assert facts_in(near)["first.loss.1"].rounding


def test_a_leak_is_named_first_where_the_data_are_others_too(smoke: Any, side: Any) -> None:
    other = {"facts": {"data.held_out_trained": "64"}, "workload": {**WORK, "data_digest": "cd34"}}
    leaked = judge(smoke, side("a", facts={"data.held_out_trained": "0"}), side("b", **other, loss=9.0))
    assert leaked.outcome is Outcome.INCONCLUSIVE
    assert said(next(iter(facts_in(leaked).values()))) == "held-out rows that are trained on 0 → 64"


def paid(version: Version, reward: float) -> Version:
    """The version with answers that earn another reward at each step."""

    def earning(run: Run) -> Run:
        loss = run.series["loss"]
        return replace(run, series={**run.series, "reward_mean": replace(loss, values=loss.values * 0 + reward)})

    return replace(version, runs=tuple(map(earning, version.runs)))


def test_held_out_rows_that_come_to_be_trained_on_never_pass_and_near_copies_warn(smoke: Any, side: Any) -> None:
    def told(name: str, trained: str, near: str) -> Version:
        made: Version = side(name, facts={"data.held_out_trained": trained, "data.held_out_near": near})
        return made

    leaked = judge(smoke, told("a", "0", "0"), told("b", "24", "24"))
    assert (leaked.outcome, leaked.reason_code) == (Outcome.INCONCLUSIVE, ReasonCode.FACTS_DIFFER)
    assert "eld-out rows that are trained on 0 → 24, so that an evaluation is none of" in leaked.reason
    accepted = judge(smoke, told("a", "0", "0"), told("b", "24", "24"), accepted=leaked.differences)
    assert accepted.outcome is Outcome.PASS
    near = judge(smoke, told("a", "0", "2"), told("b", "0", "24"))
    assert (near.outcome, check(near, FACTS).outcome) == (Outcome.PASS, CheckOutcome.WARN)
    assert "held-out rows of which half is trained on 2 → 24" in check(near, FACTS).reason
    for before, now in ((told("a", "24", "24"), told("b", "0", "0")), (side("a"), told("b", "24", "24"))):
        assert judge(smoke, before, now).outcome is Outcome.PASS


@pytest.mark.parametrize("tokenizer", [None, "d2"])
def test_data_without_texts_is_known_by_its_ids_unless_another_tokenizer_made_them(
    smoke: Any, side: Any, tokenizer: str | None
) -> None:
    work = {"workload": {"algo": "sft", "max_steps": "100", "train_data": "80 rows"}}
    other = {"data.tokens.input_ids": "940 in 80 rows, longest 22, 1f", "tokenizer.digest": tokenizer or "d1"}
    before = side("a", **work, facts={"tokenizer.digest": "d1"})
    verdict = judge(smoke, before, side("b", **work, facts=other))
    assert (verdict.reason_code is ReasonCode.NOT_COMPARABLE) == (tokenizer is None)
    assert ("train_data" in {one.key for one in verdict.differences}) == (tokenizer is None)
    labels = {"data.tokens.labels": "900 in 80 rows, longest 22, 1f", "tokenizer.digest": "d1"}
    masked = {**labels, "data.tokens.labels": "90 in 80 rows, longest 22, 2f"}
    assert judge(smoke, side("a", **work, facts=labels), side("b", **work, facts=masked)).outcome is not Outcome.PASS


def test_the_first_answers_earn_what_they_did_and_later_ones_may_be_others(smoke: Any, side: Any) -> None:
    """A reward on another scale, in a training that goes on as before: what it earns is no better."""
    how = {"workload": {**WORK, "algo": "grpo"}, "hardware": {"backend": "cpu"}}
    before = paid(side("a", **how, facts={"labels.trained": "900"}), -29.0)
    scaled = judge(smoke, before, paid(side("b", **how, facts={"labels.trained": "900"}), -2.9))
    assert "reward of step 1 -29 → -2.9 (0.1 times)" in check(scaled, FACTS).reason
    other = judge(smoke, before, paid(side("b", **how, facts={"labels.trained": "870"}), -29.0))
    assert (other.outcome, check(other, FACTS).outcome) == (Outcome.PASS, CheckOutcome.PASS), "its own answers"


def test_a_policy_can_switch_it_off(smoke_with: Any, side: Any) -> None:
    verdict = judge(smoke_with(hard={"facts": False}), side("a"), side("b", loss=9.0))
    assert (check_or_none(verdict), verdict.outcome) == (None, Outcome.PASS)


def test_what_was_accepted_blocks_no_more_and_nothing_else_is_accepted(smoke: Any, side: Any) -> None:
    before = side("a")
    known = [one for one in judge(smoke, before, side("b", loss=9.0)).differences if one.decides]
    for seeds in (range(3), range(2), range(5)):  # others besides
        again = judge(smoke, replace(before, runs=side("a", range(5)).runs), side("c", seeds, loss=9.0), accepted=known)
        assert check(again, FACTS).outcome is CheckOutcome.PASS
        assert check(again, FACTS).reason.startswith("accepted: first loss")
    assert judge(smoke, before, side("b", loss=8.0), accepted=known).outcome is Outcome.BLOCK
    fewer = side("b", loss=9.0, facts={"parameters.trainable": "3"})
    assert "trainable parameters" in judge(smoke, before, fewer, accepted=known).reason


def test_other_seeds_alone_are_not_what_was_accepted() -> None:
    one = Difference(key="first.loss.1", baseline="1.0 | 2.0", candidate="4.0 | 8.0", group=FACTS, seeds=(0, 1))
    assert covers(one, replace(one, baseline="2.0", candidate="8.0", seeds=(1,)))
    assert not covers(one, replace(one, seeds=(2, 3)))
    assert not covers(one, replace(one, key="first.tokens"))


def test_a_default_that_flips_is_seen_and_one_that_is_new_is_not(smoke: Any, side: Any) -> None:
    before, now = side("a"), side("b", facts={"defaults.bf16": "true", "defaults.new": "1"})
    found = facts_in(judge(smoke, before, now))
    assert {(key, one.baseline, one.candidate) for key, one in found.items()} == {("arguments.bf16", "false", "true")}
    given = side("c", facts={"defaults.bf16": None, "arguments.bf16": "true"})
    assert facts_in(judge(smoke, before, given))["arguments.bf16"].baseline == "false"


def test_an_argument_that_a_trainer_of_a_new_release_sets_itself_is_no_changed_setting(smoke: Any, side: Any) -> None:
    """As activation_checkpointing is by Transformers 5.23; one that a release has dropped is shown."""
    old, new = side("a"), side("b", facts={"arguments.activation_checkpointing": "true"})
    assert not facts_in(judge(smoke, old, new))
    assert facts_in(judge(smoke, new, old))["arguments.activation_checkpointing"].candidate == ABSENT
    unknown = side("c", facts={"defaults.bf16": None, "defaults.warmup_steps": None})
    assert "arguments.activation_checkpointing" in facts_in(judge(smoke, unknown, new))
    # Nor does it excuse what differs, if there was an upgrade; without one, somebody has given it.
    old = side("d", configuration={"learning_rate": "0.003"}, environment={"transformers": "5.22.2"})
    for version, outcome in (("5.23.0", Outcome.BLOCK), ("5.22.2", Outcome.PASS)):
        given = {"learning_rate": "0.003", "activation_checkpointing": "True"}
        now = side("e", loss=9.0, configuration=given, environment={"transformers": version},
                   facts={"arguments.activation_checkpointing": "true"})  # fmt: skip
        assert judge(smoke, old, now).outcome is outcome


def test_what_a_release_only_calls_otherwise_is_one_setting(smoke: Any, side: Any) -> None:
    def of(name: str, dtype: str, precision: str = "bfloat16", **model: str) -> Version:
        facts = {f"model.{dtype}": precision, **{f"tokenizer.{key}": value for key, value in model.items()}}
        given = {
            **SETTINGS,
            f"model_init_kwargs.{dtype}": precision,
            **{f"{key}_token_id": model[key] for key in model},
        }
        return side(name, configuration=given, facts=facts)

    before = of("a", "torch_dtype", pad="0")
    assert not judge(smoke, before, of("b", "dtype", pad="0")).differences
    found = judge(smoke, before, of("c", "dtype", "float32", pad="1")).differences
    assert [(one.key, one.baseline, one.candidate) for one in found] == [
        ("tokenizer.pad", "0", "1"),
        ("model.dtype", "bfloat16", "float32"),
        ("pad_token_id", "0", "1"),  # what a text ends with comes before other settings
        ("model_init_kwargs.dtype", "bfloat16", "float32"),
    ]


def test_two_sides_stand_beside_each_other_with_what_nobody_set_marked(side: Any) -> None:
    before = side("a", configuration={**SETTINGS, "bf16": "false"})
    now = side(
        "b",
        facts={"defaults.bf16": None, "arguments.bf16": "true"},
        configuration={
            "tier.name": "smoke",
            "train.learning_rate": "0.02",
            "seed": "9",
            "bf16": "true",
            "fault.settings_of.grpo.algo.beta": "1e-06",
        },
    )
    groups = {group.name: group for group in side_by_side(before.runs, now.runs)}
    assert list(groups) == [FACTS, "configuration", "data", "hardware", "workload"]
    settings = {one.key: (one.baseline, one.candidate, one.unset) for one in groups["configuration"].differing}
    assert settings == {
        "train.learning_rate": ("0.003", "0.02", (False, False)),
        "bf16": ("false", "true", (True, False)),
    }
    assert groups[FACTS].differing == ()  # the setting says it
    equal = {one.key: (one.baseline, one.unset) for one in groups[FACTS].equal}
    assert equal["arguments.warmup_steps"] == ("0", (True, True))
    assert equal["arguments.learning_rate"] == ("0.003", (False, False))
    assert not any(key.startswith(("first.", "defaults.")) for key in equal)
    assert {one.key for one in groups["workload"].equal} == {"algo", "max_steps"}
    shown = {one.key for group in groups.values() for one in (*group.differing, *group.equal)}
    assert shown >= {one.key for one in differences(before.runs, now.runs)[0] if one.key != "arguments.bf16"}
    assert side_by_side(before.runs, ()) == ()


def test_one_change_that_a_script_recorded_under_four_names_is_listed_once(side: Any) -> None:
    def of(name: str, rate: str, steps: str, betas: str = "0.9") -> Version:
        groups = f'[{{"betas": [{betas}, 0.999], "initial_lr": {rate}, "tensors": 4}}]'
        given = {"learning_rate": rate, "lr": rate, "warmup_steps": steps, "eval_warmup_steps": steps}
        return side(name, configuration=given, facts={"arguments.learning_rate": rate, "training.groups": groups})

    def listed(before: Version, now: Version) -> list[str]:
        return [one.key for group in side_by_side(before.runs, now.runs) for one in group.differing]

    before = of("a", "0.01", "1")
    assert listed(before, of("b", "0.04", "1")) == ["learning_rate"]
    assert [one.key for one in differences(before.runs, of("b", "0.04", "1").runs)[0] if one.group != FACTS] == [
        "learning_rate"
    ]
    assert listed(before, of("c", "0.01", "2")) == ["eval_warmup_steps", "warmup_steps"]  # two changes
    assert listed(before, of("d", "0.04", "1", "0.8")) == ["training.groups", "learning_rate"]  # more than the rate
    two = [
        side(name, configuration={"dropout": rate, "attention_dropout": rate})
        for name, rate in (("e", "0"), ("f", "0.1"))
    ]
    assert listed(*two) == ["attention_dropout", "dropout"]
