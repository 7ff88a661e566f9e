"""What each special rule of the gate is worth: the verdicts that change without it, for each set of real runs.

    python benchmarks/gate_ablation.py FOLDER [--every 6] [--only NAME …] [--tests] [--write docs/gate-made.md]

FOLDER holds aa/ and perf/; the sets are those of benchmarks/gate_freeze.py, of which every sixth comparison is judged,
and each session of benchmarks/campaign.jsonl.gz beside the champion's that it was judged against (faults: made beside
other work, against the quiet champion of the same number). A rule is switched off by replacing one name of one module,
or one value of the policy; the product has no switch for it. A cell: verdicts that change, as `with it>without it: how
many` (B(LOCK), P(ASS), I(NCONCLUSIVE)). `--tests` counts the tests of tests/gates that fail without it. A rule that
changes nothing anywhere has no place in the gate.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import math
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from gate_freeze import Comparison, comparisons, packed_run  # noqa: E402  # the path is set above
from gate_judges import policy_for, verdict  # noqa: E402
from gate_tables import write_tables  # noqa: E402

from gates import Policy, Role, metric_checks, metric_comparison  # noqa: E402
from gates.evidence import clocks, comparability, matching, plausibility, readings  # noqa: E402
from gates.hard import hard_gates  # noqa: E402
from gates.model import policy as policies  # noqa: E402
from gates.model import sides, summaries  # noqa: E402
from gates.stats import comparisons as tests  # noqa: E402

MARK = "benchmarks/gate_ablation.py"
NOTHING = 1e-12
CAMPAIGN = ROOT / "benchmarks" / "campaign.jsonl.gz"

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
    each = {name: replace(one, **values) for name, one in summaries.SUMMARIES.items()}
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
    "pairs by seed": [(matching, "PAIRS", 10**9)],
    "that two seeds are no pairs": [(matching, "PAIRS", 2)],
    "runs of one seed count as one": [(matching, "apart", lambda _, scale, given: scale.harms(given))],
    "identity": [(metric_comparison, "same_code", returns(False))],
    "that identity asks for equal losses": [(metric_comparison, "same_training", returns(True))],
    "runs again under another name": [(sides, "_copies", returns({}))],
    "runs that broke off": [(sides.Side, "broken_off", ())],
    # Series that do not compare.
    "runs of other parts": [(metric_comparison, "incomparable", returns(""))],
    "... evaluations after other numbers of steps": [(comparability, "_other_end", returns(""))],
    "... points at other steps": [(comparability, "_other_part", returns(""))],
    "... only of a series that changes on the way": [(comparability, "_changes", returns(True))],
    "... up to the end that all share": [(metric_comparison, "up_to_shared_end", returns(None))],
    "... runs too short to give a number": [(metric_comparison, "unread", returns([]))],
    "sparse series": [(readings, "points", lambda policy, series: (policy.warmup_steps, policy.min_steps))],
    "tails and drifts of short runs are advice": summary(decides_from=0),
    # Numbers that are not believed.
    "too far apart to be believed": [(metric_comparison, "implausible", returns(""))],
    "... a run far off its side": [(plausibility, "_odd_one", returns(""))],
    "... too good": [(plausibility, "TOO_GOOD", math.inf)],
    "... bytes for MiB": [(plausibility, "_bytes", returns(""))],
    "... percents for shares": [(plausibility, "_percent", returns(""))],
    "... a loss that vanished": [(plausibility, "_vanished", returns(""))],
    "... a clock that stands": [(plausibility, "_standing_clock", returns(""))],
    "limits of other rewards": [(readings, "_reached", returns(math.inf))],
    # Clocks.
    "throttled GPUs": [(clocks, "CLOCK_SHARE", 0.0)],
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


def letters(found: list[Comparison]) -> dict[str, list[str]]:
    said: dict[str, list[str]] = defaultdict(list)
    for name, tier, left, right in found:
        said[name].append(str(verdict(left, right, policy_for(tier)).outcome)[0])
    return said


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
    parser.add_argument("--every", type=int, default=6)
    parser.add_argument("--only", nargs="*", choices=list(SWITCHES), default=list(SWITCHES))
    parser.add_argument("--tests", action="store_true", help="count the tests that fail, too: 20 s of CPU each")
    parser.add_argument("--write", type=Path, help="a Markdown file with the two marks")
    asked = parser.parse_args()
    by_set: dict[str, list[Comparison]] = defaultdict(list)
    for one in comparisons(asked.folder):
        by_set[one[0]].append(one)
    found = [one for each in by_set.values() for one in each[:: asked.every]] + list(of_campaign())
    before = letters(found)
    lines = [f"| without ({len(found)} comparisons) | what changes |{' tests that fail |' * asked.tests}"]
    lines += [f"|---|---|{'---|' * asked.tests}"]
    result: dict[str, dict[str, dict[str, int]]] = {}
    for name in asked.only:
        with switched_off(name):
            now = letters(found)
        moved = {
            where: Counter(f"{a}>{b}" for a, b in zip(before[where], now[where], strict=True) if a != b)
            for where in before
        }
        result[name] = {where: dict(counts) for where, counts in moved.items() if counts}
        cells = [f"{where} {', '.join(f'{k}: {n}' for k, n in c.items())}" for where, c in result[name].items()]
        tested = f" {failing(name)} |" if asked.tests else ""
        lines.append(f"| {name} | {'; '.join(cells) or 'nothing'} |{tested}")
        print(lines[-1], file=sys.stderr, flush=True)
    print("\n".join(lines))
    if asked.write:
        write_tables(asked.write, lines, MARK)
    print(json.dumps({"benchmark": "gate ablation", "every": asked.every, **result}))


if __name__ == "__main__":
    main()
