"""What each special rule of the gate is worth: the verdicts that change without it, for each set of real runs.

    python benchmarks/gate_ablation.py FOLDER [--cases FOLDER] [--every 12] [--only NAME …] [--tests]
                                       [--write docs/measured/judge.md]

FOLDER holds aa/ and perf/. The columns:

* real sets: those of benchmarks/gate_freeze.py, of which every twelfth comparison is judged;
* campaigns: each session of benchmarks/data/campaign*.jsonl.gz beside the champion's that it was judged against
  (faults: made beside other work, against the quiet champion of the same number);
* awkward: unchanged sessions of which one side has one series or run with a slip in it (benchmarks/gate_awkward.py;
  one of three), and the files of `--cases` that benchmarks/cases.py judges;
* hidden: faulty sessions that leave something out, as in benchmarks/gate_hiding.py, of which every twelfth is judged.

A rule is switched off by replacing one name of one module, or one value of the policy; the product has no switch for
it. A cell: verdicts that change, as `with it>without it: how many` (B(LOCK), P(ASS), I(NCONCLUSIVE)). `--tests` counts
the tests of tests/gates that fail without it. A rule that changes nothing in any column has no place in the gate,
unless `KEPT` says what for.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import math
import os
import shlex
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from cases import CASES  # noqa: E402  # the path is set above
from gate_awkward import ALGORITHMS, awkward  # noqa: E402
from gate_freeze import Comparison, comparisons, packed_run  # noqa: E402
from gate_hiding import ways  # noqa: E402
from gate_judges import policy_for, verdict  # noqa: E402
from gate_tables import write_tables  # noqa: E402

from canary_mlflow.files.runs import read_side  # noqa: E402
from canary_mlflow.gates import Policy, Role, Run, Version, comparing, judge, metric_checks  # noqa: E402
from canary_mlflow.gates.evidence import comparability, readings  # noqa: E402
from canary_mlflow.gates.hard import hard_gates  # noqa: E402
from canary_mlflow.gates.model import policy as policies  # noqa: E402
from canary_mlflow.gates.model import records, sides  # noqa: E402
from canary_mlflow.gates.stats import comparisons as tests  # noqa: E402

judging = sys.modules["canary_mlflow.gates.judge"]  # as a name of the package it is the function
MARK = "benchmarks/gate_ablation.py"
NOTHING = 1e-12
CAMPAIGN = ROOT / "benchmarks" / "data" / "campaign.jsonl.gz"
EXPLAINING = ("runs_needed", "smallest_detectable")
"""What only explains a verdict, as do its causes, and takes half of its time."""
COLUMNS = ("real sets", "campaigns", "awkward", "hidden")

Place = tuple[Any, str, Any]
"""An object, the name of what is replaced in it, and what stands there instead."""
Change = Callable[[Policy], Policy]


def resolved(change: Change) -> list[Place]:
    """Every policy changed, once its overlays are applied."""
    as_it_is = Policy.resolve
    return [(Policy, "resolve", lambda self, facts: change(as_it_is(self, facts)))]


def rules(name: str = "", **values: Any) -> list[Place]:
    """The rule of that name, or all rules, with these values."""
    return resolved(
        lambda policy: replace(
            policy, rules=tuple(replace(r, **values) if name in ("", r.name) else r for r in policy.rules)
        )
    )


def without_guards(policy: Policy) -> Policy:
    told = tuple(replace(r, role=Role.ADVISORY) if r.role is Role.GUARD else r for r in policy.rules)
    return replace(policy, rules=told)


def without_overlay(*names: str) -> list[Place]:
    as_it_is = Policy.resolve

    def resolve(self: Policy, facts: Any) -> Policy:
        return as_it_is(replace(self, overlays=tuple(one for one in self.overlays if one.name not in names)), facts)

    return [(Policy, "resolve", resolve)]


def hard(**values: Any) -> list[Place]:
    return resolved(lambda policy: replace(policy, hard=replace(policy.hard, **values)))


def returns(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


def one_way(self: tests.Comparison) -> tuple[float, float]:
    """The error as if both sides were known to have the same spread."""
    return self.error(self.cautious), self.cautious.df


def summary(**values: Any) -> list[Place]:
    each = {name: replace(one, **values) for name, one in records.SUMMARIES.items()}
    return [(module, "SUMMARIES", each) for module in (readings, metric_checks)]


SWITCHES: dict[str, list[Place]] = {
    # The test.
    "the median of pairs of runs": [(tests, "BY_MEANS", 1.0), (tests, "BY_MEDIAN", NOTHING)],
    "the moderated t of the means": [(tests, "BY_MEANS", NOTHING), (tests, "BY_MEDIAN", 1.0)],
    "that noisy runs count in the median's error": [(tests, "_usual", returns(0.0))],
    "the prior": [(policies, "SHIPPED_DF", NOTHING)],
    "that a prior gives way": [(tests, "TOLD", math.inf)],
    "that PASS takes noisier runs at their word": [(tests, "cautious", tests.moderate)],
    "sides that spread differently (Welch)": [(tests.Comparison, "_of_pass", one_way)],
    "weights": rules(weight=1.0),
    # Which runs are compared with which.
    "pairs by seed": [(comparing, "PAIRS", 10**9)],
    "that two seeds are no pairs": [(comparing, "PAIRS", 2)],
    "runs of one seed count as one": [(comparing, "_apart", lambda _, given: [[one] for one in given])],
    "that identity reaches to other seeds": [
        (
            comparing,
            "_same_code",
            lambda _, __, left, right: (
                comparing._identical(left, right) and {r.seed for r in right} <= {r.seed for r in left}
            ),
        )
    ],
    "identity": [(comparing, "_same_code", returns(False))],
    "that identity asks for equal losses": [(comparing, "_same_training", returns(True))],
    "runs again under another name": [(sides, "_copies", returns({}))],
    "runs that broke off": [(sides.Side, "broken_off", ())],
    # Series that do not compare.
    "runs of other parts": [(comparing, "incomparable", returns(""))],
    "... evaluations after other numbers of steps": [(comparability, "_other_end", returns(""))],
    "... points at other steps": [(comparability, "_other_part", returns(""))],
    "... only of a series that changes on the way": [(comparability, "_changes", returns(True))],
    "... up to the end that all share": [(comparing, "up_to_shared_end", returns(None))],
    "... unless the whole runs end worse": [(comparing, "_ends_alike", returns(True))],
    "... or lie at the same rollouts": [(Run, "updates", math.nan)],
    "... runs too short to give a number": [(comparing, "unread", returns([]))],
    "sparse series": [(readings, "points", lambda policy, series: (policy.warmup_steps, policy.min_steps))],
    "tails and drifts of short runs are advice": summary(decides_from=0),
    # Numbers that are not believed.
    "too far apart to be believed": [(comparing, "implausible", returns(""))],
    "... a run far off its side": [(comparability, "_odd_one", returns(""))],
    "... too good": [(comparability, "TOO_GOOD", math.inf)],
    "... bytes for MiB": [(comparability, "MOST_MIB", math.inf)],
    "... percents for shares": [(comparability, "_percent", returns(""))],
    "... a loss that vanished": [(comparability, "_vanished", returns(""))],
    "... a clock that stands": [(comparability, "_standing_clock", returns(""))],
    "limits of other rewards": [(readings, "_share_of_scores", returns(1.0))],
    "... a loss on another scale": [(comparability, "_other_scale", returns(""))],
    "gains that nothing explains": [(metric_checks, "_too_good", returns(None))],
    "a share of what training gained": rules(gain=None),
    "rewards added up alike": [(comparing, "weighed_alike", lambda _, left, right: (left, right, ()))],
    "metrics that mean another thing": [(comparing, "_means_otherwise", returns(None))],
    # Clocks.
    "what may have slowed it down": [(comparing, "excuse", returns(""))],
    "the first steps' set-up": [(records, "SET_UP", math.inf)],
    "contended CPUs": resolved(lambda policy: replace(policy, validity=replace(policy.validity, sentinel_rise=None))),
    # Checks without a baseline.
    "completed": hard(completed=False),
    "nonfinite": hard(nonfinite=False),
    "... fp16's first overflows": [(hard_gates, "scale_search", returns(frozenset()))],
    "divergence": hard(divergence=False),
    "learned": hard(learned=False),
    "invariants": hard(invariants=False),
    "watch": hard(watch=False),
    "failures that the baseline shares": [(hard_gates, "_clearly_more", returns(True))],
    "... unless the candidate's fail more often": [(hard_gates, "_clearly_more", returns(False))],
    "crashes by the code": [(hard_gates, "crashes", returns(()))],
    "interrupted runs' rows": [(sides.Side, "interrupted", ())],
    "facts": hard(facts=False),
    # Rules and overlays of the shipped policies.
    "guards": resolved(without_guards),
    **{
        f"... {name}": rules(name, role=Role.IGNORE)
        for name in ("run_time", "run_cost", "step_cost_growth", "memory_growth", "eval_accuracy", "kl")
    },
    "step_time_tail": rules("step_time_tail", role=Role.IGNORE),
    "step_time_drift": rules("step_time_drift", role=Role.IGNORE),
    "headroom": rules(headroom=None),
    "must_have": rules(must_have=False),
    "cost in kernels on a CPU": without_overlay("cpu", "work_cpu", "iteration_cpu"),
    "cost of a token where work changed": without_overlay("work", "work_cpu"),
    "time of an iteration": without_overlay("iteration", "iteration_cpu"),
}
"""Each rule with what is replaced for it to be off. `...`: a part of the rule above it."""


KEPT = {
    **dict.fromkeys(
        ("pairs by seed", "that identity reaches to other seeds", "identity", "that identity asks for equal losses"),
        "the same seeds on both sides, as in the first two sessions of anybody; no set has them",
    ),
    "... a loss on another scale": "a sum for a mean where nothing was evaluated: INCONCLUSIVE, not BLOCK",
    "what may have slowed it down": "a crowded machine; no campaign recorded how long steps stood in line",
    "contended CPUs": "the same, by the clock",
    "... unless the candidate's fail more often": "3 of 3 failing runs against 1 of 3 are harm",
    "headroom": "a GPU that is nearly full; no set has one",
    "facts": "the same faults where no metric shows them yet: campaigns keep no facts",
}
"""Rules without effect in any column → what they guard against that no column has."""


@contextlib.contextmanager
def switched_off(name: str) -> Iterator[None]:
    """Run the gate without a rule inside a `with`."""
    with contextlib.ExitStack() as stack:
        for owner, attribute, value in SWITCHES[name]:
            stack.enter_context(patch.object(owner, attribute, value))
        yield


def of_campaign(file: Path = CAMPAIGN) -> Iterator[Comparison]:
    """Each session of a campaign beside its champion's."""
    with gzip.open(file, "rt") as lines:
        records = [json.loads(line) for line in lines]
    runs = [
        [packed_run(f"{number} {i}", run) for i, run in enumerate(one["runs"])] for number, one in enumerate(records)
    ]
    champions = {
        (one["algo"], one["load"], one["number"] % 5): made
        for one, made in zip(records, runs, strict=True)
        if one["kind"] == "baseline" and one["code"] == 0
    }
    for one, made in zip(records, runs, strict=True):
        beside = [champions.get((one["algo"], load, one["baseline"])) for load in (one["load"], "quiet")]
        left = next(filter(None, beside), None)
        if left and one["baseline"] is not None:
            yield f"campaign {'unchanged' if one['kind'] == 'unchanged' else 'faults'}", "smoke", left, made


def of_campaigns() -> Iterator[Comparison]:
    for file in sorted(CAMPAIGN.parent.glob("campaign*.jsonl.gz")):
        yield from of_campaign(file)


def of_awkward() -> Iterator[Comparison]:
    """Each slip in an unchanged session of each algorithm."""
    quiet = [one for one in of_campaign() if one[0] == "campaign unchanged"]
    for algo in ALGORITHMS:
        _, tier, left, right = next(one for one in quiet if one[3][0].workload["algo"] == algo)
        for slip, before, now in awkward(left, right):
            yield slip, tier, before, now


def of_hidden() -> Iterator[Comparison]:
    """Each faulty session, with each thing left out."""
    for file in (CAMPAIGN, CAMPAIGN.with_name("campaign-others.jsonl.gz")):
        for name, tier, left, right in of_campaign(file):
            if name == "campaign faults":
                for way, runs in ways(right):
                    yield way, tier, left, runs


def of_cases(folder: Path) -> Iterator[Comparison]:
    """The files that benchmarks/cases.py has judged, read as `canary judge` reads them."""
    for case in CASES:
        words = shlex.split(case.commands[-1])
        if words[:2] == ["canary", "judge"]:
            given = dict(zip(words[2::2], words[3::2], strict=True))
            sides = (
                read_side(sorted((folder / case.group).glob(given[side]))) for side in ("--baseline", "--candidate")
            )
            left, right = (version.runs for version, _ in sides)
            yield f"{case.group}, {given['--policy']}", given["--policy"], left, right


def sets(folder: Path, cases: Path | None, every: int) -> dict[str, list[Comparison]]:
    """The comparisons of each column, of large sets one of `every`."""
    by_set: dict[str, list[Comparison]] = defaultdict(list)
    for one in comparisons(folder):
        by_set[one[0]].append(one)
    return {
        "real sets": [one for each in by_set.values() for one in each[::every]],
        "campaigns": [*of_campaigns()],
        "awkward": [*[*of_awkward()][:: max(1, every // 4)], *(of_cases(cases) if cases else ())],
        "hidden": [*of_hidden()][::every],
    }


def letters(found: dict[str, list[Comparison]]) -> dict[str, dict[str, list[str]]]:
    """Column → set → one letter for each verdict."""
    said: dict[str, dict[str, list[str]]] = {column: defaultdict(list) for column in found}
    with contextlib.ExitStack() as stack:
        stack.enter_context(patch.object(judging, "root_causes", returns(())))
        for name in EXPLAINING:
            stack.enter_context(patch.object(metric_checks, name, returns(None)))
        for column, each in found.items():
            for name, tier, left, right in each:
                said[column][name].append(_letter(column, tier, left, right))
    return said


def _letter(column: str, tier: str, left: Sequence[Run], right: Sequence[Run]) -> str:
    if column == "real sets":
        return str(verdict(left, right, policy_for(tier)).outcome)[0]
    sides = (Version(model="m", version=str(at), runs=tuple(side)) for at, side in enumerate((left, right)))
    return str(judge(policy_for(tier), *sides).outcome)[0]


def moves(before: dict[str, list[str]], now: dict[str, list[str]]) -> dict[str, Counter[str]]:
    """Set → the verdicts that are others, as `with it>without it`."""
    found = {
        name: Counter(f"{a}>{b}" for a, b in zip(before[name], now[name], strict=True) if a != b) for name in before
    }
    return {name: counts for name, counts in found.items() if counts}


def failing(name: str) -> int:
    """How many tests of tests/gates fail without the rule, in a process of their own."""
    read, write = os.pipe()
    if os.fork() == 0:
        import pytest

        failed: list[str] = []

        class Count:
            def pytest_runtest_logreport(self, report: Any) -> None:
                failed.extend([report.nodeid] if report.failed else [])

        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # until this process ends
        with switched_off(name):
            pytest.main(["-q", "-p", "no:cacheprovider", str(ROOT / "tests" / "gates")], plugins=[Count()])
        os.write(write, json.dumps(failed).encode()[:60000])
        os._exit(0)
    os.wait()
    os.close(write)
    with os.fdopen(read) as said:
        found = json.loads(said.read())
    print(name, *found, sep="\n    ", file=sys.stderr)
    return len(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cases", type=Path, help="the folder of benchmarks/cases.py")
    parser.add_argument("--every", type=int, default=12)
    parser.add_argument("--only", nargs="*", choices=list(SWITCHES), default=list(SWITCHES))
    parser.add_argument("--tests", action="store_true", help="count the tests that fail, too: 20 s of CPU each")
    parser.add_argument("--write", type=Path, help="a Markdown file with the two marks")
    asked = parser.parse_args()
    found = sets(asked.folder, asked.cases, asked.every)
    before = letters(found)
    heads = [f"{column} ({len(found[column])})" for column in COLUMNS]
    lines = [f"| without | {' | '.join(heads)} |{' tests that fail |' * asked.tests} kept for |"]
    lines += [f"|---|{'---|' * (len(COLUMNS) + asked.tests + 1)}"]
    result: dict[str, dict[str, dict[str, dict[str, int]]]] = {}
    still: list[str] = []
    for name in asked.only:
        with switched_off(name):
            now = letters(found)
        result[name] = {}
        cells = []
        for column in COLUMNS:
            moved = moves(before[column], now[column])
            result[name][column] = {where: dict(counts) for where, counts in moved.items()}
            cells.append(_cell(moved))
        tested = f" {failing(name)} |" if asked.tests else ""
        row = f"| {name} | {' | '.join(cells)} |{tested} {KEPT.get(name, '')} |"
        print(row, file=sys.stderr, flush=True)
        if any((*cells, tested, name in KEPT)):
            lines.append(row)
        else:
            still.append(name)
    lines += ["", f"Nothing changes without: {', '.join(still)}."] if still else []
    print("\n".join(lines))
    if asked.write:
        write_tables(asked.write, lines, MARK)
    print(json.dumps({"benchmark": "gate ablation", "every": asked.every, **result}))


def _cell(moved: dict[str, Counter[str]]) -> str:
    """The sum over a column's sets; the last line of the output has each set's."""
    return ", ".join(f"{k}: {n}" for k, n in sorted(sum(moved.values(), Counter()).items()))


if __name__ == "__main__":
    main()
