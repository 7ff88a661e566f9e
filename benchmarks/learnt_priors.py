"""What the verdicts would be if spreads came from former champions' sessions, instead of from the policy.

    python benchmarks/learnt_priors.py benchmarks/data/campaign.jsonl.gz benchmarks/data/campaign-others.jsonl.gz

Each of a row's champions stands beside the row's unchanged sessions (every second one also with harm, in margins of the
metric) and beside its faulty ones, once with the policy's priors, and once with priors that `canary calibrate` would
learn from the row's other champions. A cell: BLOCK / PASS in %.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from campaign_tables import ALGOS, COSTS, LOADS, faulty, pairs, read  # noqa: E402  # the path is set above
from root_cause import kept  # noqa: E402

from canary_mlflow.gates import Outcome, Policy, Run, Version, judge  # noqa: E402
from canary_mlflow.gates.calibration import known_priors, spreads  # noqa: E402
from canary_mlflow.gates.model.sides import baseline_side, candidate_side, conditions  # noqa: E402
from canary_mlflow.policies import load_policy  # noqa: E402

SIZES = (1.0, 1.25, 1.5)
SHIPPED = replace(load_policy("smoke"), priors=())
Case = tuple[str, Version, Version, Policy]
"""What is judged, both sides, and the policy with learnt priors."""


def cases(records: list[dict]) -> Iterator[Case]:  # type: ignore[type-arg]
    for algo, load in product(ALGOS, LOADS):
        champions = {left.version: left for left, _ in pairs(records, algo, load)}
        policies = {name: learnt(champions, name) for name in champions}
        for at, (left, right) in enumerate(pairs(records, algo, load)):
            yield "unchanged", left, right, policies[left.version]
            learnt_by = "eval_reward" if "eval_reward" in right.runs[0].series else "eval_loss"
            for name, size in product(("cost", learnt_by) if at % 2 == 0 else (), SIZES):
                yield f"{name}, {size:g} margins", left, worse(right, name, size), policies[left.version]
        for at, one in enumerate(faulty(records) if load == "quiet" else ()):
            if one["algo"] == algo:
                right = Version(model=algo, version=None, runs=tuple(kept(-at, run) for run in one["runs"]))
                for name, left in champions.items():
                    yield "faults", left, right, policies[name]


def learnt(champions: dict[str | None, Version], beside: str | None) -> Policy:
    """The policy with what all champions but the one judged beside tell."""
    others = [version for name, version in champions.items() if name != beside]
    right = candidate_side(others[0].runs)
    resolved = SHIPPED.resolve(conditions(baseline_side(others[1].runs, right), right))
    found = spreads(resolved, [version.runs for version in others])
    return replace(SHIPPED, priors=(known_priors("learnt", {}, found),))


def worse(version: Version, what: str, size: float) -> Version:
    """The version with a metric, or what its steps and iterations cost, worse by `size` margins."""
    names = COSTS if what == "cost" else (what,)
    margins = {rule.name: rule.margin for rule in SHIPPED.rules}

    def changed(run: Run) -> Run:
        held = dict(run.series)
        for name in [name for name in names if name in held]:
            by = size * margins[name]
            values = held[name].values - by if name == "eval_reward" else held[name].values * (1 + by)
            held[name] = replace(held[name], values=values)
        return replace(run, series=held)

    return replace(version, runs=tuple(changed(run) for run in version.runs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    records = [record for path in parser.parse_args().files for record in read(path)]
    said: dict[str, list[tuple[Outcome, Outcome]]] = {}
    for what, left, right, policy in cases(records):
        said.setdefault(what, []).append((judge(SHIPPED, left, right).outcome, judge(policy, left, right).outcome))
    print("| what | verdicts | shipped priors | learnt priors | changed |\n|---|---|---|---|---|")
    for what, outcomes in sorted(said.items()):
        shares = [
            " / ".join(f"{100 * side.count(one) / len(side):.1f}" for one in (Outcome.BLOCK, Outcome.PASS))
            for side in zip(*outcomes, strict=True)
        ]
        moved = Counter(f"{before[0]}>{now[0]}" for before, now in outcomes if before is not now)
        words = ", ".join(f"{move}: {count}" for move, count in sorted(moved.items()))
        print(f"| {what} | {len(outcomes)} | {' | '.join(shares)} | {words} |")


if __name__ == "__main__":
    main()
