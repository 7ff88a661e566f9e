"""Root causes by what was measured: each rule where it applies, none where nothing changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest

from canary_mlflow.gates import Outcome, Run, Series, Version, judge
from canary_mlflow.gates.model.verdict import verdict_from_dict, verdict_to_dict
from canary_mlflow.gates.root_causes import root_causes
from canary_mlflow.policies import load_policy

STEPS = 100
Numbers = Mapping[str, np.ndarray]


def run(seed: int, numbers: Mapping[str, object], **facts: object) -> Run:
    series = {
        name: Series.from_pairs(name, zip(range(1, len(values) + 1), values, strict=True))  # type: ignore[arg-type]
        for name, values in numbers.items()
    }
    plain = Run(run_id=f"{seed}-{id(numbers)}", seed=seed, series=series, learned=True, last_step=STEPS,
                workload={"algo": "dpo"}, hardware={"backend": "cpu"}, critical_held="", invariants="ok")  # fmt: skip
    return replace(plain, **facts)  # type: ignore[arg-type]


def numbers(seed: int) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed)
    parts = {"data_wait": 4e-3, "time_forward": 30e-3, "time_backward": 50e-3, "time_optimizer": 10e-3}
    found = {name: size * draw.lognormal(0, 0.03, STEPS) for name, size in parts.items()}
    found["step_time"] = sum(found.values()) + 2e-3
    found["step_cost"] = found["step_time"] * 100
    found["sentinel_time"] = np.full(STEPS, 1e-3)
    found["peak_memory"] = np.maximum.accumulate(700 + draw.normal(0, 0.2, STEPS))
    found["learning_rate"] = np.linspace(2e-3, 1e-5, STEPS)
    found["loss"] = np.linspace(0.7, 0.5, STEPS) + draw.normal(0, 0.01, STEPS)
    found["grad_norm"] = draw.lognormal(0, 0.2, STEPS)
    found["reward_accuracy"] = np.clip(np.linspace(0.5, 0.8, STEPS) + draw.normal(0, 0.05, STEPS), 0, 1)
    return found


def slower(part: str, by: float) -> Callable[[dict[str, np.ndarray]], None]:
    def change(found: dict[str, np.ndarray]) -> None:
        if part:
            found[part] = found[part] + by
        found["step_time"] = found["step_time"] + by
        found["step_cost"] = found["step_cost"] + 100 * by

    return change


def late(found: dict[str, np.ndarray]) -> None:
    more = np.where(np.arange(STEPS) >= 40, 30e-3, 0.0)
    found["step_time"], found["step_cost"] = found["step_time"] + more, found["step_cost"] + 100 * more


def leak(found: dict[str, np.ndarray]) -> None:
    found["peak_memory"] = found["peak_memory"] + 4.0 * np.arange(STEPS)


def ballast(found: dict[str, np.ndarray]) -> None:
    found["peak_memory"] = found["peak_memory"] + np.where(np.arange(STEPS) >= 5, 200.0, 0.0)


def fast(found: dict[str, np.ndarray]) -> None:
    found["learning_rate"] = found["learning_rate"] * 200


def stopped(found: dict[str, np.ndarray]) -> None:
    found["learning_rate"] = np.zeros(STEPS)


def sooner(found: dict[str, np.ndarray]) -> None:
    found["learning_rate"] = np.maximum(np.linspace(2e-3, -2e-3, STEPS), 1e-6)  # the same peak, another schedule


def frozen(found: dict[str, np.ndarray]) -> None:
    found["grad_norm"] = np.where(np.arange(STEPS) >= 50, 0.0, found["grad_norm"])


def no_loss(found: dict[str, np.ndarray]) -> None:
    for name in ("loss", "grad_norm"):
        found[name] = np.where(np.arange(STEPS) >= 20, np.nan, found[name])


def no_gradient(found: dict[str, np.ndarray]) -> None:
    found["grad_norm"] = np.where(np.arange(STEPS) >= 20, np.inf, found["grad_norm"])
    found["loss"] = np.where(np.arange(STEPS) >= 21, np.nan, found["loss"])


def contradicts(found: dict[str, np.ndarray]) -> None:
    found["reward_accuracy"] = np.full(STEPS, 0.5)


CASES: list[tuple[str, Callable[[dict[str, np.ndarray]], None], str]] = [
    ("time.data_wait", slower("data_wait", 25e-3), "waiting for data 4 ms → 29 ms explains 99 % of the slower step"),
    ("time.time_backward", slower("time_backward", 25e-3), "the backward pass 49.6 ms → 75.2 ms explains 100 % of"),
    ("time.between", slower("", 25e-3), "is in no phase"),
    ("time.sets-in", late, "from step 41 on"),
    ("memory.grows", leak, "memory grows by 4.0 MiB a step"),
    ("memory.at-once", ballast, "200 MiB more at once at step 6"),
    ("rate.learning", fast, "the learning rate peaks at 0.4, not 0.002 (200 times)"),  # as configured, not on average
    ("rate.learning", stopped, "the learning rate stays at 0, not 0.002"),
    ("rate.learning", sooner, "the learning rate is, at the median step, 1e-06, not 0.000"),
    ("numbers.frozen", frozen, "grad_norm is 0 from step 51 on"),
    ("numbers.loss", no_loss, "the loss of step 21 is not a number"),
    ("numbers.gradient", no_gradient, "a gradient of step 21 is not a number"),
    ("data.contradicts", contradicts, "the share of pairs in their order ends at 0.5 in training, not 0.7"),
]


def sides(change: Callable[[dict[str, np.ndarray]], None]) -> tuple[list[Run], list[Run]]:
    before, now = [run(seed, numbers(seed)) for seed in range(3)], []
    for seed in range(3):
        found = numbers(seed + 10)
        change(found)
        now.append(run(seed, found))
    return before, now


@pytest.mark.parametrize(("rule", "change", "said"), CASES)
def test_what_explains_most_is_named_first(
    rule: str, change: Callable[[dict[str, np.ndarray]], None], said: str
) -> None:
    found = root_causes(*sides(change))
    assert found[0].rule == rule, found
    assert said in found[0].said


def test_a_step_that_taught_nothing_is_not_the_end_of_learning() -> None:
    """A GRPO run of a public script, whose answers were all rewarded alike at steps 18, 28, 29 and 40 of 40."""

    def some(*rows: int) -> Callable[[dict[str, np.ndarray]], None]:
        def change(found: dict[str, np.ndarray]) -> None:
            found["grad_norm"] = np.where(np.isin(np.arange(STEPS), rows), 0.0, found["grad_norm"])

        return change

    def named(before: Callable[[dict[str, np.ndarray]], None], now: Callable[[dict[str, np.ndarray]], None]) -> bool:
        pair = sides(before)[1], sides(now)[1]
        return any(cause.rule == "numbers.frozen" for cause in root_causes(*pair))

    last = STEPS - 1
    assert not named(some(7), some(last))
    assert not named(some(), some(18, 28, last))
    assert not named(some(last), some(7, last))
    assert named(some(7, 8), some(18, 28, last - 2, last - 1, last))


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_named_where_nothing_changed(seed: int) -> None:
    runs = [run(at, numbers(1000 * seed + at)) for at in range(6)]
    assert not root_causes(runs[:3], runs[3:])


def test_a_run_that_breaks_off_in_its_warm_up_has_no_other_learning_rate() -> None:
    def warmed(steps: int, seed: int) -> Run:
        return run(seed, {"learning_rate": np.minimum(np.arange(1, steps + 1) / 20, 1.0) * 2e-3})

    assert not root_causes([warmed(STEPS, 0)], [warmed(8, 1)])


def test_a_machine_that_is_slower_as_a_whole_is_no_phase() -> None:
    def contended(found: dict[str, np.ndarray]) -> None:
        for name in ("data_wait", "time_forward", "time_backward", "time_optimizer", "step_time", "sentinel_time"):
            found[name] = 1.6 * found[name]

    assert not root_causes(*sides(contended))


def test_runs_that_grow_one_upon_the_other_in_one_process_are_no_cause() -> None:
    """First and last peaks of two unchanged sessions of an own script, three trainings in one process each."""
    peaks = [(723, 874), (875, 883), (891, 905)], [(712, 902), (910, 932), (933, 935)]
    before, now = (
        [run(at, numbers(at + side) | {"peak_memory": np.linspace(*ends, STEPS)}) for at, ends in enumerate(each)]
        for side, each in zip((0, 10), peaks, strict=True)
    )
    assert not root_causes(before, now)


def busy(seed: int, *, slower_from: int = STEPS, by: float = 0.0, speed: float = 1.0) -> Run:
    """A run of CPU steps that vary by 10 %, a third of them stretched by a neighbour, on a machine of this speed."""
    draw = np.random.default_rng(seed)
    time = 50e-3 * draw.lognormal(0, 0.1, STEPS) * np.where(draw.random(STEPS) < 0.3, 1.5, 1.0) * speed
    time *= np.where(np.arange(STEPS) >= slower_from, 1 + by, 1.0)
    return run(
        seed, {"step_time": time * draw.lognormal(0, 0.5, STEPS), "step_cpu_time": time, "step_cost": 100 * time}
    )


@pytest.mark.parametrize(("since", "by"), [(40, 0.3), (80, 0.6)])  # the last fifth moves no median
@pytest.mark.parametrize("seed", range(10))
def test_a_slowdown_in_mid_run_is_told_from_a_slower_machine_by_the_runs_own_steps(
    seed: int, since: int, by: float
) -> None:
    before = [busy(100 * seed + at) for at in range(3)]
    late = [busy(100 * seed + 10 + at, slower_from=since, by=by) for at in range(3)]
    slow = [busy(100 * seed + 20 + at, speed=1.2 + 0.2 * at) for at in range(3)]
    assert "time.sets-in" in {one.rule for one in root_causes(before, late)}
    assert "time.sets-in" not in {one.rule for one in root_causes(before, slow)}


def pairs(seed: int, order: float, held_out: float, rate: float = 1e-3) -> Run:
    """A run that ends with this margin, and this one on held-out pairs, as KTO logs them: no share in order."""
    noise = np.random.default_rng(seed).normal(0, 0.7, STEPS)
    margin = np.linspace(0, 1, STEPS) ** 0.5 * order + noise
    return run(seed, {"reward_margin": margin, "eval_margin": [held_out], "learning_rate": np.full(STEPS, rate)})


@pytest.mark.parametrize(
    ("order", "held_out", "said"),
    [
        (0.4, 0.4, "pairs contradict each other"),  # a quarter is swapped
        (0.0, 0.0, "pairs contradict each other"),  # half of them
        (1.2, -0.9, "on held-out pairs, which contradict each other"),  # all
        (1.2, 0.8, ""),
        (1.0, 0.9, ""),
    ],
)
def test_swapped_pairs_show_in_the_margin_or_in_that_of_held_out_pairs(
    order: float, held_out: float, said: str
) -> None:
    before = [pairs(seed, 1.2, 0.9) for seed in range(3)]
    found = root_causes(before, [pairs(seed + 10, order, held_out) for seed in range(3)])
    assert [one.rule for one in found] == (["data.contradicts"] if said else [])
    assert all(one.said.endswith(said) for one in found)


def test_what_another_learning_rate_brings_about_is_no_cause_beside_it() -> None:
    before = [pairs(seed, 1.2, 0.9) for seed in range(3)]
    found = root_causes(before, [pairs(seed + 10, 0.0, 0.0, rate=0.2) for seed in range(3)])
    assert [one.rule for one in found] == ["rate.learning"]


CHOSEN, REJECTED = "dc5f2a3bfe1d9c01", "9a3310efb1e6d2f7"
TOGETHER = int(CHOSEN, 16) + int(REJECTED, 16)
SWAPPED = "f0d1000000000000", f"{(TOGETHER - 0xF0D1000000000000) % 16**16:016x}"


def columns(chosen: str, rejected: str, *, row: int = 23, answer: bool = False) -> Run:
    """A run of 4 rows a step, of so many tokens each, half of which the policy wrote itself if `answer`."""
    facts = {
        "first.tokens": "92 in 4 sequences, 91ef",
        "data.tokens.chosen_ids": f"936 in 80 rows, longest 22, {chosen}",
        "data.tokens.rejected_ids": f"940 in 80 rows, longest 23, {rejected}",
    }
    series = {"tokens": np.full(STEPS, 4.0 * row)} | ({"response_length": np.full(STEPS, row / 2)} if answer else {})
    return run(0, series, facts=facts)


@pytest.mark.parametrize(
    ("candidate", "rule", "said"),
    [
        (columns(*SWAPPED), "data.exchanged", "chosen_ids and rejected_ids changed places"),
        (columns(SWAPPED[0], REJECTED), "", ""),  # other tokens, but not those of the other column
        (columns(CHOSEN, REJECTED, row=20), "data.tokens", "tokens differ: 20 for 23 per row"),
        (columns(CHOSEN, REJECTED, row=22), "", ""),
        (columns(CHOSEN, REJECTED, row=46, answer=True), "", ""),  # longer answers, to the same prompts
    ],
)
def test_tokens_of_the_data_tell_what_is_in_a_row(candidate: Run, rule: str, said: str) -> None:
    found = root_causes([columns(CHOSEN, REJECTED)], [candidate])
    assert [one.rule for one in found] == ([rule] if rule else [])
    assert all(said in one.said for one in found)


def moved(seed: int, **layers: str) -> Run:
    """A run whose layers moved this far."""
    own = {"embeddings": "0.7", "first": "0.37", "second": "0.34", "head": "4.0"} | layers
    return run(seed, {}, facts={f"layer_drift.{layer}": value for layer, value in own.items()})


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        ({}, []),
        ({"embeddings": "0.5", "head": "5.5"}, []),  # as far apart as unchanged runs are
        (
            {"embeddings": "28"},
            ["embeddings moved 2.8e+03 % of its size, not 70 %: 40 times as far, beside the median layer"],
        ),
        ({"second": "0.017"}, ["second moved 1.7 % of its size, not 34 %: 0.05 times as far, beside the median layer"]),
        ({"embeddings": "7", "first": "3.7", "second": "3.4", "head": "40"}, []),  # all of them: the learning rate
        ({"second": "frozen"}, ["second did not move (frozen)"]),
        ({"second": "0", "first": "0"}, ["first, second did not move (not frozen)"]),
        ({"embeddings": "0", "first": "0", "second": "0"}, ["only head moved (not frozen)"]),
        (dict.fromkeys(("embeddings", "first", "second", "head"), "0"), []),  # nothing trains: other rules say so
    ],
)
def test_a_layer_that_moves_otherwise_than_the_others_is_named(layers: dict[str, str], said: list[str]) -> None:
    found = root_causes([moved(seed) for seed in range(3)], [moved(seed + 10, **layers) for seed in range(3)])
    assert [one.said for one in found] == said
    assert not root_causes([moved(0)], [run(1, {})])  # of a run that records none, nothing is known


def rewarded(seed: int, reward: tuple[float, float], kl: float, **more: float) -> Run:
    """A run that is paid so much for its first answers and for its last ones, and ends this far from its reference."""
    draw = np.random.default_rng(seed)
    found = {
        "reward_mean": np.linspace(*reward, STEPS) + draw.normal(0, 0.1, STEPS),
        "kl": np.linspace(0, kl, STEPS) * draw.lognormal(0, 0.05, STEPS),
        **{name: np.full(STEPS, value) for name, value in more.items()},
    }
    return run(seed, found)


@pytest.mark.parametrize(
    ("reward", "kl", "more", "rules"),
    [
        ((1.2, 9.3), 2.7, {}, ["policy.unheld"]),
        ((1.2, 9.3), 2.7, {"kl_coef": 0.1}, []),  # held as before, as its coefficient says
        ((1.2, 3.0), 2.7, {}, []),  # it moved, and earns nothing by it
        ((1.2, 5.5), 0.6, {}, []),
        ((7.0, 9.0), 0.5, {}, ["start.reward"]),
        ((1.4, 4.8), 0.5, {}, []),
    ],
)
def test_a_reward_says_what_is_paid_for_from_the_start_and_what_a_policy_moved_for(
    reward: tuple[float, float], kl: float, more: dict[str, float], rules: list[str]
) -> None:
    before = [rewarded(seed, (1.2, 5.0), 0.5, **more) for seed in range(3)]
    found = root_causes(before, [rewarded(seed + 10, reward, kl, **more) for seed in range(3)])
    assert [one.rule for one in found] == rules


@pytest.mark.parametrize(
    ("end", "held_out", "rules"),
    [(6.5, 2.0, ["reward.parts"]), (6.5, 6.0, []), (3.5, 2.0, []), (5.0, 2.0, [])],
)
def test_a_reward_that_rises_in_training_alone_is_named(end: float, held_out: float, rules: list[str]) -> None:
    """Not one that rises in both, falls in both, or only fails to carry over."""
    before = [rewarded(seed, (1.2, 5.0), 0.5, eval_reward=4.9 + 0.1 * seed) for seed in range(3)]
    now = [rewarded(seed + 10, (1.2, end), 0.5, eval_reward=held_out) for seed in range(3)]
    assert [one.rule for one in root_causes(before, now)] == rules


def test_a_broken_start_and_other_passes_are_named() -> None:
    before, now = sides(lambda found: None)
    broken = [replace(one, invariants="broken: first loss 0.9; expected 0.693") for one in now]
    assert root_causes(before, broken)[0].rule == "start.reference"
    assert not root_causes(broken, broken)


def iterating(passes: int, **changed: np.ndarray) -> list[Run]:
    """Three runs of 25 rollouts with so many optimizer steps each, under one schedule."""
    steps = 25 * passes
    every = {"learning_rate": np.linspace(1e-3, 1e-5, steps)}
    ends = {"iteration_time": np.full(25, 0.6), "entropy": np.full(25, 6.2), "value_loss": np.full(25, 0.2), **changed}
    return [
        replace(
            run(seed, every),
            series={
                **run(seed, every).series,
                **{
                    name: Series.from_pairs(name, zip(range(passes, steps + 1, passes), values, strict=True))
                    for name, values in ends.items()
                },
            },
        )
        for seed in range(3)
    ]


def test_more_passes_are_named_and_the_schedule_that_they_stretch_is_not() -> None:
    found = root_causes(iterating(4), iterating(8, iteration_time=np.full(25, 1.1), time_update=np.full(25, 0.9)))
    assert [one.rule for one in found][:1] == ["rate.passes"]
    assert "rate.learning" not in {one.rule for one in found}


@pytest.mark.parametrize(
    ("coefficient", "said"),
    [
        (np.zeros(25), "the KL coefficient stays at 0, not 0.2"),
        (np.geomspace(0.01, 0.2, 25), "the KL coefficient starts at 0.01, not 0.2 (0.05 times)"),
        (np.geomspace(0.2, 40.0, 25), ""),  # a controller answers to a policy that runs away
    ],
)
def test_a_kl_coefficient_is_a_cause_as_it_was_given(coefficient: np.ndarray, said: str) -> None:
    found = root_causes(iterating(4, kl_coef=np.full(25, 0.2)), iterating(4, kl_coef=coefficient))
    assert [(one.rule, one.said) for one in found] == ([("rate.kl", said)] if said else [])


@pytest.mark.parametrize(
    ("entropy", "first"),
    [(np.geomspace(6.2, 2.9, 25), "policy.collapses"), (np.full(25, 6.1), "critic.runs-away")],
)
def test_a_critic_runs_away_by_itself_or_follows_a_policy_that_collapses(entropy: np.ndarray, first: str) -> None:
    found = root_causes(iterating(4), iterating(4, entropy=entropy, value_loss=np.geomspace(0.2, 9, 25)))
    assert found[0].rule == first
    assert "critic.runs-away" in {one.rule for one in found}


@pytest.mark.parametrize(("harmed", "first"), [({"kernels"}, "time.data_wait"), ({"MiB", ""}, "data.contradicts")])
def test_time_that_no_check_is_about_is_named_last(harmed: set[str], first: str) -> None:
    def both(found: dict[str, np.ndarray]) -> None:
        slower("data_wait", 25e-3)(found)
        contradicts(found)

    found = [one.rule for one in root_causes(*sides(both), harmed)]
    assert found[0] == first
    assert set(found) == {"time.data_wait", "data.contradicts"}


@pytest.mark.parametrize(("change", "asked"), [(slower("data_wait", 60e-3), True), (contradicts, False)])
def test_equal_work_is_a_note_only_where_a_step_costs_more(
    change: Callable[[dict[str, np.ndarray]], None], asked: bool
) -> None:
    """Elsewhere *look at Python, data loading, kernels and clocks* would be wrong advice."""
    work = {"work.status": "counted", "work.fixture": "f", "work.sequence": "s", "work.shapes": "a"}
    before, now = sides(change)
    before = [replace(one, facts=work, run_id=f"before {at}") for at, one in enumerate(before)]
    now = [replace(one, facts=work, learned=asked) for one in now]
    versions = [Version(model="m", version=str(at), runs=tuple(side)) for at, side in enumerate((before, now))]
    verdict = judge(load_policy("smoke"), *versions)
    assert verdict.outcome is Outcome.BLOCK
    assert any("no operation explains it" in note for note in verdict.notes) is asked, verdict.notes


def test_a_verdict_carries_them_and_a_pass_none() -> None:
    before, now = sides(slower("data_wait", 60e-3))
    policy = load_policy("smoke")
    versions = [Version(model="m", version=str(at), runs=tuple(side)) for at, side in enumerate((before, now))]
    verdict = judge(policy, *versions)
    assert verdict.outcome is not Outcome.PASS
    assert verdict.causes[0].rule == "time.data_wait"
    assert verdict_from_dict(verdict_to_dict(verdict)).causes == verdict.causes
    assert judge(policy, versions[0], replace(versions[0], version="2")).causes == ()
    assert judge(policy, None, versions[1]).causes == ()
