"""What each special rule of the gate is worth: the verdicts that change without it, for each set of real runs.

    python benchmarks/gate_ablation.py FOLDER [--every 6] [--only NAME …] [--write docs/gate-made.md]

FOLDER holds aa/ and perf/; the sets are those of benchmarks/gate_freeze.py, of which every sixth comparison is judged.
A rule is switched off by replacing one name of one module, or one value of the policy; the product has no switch for
it. A cell: verdicts that change, as `with it>without it: how many` (B(LOCK), P(ASS), I(NCONCLUSIVE)). A rule that
changes nothing anywhere has no place in the gate.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from gate_freeze import Comparison, comparisons  # noqa: E402  # the path is set above
from gate_judges import policy_for, verdict  # noqa: E402
from gate_tables import write_tables  # noqa: E402

from gates import Policy, Role, weighing  # noqa: E402
from gates.evidence import matching, testability  # noqa: E402
from gates.stats import comparisons as tests  # noqa: E402
from gates.stats import spreads  # noqa: E402

MARK = "benchmarks/gate_ablation.py"
NOTHING = 1e-12

Change = Callable[[Policy], Policy]


def same(policy: Policy) -> Policy:
    return policy


def rules(**values: Any) -> Change:
    return lambda policy: replace(policy, rules=tuple(replace(rule, **values) for rule in policy.rules))


def without_guards(policy: Policy) -> Policy:
    """The policy with guards that only warn, including those of overlays."""
    told = tuple(replace(r, role=Role.ADVISORY) if r.role is Role.GUARD else r for r in policy.rules)
    overlays = tuple(
        replace(
            each,
            rules={
                name: {**change, "role": Role.ADVISORY} if change.get("role") is Role.GUARD else change
                for name, change in each.rules.items()
            },
        )
        for each in policy.overlays
    )
    return replace(policy, rules=told, overlays=overlays)


def without_hard(name: str) -> Change:
    return lambda policy: replace(policy, hard=replace(policy.hard, **{name: False}))


def nothing(*_: object) -> str:
    return ""


def never(*_: object) -> bool:
    return False


def one_way(self: tests.Comparison) -> list[tuple[float, float]]:
    """The error as if both sides were known to have the same spread."""
    return [(self.error(self.cautious), self.cautious.df)]


SWITCHES: dict[str, tuple[list[tuple[Any, str, Any]], Change]] = {
    "the median of pairs of runs": ([(tests, "BY_MEANS", 1.0), (tests, "BY_MEDIAN", NOTHING)], same),
    "the moderated t of the means": ([(tests, "BY_MEANS", NOTHING), (tests, "BY_MEDIAN", 1.0)], same),
    "that noisy runs count in the median's error": ([(tests, "_usual", lambda _: 0.0)], same),
    "the prior": ([], lambda policy: replace(policy, prior_df=NOTHING)),
    "that a prior gives way": ([(spreads, "TOLD", math.inf)], same),
    "that PASS takes noisier runs at their word": ([(tests, "cautious", spreads.moderate)], same),
    "sides that spread differently (Welch)": ([(tests.Comparison, "_ways", one_way)], same),
    "weights": ([], rules(weight=1.0)),
    "pairs by seed": ([(matching, "PAIRS", 10**9)], same),
    "identity": ([(weighing, "same_code", never)], same),
    "guards": ([], without_guards),
    "too far apart to be believed": ([(testability, "implausible", nothing)], same),
    "runs of other parts": ([(testability, "incomparable", nothing)], same),
    "divergence": ([], without_hard("divergence")),
    "learned": ([], without_hard("learned")),
}
"""Each rule with what is replaced for it to be off, and what becomes of the policy."""


@contextlib.contextmanager
def switched_off(name: str) -> Iterator[Change]:
    """Run the gate without a rule inside a `with`; yields the change to a policy."""
    places, change = SWITCHES[name]
    with contextlib.ExitStack() as stack:
        for module, attribute, value in places:
            stack.enter_context(patch.object(module, attribute, value))
        yield change


def letters(found: list[Comparison], change: Change = same) -> dict[str, list[str]]:
    said: dict[str, list[str]] = defaultdict(list)
    for name, tier, left, right in found:
        said[name].append(str(verdict(left, right, change(policy_for(tier))).outcome)[0])
    return said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--every", type=int, default=6)
    parser.add_argument("--only", nargs="*", choices=list(SWITCHES), default=list(SWITCHES))
    parser.add_argument("--write", type=Path, help="a Markdown file with the two marks")
    asked = parser.parse_args()
    by_set: dict[str, list[Comparison]] = defaultdict(list)
    for one in comparisons(asked.folder):
        by_set[one[0]].append(one)
    found = [one for each in by_set.values() for one in each[:: asked.every]]
    before = letters(found)
    lines = [f"| without ({len(found)} comparisons) | what changes |", "|---|---|"]
    result: dict[str, dict[str, dict[str, int]]] = {}
    for name in asked.only:
        with switched_off(name) as change:
            now = letters(found, change)
        moved = {
            where: Counter(f"{a}>{b}" for a, b in zip(before[where], now[where], strict=True) if a != b)
            for where in before
        }
        result[name] = {where: dict(counts) for where, counts in moved.items() if counts}
        cells = [f"{where} {', '.join(f'{k}: {n}' for k, n in c.items())}" for where, c in result[name].items()]
        lines.append(f"| {name} | {'; '.join(cells) or 'nothing'} |")
        print(lines[-1], file=sys.stderr, flush=True)
    print("\n".join(lines))
    if asked.write:
        write_tables(asked.write, lines, MARK)
    print(json.dumps({"benchmark": "gate ablation", "every": asked.every, **result}))


if __name__ == "__main__":
    main()
