"""Exact facts of a user's own script: recorded, shown, judged, and accepted by hand."""

from __future__ import annotations

import json
import sqlite3
import weakref
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import tiny_trainers
import torch
from click.testing import CliRunner, Result
from datasets import Dataset
from mlflow import MlflowClient
from tiny_trainers import PAIRS, dpo, sft

from canary_mlflow import CanaryCallback, session
from canary_mlflow.cli import canary
from canary_mlflow.tracking.describing.data_facts import held_out_trained, labels_in, near_copies, tokens_in
from canary_mlflow.tracking.describing.fact_tags import LONGEST_TAG, facts_in, to_tags
from canary_mlflow.tracking.probes.facts import data, groups_of
from canary_mlflow.tracking.reading.histories import session_runs

pytestmark = pytest.mark.usefixtures("unpublished")

POLICY = """
base: smoke
min_steps: 1
warmup_steps: 0
hard: {learned: false, divergence: false, watch: false}
"""  # three steps say nothing else
Change = Callable[[Any], None]


def said(*words: str, code: int = 0) -> Result:
    """What a command answers, and that it ends with this code."""
    result = CliRunner().invoke(canary, list(words), catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


def unchanged(trainer: Any) -> None:
    pass


def trained(tiny: str, change: Change = unchanged, then: Change = unchanged, **own: Any) -> str:
    """A session of two seeds, three steps each; `change` is in the script's code, before the training, `then` after
    it, `own` in its arguments."""
    with session("mine") as opened:
        for seed in range(2):
            trainer = sft(tiny, Path.cwd(), [CanaryCallback(watch=None)], seed=seed, max_steps=3, **own)
            change(trainer)
            trainer.train()
            then(trainer)
    return opened.session_id


def freeze(trainer: Any) -> None:
    trainer.model.get_input_embeddings().requires_grad_(False)


def drop(trainer: Any) -> None:
    for module in trainer.model.modules():
        if type(module).__name__ == "Dropout":
            module.p = 0.5


def mask(trainer: Any) -> None:
    """Learn less of each row, from the second batch on, and ask an evaluation for less."""
    collate, batches = trainer.data_collator, count()

    def masked(rows: Any) -> Any:
        batch = collate(rows)
        batch["labels"][:, : 3 * (next(batches) > 0)] = -100
        return batch

    trainer.data_collator = masked


@pytest.fixture(scope="module")
def told(tiny: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A champion, the same again, and two scripts that were changed where no configuration tells of it."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID", "MLFLOW_TRACKING_URI"):
            patch.delenv(name, raising=False)
        patch.chdir(tmp_path_factory.mktemp("facts"))
        Path("mine.yaml").write_text(POLICY)
        made = {"first": trained(tiny), "again": trained(tiny), "frozen": trained(tiny, freeze)}
        made["dropout"] = trained(tiny, drop)
        made["meant"] = trained(tiny, learning_rate=0.01, max_grad_norm=0.1)
        made["slipped"] = trained(tiny, freeze, adam_epsilon=1.0001e-8)
        yield made


def test_a_script_records_what_it_exactly_was(told: Any) -> None:
    (run, other) = session_runs(MlflowClient(), told["first"])
    assert run.facts["parameters.trainable"] == run.facts["parameters.total"] == "14080"
    assert run.facts["data.tokens.input_ids"].startswith("936 in 80 rows, longest 22, ")
    assert run.facts["training.optimizer"] == "AdamW"
    assert run.facts["training.scheduler"].endswith("get_linear_schedule_with_warmup_lr_lambda")
    assert run.facts["arguments.learning_rate"] == "0.003"
    assert (run.facts["defaults.warmup_steps"], run.facts["defaults.max_grad_norm"]) == ("0", "1.0")
    assert {"model.attention", "tokenizer.digest", "tokenizer.chat_template", "first.labels"} <= run.facts.keys()
    alike = {key for key in run.facts if run.facts[key] == other.facts[key]}
    of_a_seed = {key for key in run.facts if key.startswith("layer_drift.")} | {"first.tokens", "first.labels"}
    of_a_seed |= {"labels.trained", "labels.which"}
    assert run.facts.keys() - alike == of_a_seed


def test_diff_says_what_is_other_and_how_it_ends_by(told: Any) -> None:
    assert "Equal: facts, configuration," in said("diff", told["first"], told["again"]).stdout
    shown = said("diff", told["first"], told["frozen"], code=1).stdout
    assert "    trainable parameters 14080 → " in shown
    found = json.loads(said("diff", told["first"], told["dropout"], "--json", code=1).stdout)
    keys = [one["key"] for one in found["differences"] if one["group"] == "facts"]
    assert (keys[0], "model.dropout" in keys, found["obstacle"], found["exit_code"]) == ("first.loss.1", True, "", 1)
    meant = said("diff", told["first"], told["meant"], code=1).stdout
    assert "May come from: learning_rate 0.003 → 0.01" in meant
    assert "first.loss.1" not in meant
    assert "expected the id of a run there" in said("diff", told["first"], "0" * 32, code=2).stderr


def test_facts_of_other_work_and_facts_that_nobody_recorded_do_not_compare(told: Any, tiny: str) -> None:
    longer = trained(tiny, per_device_train_batch_size=2)
    assert (
        "Not comparable: the workload is not the same (batch_size)"
        in said("diff", told["first"], longer, code=3).stdout
    )
    for run in session_runs(MlflowClient(), told["again"]):
        for key in [
            key
            for key in MlflowClient().get_run(run.run_id).data.tags
            if key.startswith(("canary.more.found", "canary.more.late"))
        ]:
            MlflowClient().delete_tag(run.run_id, key)
    shown = said("diff", told["first"], told["again"], code=3).stdout
    assert "Not comparable: the exact facts of both sides are not recorded." in shown
    assert (
        "Missing on one or both sides: facts"
        in said("compare", told["first"], told["again"], "--policy", "mine.yaml").stdout
    )


def version(recorded: Any, trainable: str | None) -> str:
    """A registered version whose runs say how many parameters train (None: they do not), and what they were told."""
    facts = {"total": "14080", **({} if trainable is None else {"trainable": trainable})}
    session_id = recorded.session(tags={"canary.facts.parameters": json.dumps(facts)})
    for run_id in recorded.children(session_id):
        recorded.client.log_param(run_id, "cfg/train.learning_rate", "0.002")
    return str(recorded.register(session_id))


def test_a_fact_blocks_until_somebody_accepts_it(recorded: Any, tmp_path: Path) -> None:
    store, model = ("--tracking-uri", recorded.uri), recorded.model
    first, second, third = (version(recorded, trainable) for trainable in ("14080", "512", "256"))
    said("gate", model, first, *store)
    blocked = " ".join(said("gate", model, second, *store, code=1).stdout.split())
    but = "Facts: configuration, data and seeds are the same, but trainable parameters 14080 → 512."
    assert but in blocked
    assert "Differs exactly: trainable parameters 14080 → 512; " in blocked
    assert f'canary accept-facts {model} {second} --reason "…", then gate it again' in blocked
    found = json.loads(said("gate", model, second, "--json", *store, code=1).stdout)
    assert found["exact"].startswith("Differs exactly: trainable parameters 14080 → 512; ")
    accept = ("accept-facts", model, second, *store, "--reason")
    assert "found an empty text" in said(*accept, " ", code=2).stderr
    done = json.loads(said(*accept, "frozen on purpose", "--json").stdout)
    assert (done["champion"], [one["key"] for one in done["facts"]]) == (first, ["parameters.trainable"])
    assert recorded.champion() == first
    tags = recorded.tags(second)
    assert (tags["canary.facts_accepted"], tags["canary.facts_accepted_by"]) == ("frozen on purpose", done["who"])
    assert "facts     facts accepted" in said("audit", "log", model, *store).stdout
    verified = CliRunner().invoke(canary, ["audit", "verify", *store])
    assert f"'{model}'" not in verified.output  # the store may hold what other tests have spoilt
    uri = forged(recorded.uri, tmp_path / "mlflow.db")  # an acceptance that nobody trusted has signed is none
    assert but in " ".join(said("gate", model, second, "--dry-run", "--tracking-uri", uri, code=1).stdout.split())
    uri = forged(recorded.uri, tmp_path / "facts.db", facts=True)
    assert "the metrics or facts of run" in said("audit", "verify", "--tracking-uri", uri, code=1).stdout
    assert "its metrics or facts changed" in said("gate", model, second, "--tracking-uri", uri, code=2).stderr
    assert "trainable parameters 14080 → 256" in said("gate", model, third, *store, code=1).stdout  # another difference
    assert said("gate", model, second, *store).stdout.startswith("PASS")
    assert recorded.champion() == second
    nothing = said("accept-facts", model, second, *store, "--reason", "again", code=2).stderr
    assert "there is no other champion to compare it with" in nothing


def test_a_fact_that_is_left_out_does_not_pass(recorded: Any) -> None:
    store, model = ("--tracking-uri", recorded.uri), recorded.model
    first, silent = (version(recorded, trainable) for trainable in ("14080", None))
    said("gate", model, first, *store)
    shown = " ".join(said("gate", model, silent, *store, code=3).stdout.split())
    assert "The candidate's runs do not say how many parameters they train, the baseline's do." in shown
    assert recorded.champion() == first


def forged(uri: str, copy: Path, *, facts: bool = False) -> str:
    """The store with another acceptance than was signed, or with other facts than a verdict was bound to."""
    with sqlite3.connect(uri.removeprefix("sqlite:///")) as whole, sqlite3.connect(copy) as made:
        whole.backup(made)
        for (name,) in made.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            made.execute(f"DROP TRIGGER {name}")
        if facts:
            made.execute(
                "UPDATE tags SET value = replace(value, '14080\"}', '14081\"}') WHERE key LIKE 'canary.facts.%'"
            )
        else:
            made.execute("UPDATE canary_ledger SET body = replace(body, 'frozen', 'forged') WHERE kind = 'facts'")
    return f"sqlite:///{copy}"


def test_fewer_labels_block_where_the_first_step_does_not_show_them(tiny: str, place: Path) -> None:
    (place / "mine.yaml").write_text(POLICY)
    evaluated = {"eval_strategy": "steps", "eval_steps": 3}
    sessions = [trained(tiny, **evaluated), trained(tiny, mask, **evaluated)]
    shown = " ".join(said("compare", *sessions, "--policy", "mine.yaml").stdout.split())
    assert "a gate would say BLOCK" in shown
    assert (
        "labels of an evaluation 37 → 25 in seeds 0, 1, labels learned over the training 149 → 125 in seeds 0, 1"
        in shown
    )
    found = json.loads(said("diff", *sessions, "--json", code=1).stdout)["differences"]
    assert {"labels.trained", "labels.evaluated"} <= {one["key"] for one in found}
    assert "first.labels" not in {one["key"] for one in found}


def measured(trainer: Any) -> None:
    trainer.evaluate()


def measured_on_the_training_rows(trainer: Any) -> None:
    trainer.evaluate(trainer.train_dataset)


def test_an_evaluation_of_other_rows_blocks_although_it_comes_after_the_training(tiny: str, place: Path) -> None:
    (place / "mine.yaml").write_text(POLICY)
    held = {"eval_strategy": "steps", "eval_steps": 2}
    honest = [trained(tiny, then=measured, **held) for _ in range(2)]
    assert "evaluated" not in said("compare", *honest, "--policy", "mine.yaml").stdout
    told = said("compare", honest[0], trained(tiny, then=measured_on_the_training_rows, **held, learning_rate=1e-3),
                "--policy", "mine.yaml").stdout  # fmt: skip
    shown = " ".join(told.split())
    assert "a gate would say BLOCK" in shown
    assert "no setting that was changed can explain rows of the last evaluation 4 rows → 80 rows" in shown


def prepared(trainer: Any) -> None:
    """The same tokens, from which the script has taken the texts, with a mask, as trl had one up to 1.7."""
    for name in ("train_dataset", "eval_dataset"):
        data = getattr(trainer, name)
        data = data.remove_columns([one for one in data.column_names if one == "text"])
        setattr(trainer, name, data.add_column("attention_mask", [[1] * len(one) for one in data["input_ids"]]))


def backwards(trainer: Any) -> None:
    trainer.train_dataset = trainer.train_dataset.select(range(79, -1, -1))


def test_the_same_tokens_from_elsewhere_or_in_another_order_block_nothing(tiny: str, place: Path) -> None:
    (place / "mine.yaml").write_text(POLICY)
    before = trained(tiny)
    elsewhere = said("compare", before, trained(tiny, prepared), "--policy", "mine.yaml", "--json").stdout
    keys = {one["key"] for one in json.loads(elsewhere)["verdict"]["differences"]}
    assert "train_data" in keys
    assert not [key for key in keys if key.startswith("data.order.")]
    assert "workload is not the same" not in elsewhere
    shown = said("compare", before, trained(tiny, backwards), "--policy", "mine.yaml").stdout
    assert "a gate would say BLOCK" not in shown
    assert "Differs exactly: order of the data's input_ids " in shown


def preferring(pairs: list[dict[str, str]], tiny: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A session of DPO on these pairs."""
    monkeypatch.setattr(tiny_trainers, "PAIRS", pairs)
    with session("mine") as opened:
        for seed in range(2):
            dpo(tiny, Path.cwd(), [CanaryCallback(watch=None)], seed=seed, max_steps=3).train()
    return opened.session_id


def test_answers_that_changed_places_block_and_other_pairs_do_not_compare(
    tiny: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "mine.yaml").write_text(POLICY)
    exchanged = [{**pair, "chosen": pair["rejected"], "rejected": pair["chosen"]} for pair in PAIRS]
    before = preferring(PAIRS, tiny, monkeypatch)

    def against(pairs: list[dict[str, str]]) -> str:
        return " ".join(
            said("compare", before, preferring(pairs, tiny, monkeypatch), "--policy", "mine.yaml").stdout.split()
        )

    shown = against(exchanged)
    assert "a gate would say BLOCK" in shown
    assert "data and seeds are the same, but the data's chosen_ids " in shown
    assert "chosen_ids and rejected_ids changed places" in shown
    assert "workload is not the same" in against([*exchanged[:9], *PAIRS[9:]])


def others(trainer: Any) -> None:
    """Learn other tokens from the second batch on, as many as before."""
    collate, batches = trainer.data_collator, count()

    def swapped(rows: Any) -> Any:
        batch = collate(rows)
        batch["labels"][batch["labels"] > 5] -= int(next(batches) > 0)
        return batch

    trainer.data_collator = swapped


def test_other_labels_block_although_they_are_as_many_and_the_first_step_has_none(tiny: str, place: Path) -> None:
    (place / "mine.yaml").write_text(POLICY)
    shown = said("compare", trained(tiny), trained(tiny, others), "--policy", "mine.yaml").stdout
    assert "a gate would say BLOCK" in shown
    assert "but which labels were learned over the training " in " ".join(shown.split())


def moved(trainer: Any) -> None:
    """Evaluate other weights than the training made: those of a training that nobody recorded, an average, rounded."""
    with torch.no_grad():
        trainer.model.get_output_embeddings().weight.mul_(1.001)
    trainer.evaluate()


def test_an_evaluation_of_other_weights_than_the_training_made_blocks(tiny: str, place: Path) -> None:
    (place / "mine.yaml").write_text(POLICY)
    honest, other = trained(tiny, then=measured), trained(tiny, then=moved)
    assert "weights" not in said("compare", honest, trained(tiny, then=measured), "--policy", "mine.yaml").stdout
    shown = " ".join(said("compare", honest, other, "--policy", "mine.yaml").stdout.split())
    assert "but weights of the last evaluation as the training left them → others." in shown


def measured_on_less(trainer: Any) -> None:
    """Mask labels in the evaluation after the training alone."""
    mask(trainer)
    trainer.evaluate()
    trainer.evaluate()


def predicted_before(trainer: Any) -> None:
    trainer.predict(trainer.train_dataset)
    trainer.evaluate()


def test_an_evaluation_of_fewer_labels_blocks_although_it_comes_after_the_training(tiny: str, place: Path) -> None:
    (place / "mine.yaml").write_text(POLICY)
    honest = trained(tiny, then=measured)
    shown = said("compare", honest, trained(tiny, then=measured_on_less), "--policy", "mine.yaml").stdout
    assert "but labels of the last evaluation 37 → 25" in " ".join(shown.split())
    shown = said("compare", honest, trained(tiny, then=predicted_before), "--policy", "mine.yaml").stdout
    assert "labels" not in shown


def test_an_evaluation_that_lets_go_of_its_logits_is_rid_of_them(tiny: str, place: Path) -> None:
    """Who asks for that has no memory for two batches of them."""
    made: list[Any] = []
    held: list[int] = []

    def noted(logits: Any, labels: Any) -> Any:
        held.append(sum(one() is not None for one in made))
        made.append(weakref.ref(kept := logits.clone()))
        return kept

    trainer = sft(tiny, place, [CanaryCallback()], max_steps=1, per_device_eval_batch_size=1, batch_eval_metrics=True)
    trainer.preprocess_logits_for_metrics, trainer.compute_metrics = noted, lambda found, compute_result: {}
    trainer.train()
    trainer.evaluate()
    assert held == [0, 0, 0, 0]


def unseen(trainer: Any) -> None:
    """Call the model where no hook sees what it is given."""
    called = trainer.compute_loss
    trainer.compute_loss = lambda model, *args, **kwargs: called(model.forward, *args, **kwargs)


def test_tokens_that_reach_the_model_unseen_do_not_pass(tiny: str, place: Path) -> None:
    (place / "mine.yaml").write_text(POLICY)
    shown = " ".join(said("compare", trained(tiny), trained(tiny, unseen), "--policy", "mine.yaml").stdout.split())
    assert "a gate would say INCONCLUSIVE" in shown
    assert "do not say which tokens reached their models, the baseline's do" in shown


def test_prepared_labels_and_masks_are_counted_of_both_sets() -> None:
    rows = {"input_ids": [[5, 6, 7]], "labels": [[-100, 6, 7]], "completion_mask": [[0, 0, 1]], "user_ids": ["a"]}
    found = {**tokens_in(Dataset.from_dict(rows)), **tokens_in(Dataset.from_dict(rows), "tokens.held_out")}
    counts = {key: value.partition(" ")[0] for key, value in found.items()}
    of_both = {"input_ids": "3", "labels": "2", "completion_mask": "1"}
    assert counts == {f"tokens.{part}{key}": count for part in ("", "held_out.") for key, count in of_both.items()}


def test_held_out_rows_that_are_trained_on_are_counted_by_all_their_tokens() -> None:
    train = Dataset.from_dict({"prompt_ids": [[1], [2], [3]], "chosen_ids": [[7], [8], [9]]})
    held_out = Dataset.from_dict({"prompt_ids": [[1], [2], [1]], "chosen_ids": [[7], [7], [7]], "labels": [[1]] * 3})
    assert held_out_trained(train, held_out) == {"held_out_trained": 2}
    assert held_out_trained(train, None) == held_out_trained(train, {"docs": held_out}) == {}


def test_a_stream_to_train_on_does_not_keep_the_held_out_rows_from_being_told() -> None:
    held_out = Dataset.from_dict({"input_ids": [[1, 2]]})
    trainer = SimpleNamespace(train_dataset=held_out.to_iterable_dataset(), eval_dataset=held_out)
    found = data(cast(Any, SimpleNamespace(trainer=trainer)))
    assert found.keys() == {"held_out_rows", "tokens.held_out.input_ids"}


def test_a_change_of_the_configuration_is_shown_and_blocks_nothing(told: Any) -> None:
    found = json.loads(said("compare", told["first"], told["meant"], "--policy", "mine.yaml", "--json").stdout)
    assert found["exact"].startswith("Differs exactly: ")
    assert "facts" not in [check["metric"] for check in found["verdict"]["checks"]]


def test_a_setting_that_explains_nothing_excuses_nothing(told: Any) -> None:
    """A third of the weights no longer trains, and the optimizer's epsilon is another in its fifth digit."""
    shown = " ".join(said("compare", told["first"], told["slipped"], "--policy", "mine.yaml").stdout.split())
    assert shown.startswith("COMPARISON, a gate would say BLOCK")
    assert "no setting that was changed can explain trainable parameters 14080 → 9280, " in shown
    assert "Changed: adam_epsilon 1e-08 → 1.0001e-08." in shown


def test_many_groups_of_an_optimizer_are_kept_whole_as_their_parts_are_compared() -> None:
    layers = [torch.nn.Parameter(torch.ones(1)) for _ in range(24)]
    groups = [{"params": [one], "lr": 0.9**at, "names": [f"layer {at}"]} for at, one in enumerate(layers)]
    told = groups_of(torch.optim.AdamW(groups))
    kept = facts_in(to_tags({"training": {"precision": "fp32", "groups": told}}))["training.groups"]
    assert [one["initial_lr"] for one in json.loads(kept)] == [one["lr"] for one in groups]
    assert "layer 3" not in kept


def test_facts_beyond_one_tag_go_on_in_the_next_and_no_json_says_nothing() -> None:
    tags = to_tags({"arguments": {f"key{at}": "x" * 200 for at in range(100)} | {"long": "y" * 1000}})
    assert {"canary.facts.arguments", "canary.facts.arguments.2"} <= tags.keys()
    assert max(map(len, tags.values())) <= LONGEST_TAG
    found = facts_in({**tags, "canary.facts.odd": "no JSON", "canary.facts.list": "[1]"})
    assert len(found) == 101
    assert facts_in({"canary.data.train_rows": "48"}) == {}


def test_which_label_a_row_has_is_a_fact_whatever_the_rows_order() -> None:
    """KTO's, a classifier's, or a score to learn: as many rows with each label, but on the other rows."""
    ids, label = [[1, 2], [3], [4, 5], [6]], [True, False, True, False]

    def told(ids: Any, **labels: Any) -> dict[str, str]:
        return labels_in(Dataset.from_dict({"input_ids": ids, **labels}))

    fact = told(ids, label=label)
    assert fact["labels.label.input_ids"].startswith("2 of 4 rows are not 0, ")
    assert fact == told(ids[::-1], label=label[::-1]) == told(ids, label=[1, 0, 1, 0])
    assert fact != told(ids, label=[not one for one in label])
    assert told(ids, labels=[0.5, 1.0, 2.0, 0.0]) != told(ids, labels=[1.0, 0.5, 2.0, 0.0])
    texts = {"prompt": ["a", "b"], "completion": ["c", "d"]}  # tokens are made later
    asked = [labels_in(Dataset.from_dict({**texts, "label": one})) for one in ([True, False], [False, True])]
    assert asked[0] != asked[1]
    assert told(ids, labels=[[1], [2], [3], [4]], length=[2, 1, 2, 1]) == {}


@pytest.mark.parametrize(("without", "code"), [((), 0), (("optimizer.pt", "scheduler.pt"), 1)])
def test_a_resume_without_the_states_of_optimizer_and_schedule_blocks(
    tiny: str, place: Path, without: tuple[str, ...], code: int
) -> None:
    (place / "mine.yaml").write_text(POLICY)
    sft(tiny, place, [], max_steps=6, save_strategy="steps", save_steps=3, logging_steps=1).train()
    checkpoint = place / "out" / "checkpoint-3"

    def resumed() -> str:
        with session("mine") as opened:
            for seed in range(2):
                canary = CanaryCallback(watch=None)
                trainer = sft(tiny, place, [canary], seed=seed, max_steps=6, logging_steps=1)
                trainer.train(resume_from_checkpoint=str(checkpoint))
        return opened.session_id

    before = resumed()
    for name in without:
        (checkpoint / name).unlink()
    now = resumed()
    shown = " ".join(said("compare", before, now, "--policy", "mine.yaml").stdout.split())
    assert ("a gate would say BLOCK" in shown) == bool(without)
    assert ("the optimizer's state kept → lost at the resume" in shown) == bool(without)
    found = json.loads(said("diff", before, now, "--json", code=code).stdout)["differences"]
    lost = {"training.optimizer_state", "training.scheduler_state", "course.learning_rate"}
    assert ({one["key"] for one in found} & lost) == (lost if without else set())


def apart(trainer: Any) -> None:
    """Token ids alone, and held-out rows that are not trained on."""
    trainer.train_dataset = trainer.train_dataset.select(range(4, 80)).select_columns(["input_ids"])
    trainer.eval_dataset = trainer.eval_dataset.select_columns(["input_ids"])


def leaking(trainer: Any) -> None:
    """The same number of rows, four of which are held-out ones with a token more."""
    apart(trainer)
    rows = [row["input_ids"] for row in trainer.train_dataset][:72]
    longer = [[*row["input_ids"], 1] for row in trainer.eval_dataset]
    trainer.train_dataset = Dataset.from_dict({"input_ids": [*rows, *longer]})


def test_rows_of_token_ids_are_other_data_where_their_tokens_are(tiny: str, place: Path) -> None:
    (place / "mine.yaml").write_text(POLICY)
    before, again, leaked = trained(tiny, apart), trained(tiny, apart), trained(tiny, leaking)
    shown = " ".join(said("compare", before, leaked, "--policy", "mine.yaml").stdout.split())
    assert "a gate would say INCONCLUSIVE" in shown
    assert "The workload is not the same (train_data: " in shown
    assert "Changed: train_data" in shown
    assert "train_data" not in said("compare", before, again, "--policy", "mine.yaml").stdout


def test_copies_of_held_out_rows_are_counted_where_half_of_their_tokens_in_a_row_are_the_same() -> None:
    def rows(*lists: Sequence[int]) -> Dataset:
        return Dataset.from_dict({"input_ids": [list(one) for one in lists]})

    held = rows(range(20), range(100, 120), range(200, 205))
    for trained, near in (
        (rows(range(300, 400)), 0),
        (rows([*range(20), 7], range(100, 120)), 2),
        (rows([9, *range(100, 114)], range(200, 205)), 1),  # 7 of 13 shingles; a short row has none
        (rows(range(100, 113)), 0),  # 6 of 13
        (rows(reversed(range(20))), 0),
    ):
        assert near_copies(trained, held) == {"held_out_near": near}
    assert near_copies(held, rows(range(3))) == near_copies(held, None) == near_copies([1], held) == {}


class Stream(torch.utils.data.IterableDataset[Any]):
    """Rows that each worker reads from the first to the last."""

    def __init__(self, rows: Any) -> None:
        self.rows = [{"input_ids": row["input_ids"]} for row in rows]

    def __iter__(self) -> Any:
        return iter(self.rows)


def streamed(trainer: Any) -> None:
    trainer.train_dataset = Stream(trainer.train_dataset)


@pytest.mark.parametrize("accumulated", [1, 2])
def test_a_stream_that_two_workers_read_once_each_blocks(tiny: str, place: Path, accumulated: int) -> None:
    (place / "mine.yaml").write_text(POLICY)
    own = {"gradient_accumulation_steps": accumulated}
    sessions = [trained(tiny, streamed, **own), trained(tiny, streamed, dataloader_num_workers=2, **own)]
    shown = " ".join(said("compare", *sessions, "--policy", "mine.yaml").stdout.split())
    assert "a gate would say BLOCK" in shown
    assert f"batches of the first two steps that come again 0 → {accumulated}" in shown
