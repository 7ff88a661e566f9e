"""Each fault on each algorithm it applies to: the signals that its file names show it, and healthy runs show none.

Real runs, short ones, in forked processes. What the gate says of one run beside three healthy ones is the signal; with
a single run nothing blocks by statistics, so that the rules which decide are judged as advice here.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from forked_runs import ForkedRuns

from canary_mlflow.gates import Run, Version, judge
from canary_mlflow.gates.model.policy import Policy
from canary_mlflow.gates.model.rules import Role
from canary_mlflow.gates.model.verdict import CheckOutcome
from canary_mlflow.policies import load_policy

ROOT = Path(__file__).resolve().parents[2]
FILES = {path.stem: yaml.safe_load(path.read_text()) for path in sorted((ROOT / "conf" / "fault").glob("*.yaml"))}
ALGOS = {name: list(body.get("signals", {})) for name, body in FILES.items()}
ROWS = [(name, algo) for name, algos in ALGOS.items() for algo in algos]
SHOWN: dict[tuple[str, str], set[str]] = {}
MATRIX = ROOT / "benchmarks" / "data" / "fault-matrix.md"
STEPS = {
    "sft": 40,
    "dpo": 40,
    "ppo": 50,
    "grpo": 50,
    "rloo": 50,
    "kto": 40,
    "reward": 40,
}  # a reward needs its 50 steps to have risen
EVERY_DAY = {**STEPS, "ppo": 24}
FEW = ("tier.train_rows=128", "tier.eval_rows=16")  # every day: as many show what is shown here
DAILY = ("sft", "dpo", "ppo")  # test_algorithms.py strikes the others
# So short that onset must come early, and so few values that a slowdown must be clear.
SHORT = {
    "slow_step_from_n": ["fault.step=10", "fault.strength=1"],
    "stalled_step": ["fault.step=10", "fault.strength=1"],
    "slow_loader": ["fault.strength=1"],
    "memory_leak": ["fault.strength=8"],
}
# What a collection walks over: some 70 ms, in place of all that a run has loaded, which takes it half a second. It must
# be a large share of a step of each algorithm: those of GRPO and RLOO take 100 to 130 ms, and the limit is a fifth. For
# the short steps of every day a third of it is enough.
HEAP = """
import gc
gc.unfreeze = lambda: vars(gc).update(heap=[[[[]]] for _ in range({})])
"""
QUIET = ("tracking.samples=false", "tracking.system_metrics=false")  # no signal reads them
WHOLE = "watch.on_critical=warn"  # the checks that must show a fault have its whole run to see
LIKE_KL_ZERO = ("ppo_unstable", "ppo_unstable_kl")  # other settings of PPO, shown by the same signals
LIKE_LR_HIGH = ("dpo_unstable_lr",)  # the same key
LONG = ("entropy_collapse", "value_divergence")  # most of a minute each; reward_hack and kl_zero run PPO every day
COSTS = ("step_cost", "iteration_cost", "data_wait")
# Series that no rule of the policies judges, and what is too little of them to count.
SERIES = {"data_wait": 0.003, "step_wait": 0.003, "memory_growth": 1.0, "value_loss": 1.0}


def every_day() -> list[tuple[str, str]]:
    """Each fault once, in turn on SFT and DPO where it applies to them: their runs are the short ones."""
    left = {*LIKE_KL_ZERO, *LIKE_LR_HIGH, *LONG}
    known = {name: [algo for algo in algos if algo in DAILY] for name, algos in ALGOS.items()}
    daily = {name: algos for name, algos in known.items() if algos and name not in left}
    short = {name: [algo for algo in algos if algo != "ppo"] or algos for name, algos in daily.items()}
    return [(name, algos[at % len(algos)]) for at, (name, algos) in enumerate(short.items())]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every row with --full."""
    whole = metafunc.config.getoption("--full")
    if "fault" in metafunc.fixturenames:
        metafunc.parametrize(("fault", "algo"), ROWS if whole else every_day())
    elif "held_by" in metafunc.fixturenames:
        metafunc.parametrize("held_by", STEPS if whole else ["dpo"])


class Trained(ForkedRuns):
    """`whole`: as many steps and rows as --full has."""

    whole = True

    def of(self, algo: str, *words: str, patch: str = "") -> Run:
        steps, few = (STEPS, ()) if self.whole else (EVERY_DAY, FEW)
        return self.train(f"algo={algo}", f"train.max_steps={steps[algo]}", *few, *QUIET, *words, patch=patch)


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    made = Trained(tmp_path_factory.mktemp("faults"))
    made.whole = request.config.getoption("--full")
    return made


def healthy(runs: Trained, algo: str) -> list[Run]:
    return [runs.of(algo, f"seed={seed}") for seed in range(3)]


def struck(runs: Trained, fault: str, algo: str) -> Run:
    words = SHORT.get(fault, [])
    heap = HEAP.format(400_000 if runs.whole else 130_000) if fault == "gc_storm" else ""
    return runs.of(algo, "seed=0", f"fault={fault}", WHOLE, *words, patch=heap)


def policy(algo: str) -> Policy:
    quiet = {"sentinel_rise": None}  # neighbours are no part of these tests
    smoke = load_policy({"base": "smoke", "warmup_steps": 5, "min_steps": 10, "validity": quiet})
    evaluated = "eval_loss" if algo in ("sft", "dpo", "kto", "reward") else "eval_reward"
    recorded = dict.fromkeys(("step_cost", "iteration_cost", evaluated), "recorded")
    resolved = smoke.resolve({"algo": algo, "backend": "cpu", **recorded})
    return replace(
        resolved,
        rules=tuple(
            replace(rule, role=Role.ADVISORY) if rule.role in (Role.GATE, Role.GUARD) else rule
            for rule in resolved.rules
        ),
    )


def shown(algo: str, baseline: list[Run], run: Run) -> set[str]:
    """The signals that this run gives beside the baseline: checks of the gate, and series that no rule judges."""
    rules = policy(algo)
    sides = [Version(model="m", version=None, runs=tuple(some)) for some in (baseline, [run])]
    verdict = judge(rules, *sides)
    found = {check.metric for check in verdict.checks if check.outcome in (CheckOutcome.BLOCK, CheckOutcome.WARN)}
    return found | {name for name, floor in SERIES.items() if far_off(name, floor, baseline, run)}


def far_off(name: str, floor: float, baseline: list[Run], run: Run) -> bool:
    """Whether the median of the run's second half is more than three times the highest of the baseline's."""
    middles = [
        max(floor, float(np.median(values[len(values) // 2 :])))
        for values in (some.series[name].values for some in (run, *baseline) if name in some.series)
    ]
    return len(middles) == 1 + len(baseline) and middles[0] > 3 * max(middles[1:])


def test_the_signals_that_its_file_names_show_a_fault(runs: Trained, fault: str, algo: str) -> None:
    SHOWN[fault, algo] = shown(algo, healthy(runs, algo), struck(runs, fault, algo))
    missing = set(FILES[fault]["signals"][algo]) - SHOWN[fault, algo]
    assert not missing


@pytest.mark.parametrize("algo", [pytest.param(a, marks=() if a in DAILY else pytest.mark.full) for a in STEPS])
def test_healthy_runs_show_none_of_them(runs: Trained, algo: str) -> None:
    named = {signal for body in FILES.values() for signal in body.get("signals", {}).get(algo, [])}
    alarms: list[str] = []
    for index, run in enumerate(healthy(runs, algo)):
        others = [other for at, other in enumerate(healthy(runs, algo)) if at != index]
        alarms += named & shown(algo, others, run)
    # Cost is measured on a machine that others use as well: one run in three may have met a neighbour.
    assert {name for name in alarms if alarms.count(name) > (name in COSTS)} == set()


def test_memory_faults_hold_what_they_claim(runs: Trained, held_by: str) -> None:
    before = healthy(runs, held_by)[0].series["peak_memory"].values
    leak = struck(runs, "memory_leak", held_by).series["peak_memory"].values
    ballast = struck(runs, "memory_ballast", held_by).series["peak_memory"].values
    assert leak[-1] - before[-1] == pytest.approx(8 * len(leak), rel=0.2)
    assert ballast[-1] / before[-1] == pytest.approx(1.3, abs=0.06)


def test_a_struck_run_says_what_it_was_asked_for(runs: Trained) -> None:
    """The workload is that of the healthy configuration: else no fault of settings could be compared with one."""
    one, other = healthy(runs, "ppo")[0], struck(runs, "kl_zero", "ppo")
    assert one.workload == other.workload
    assert other.workload["ppo_epochs"] == "4"


def test_every_fault_says_what_it_does_and_what_shows_it() -> None:
    for name, body in FILES.items():
        assert body["name"] == name
        if name != "none":
            assert body["description"]
            assert body["signals"]
            assert all(body["signals"].values())
            assert ("strength" in body) == ("unit" in body)


def test_the_docs_have_the_same_table() -> None:
    text = (ROOT / "docs" / "measured" / "faults.md").read_text()
    table = text.partition("| fault | what it does |")[2].partition("\n\n")[0]
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    assert rows == [row(name, body) for name, body in FILES.items() if name != "none"]


def row(name: str, body: dict[str, Any]) -> str:
    degree = f"{body['strength']:g} {body['unit']}" if "strength" in body else ""
    algos: dict[str, list[str]] = {}
    for algo, names in body["signals"].items():
        algos.setdefault(", ".join(names), []).append(algo)
    signals = "; ".join(f"{', '.join(each)}: {names}" for names, each in algos.items())
    return f"| `{name}` | {body['description']} | {degree} | {signals} |"


def test_the_matrix_of_faults_and_checks_is_written(request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--write-docs") or set(SHOWN) != set(ROWS):
        pytest.skip("written with --full --write-docs")
    algos: dict[tuple[str, str], list[str]] = {}
    for (fault, algo), found in SHOWN.items():
        besides = ", ".join(sorted(found - {*FILES[fault]["signals"][algo]}))
        algos.setdefault((fault, besides), []).append(algo)
    lines = ["| fault | algorithm | what else moves |", "|---|---|---|"]
    lines += [f"| {fault} | {', '.join(each)} | {besides} |" for (fault, besides), each in algos.items() if besides]
    MATRIX.write_text("\n".join(lines) + "\n")
