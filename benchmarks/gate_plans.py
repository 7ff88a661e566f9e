"""How often the gate decides, and decides rightly, when it may add runs: whole plans of looks on simulated runs.

    python benchmarks/gate_plans.py [--repeats 300] [--tiers nightly …] [--seed 31] [--seed-share 0.5]
    python benchmarks/gate_plans.py early [--repeats 30] [--tiers perf …]    # looks before a session's end

A champion has five stored runs of an earlier session; the candidate's runs are added look by look as the tier's
policy says (docs/policy.md), to five if it would pass on fewer; on nightly, each has a fresh run of the champion
beside it, that of the first one after the first look. `session`: how far all speeds of a session are from those of
another (SD). `bad hosts`: the share of runs on a host that is 10 % slower; a fresh run is always made on the host of
its run. All sides use the same seeds; `--seed-share`: how much of an evaluation's variance between runs follows from
the seed (0, the hardest: none). A cell: BLOCK of unchanged code / PASS of it / BLOCK at 1.5 margins / PASS at the
margin, in %; the mean number of candidate runs if unchanged. The last line is one JSON object.

`early`: what ends a session of five runs before its end, on the campaign's recorded runs (gate_early.py).
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import gate_early as early  # noqa: E402  # the path is set above
from gate_data import NOISE, STEPS, TWICE, simulated  # noqa: E402
from gate_judges import STEP_LIMIT, policy_for  # noqa: E402

from canary_mlflow.gates import Outcome, Run, Version, judge  # noqa: E402
from canary_mlflow.gates.model.policy import FreshBaseline, Policy  # noqa: E402
from canary_mlflow.gates.top_up import TopUp, next_look  # noqa: E402

STORED = 5
BAD_HOST = math.log(1.1)
HARM = {"unchanged": 0.0, "at the margin": 1.0, "1.5 margins": 1.5}  # margins


@dataclass(frozen=True)
class Place:
    """Where runs are made: the noise of a run, the spread between sessions, the share of bad hosts."""

    noise: str
    session: float = 0.0
    bad_hosts: float = 0.0

    def __str__(self) -> str:
        around = f", sessions {100 * self.session:g} %, bad hosts {100 * self.bad_hosts:g} %"
        return self.noise + (around if self.session or self.bad_hosts else "")

    def host(self, rng: np.random.Generator) -> float:
        """How much slower the host of one run is, drawn at random (log)."""
        return BAD_HOST if rng.random() < self.bad_hosts else 0.0


PLACES = (
    *(Place(noise) for noise in NOISE),
    Place("quiet", 0.02, 0.05),
    Place("typical", 0.02, 0.05),
    Place(TWICE),
)


def followed(
    policy: Policy, tier: str, place: Place, harm: float, seed_share: float, rng: np.random.Generator
) -> tuple[str, int]:
    """Follow one plan to its end: (the last outcome, how many candidate runs it took). `harm`: log slowdown."""
    seeds = max(STORED, policy.looks.runs[-1])
    of_seeds = rng.normal(0, 1, seeds) if seed_share else np.zeros(seeds)

    def made(side: str, seed: int, slow: float) -> Run:
        run = simulated(rng, f"{side}{seed}", tier, place.noise, slow, (seed_share, float(of_seeds[seed])))
        return replace(run, seed=seed)

    stored, today = rng.normal(0, place.session, 2) if place.session else (0.0, 0.0)
    baseline = [made("a", seed, stored + place.host(rng)) for seed in range(STORED)]
    candidate: list[Run] = []
    fresh: list[Run] = []
    hosts: list[float] = []
    wanted = policy.looks.fresh_baseline
    beside = wanted is FreshBaseline.ALWAYS or (wanted is FreshBaseline.DIFFERS and place.session > 0)
    step = TopUp(look=1, candidate_runs=policy.looks.runs[0], reason="the first")
    while True:
        while len(candidate) < step.candidate_runs:
            hosts.append(today + place.host(rng))
            candidate.append(made("b", len(candidate), harm + hosts[-1]))
        while beside and step.look != 1 and len(fresh) < len(candidate):
            fresh.append(made("f", len(fresh), hosts[len(fresh)]))
        champion = Version(model="m", version="1", runs=tuple(baseline), fresh=tuple(fresh))
        verdict = judge(policy, champion, Version(model="m", version="2", runs=tuple(candidate)), look=step.look)
        few = verdict.outcome is Outcome.PASS and len(candidate) < STORED
        step = next_look(policy, verdict, fresh=beside, owing=STORED if few else None)
        if step.look is None:
            return str(verdict.outcome), len(candidate)


def measured(tier: str, place: Place, repeats: int, seed: int, seed_share: float) -> dict[str, Any]:
    """Shares of outcomes: effect → outcome. `runs`: the mean number that an unchanged candidate took."""
    policy, found = policy_for(tier), {}
    policy = replace(policy, looks=policy.looks.ending_with(STORED))
    for effect, margins in HARM.items():
        rng = np.random.default_rng([seed, list(STEPS).index(tier), PLACES.index(place)])
        slow = math.log1p(margins * STEP_LIMIT[tier])
        plans = [followed(policy, tier, place, slow, seed_share, rng) for _ in range(repeats)]
        found[effect] = {word: n / repeats for word, n in Counter(word for word, _ in plans).items()}
        if effect == "unchanged":
            runs = float(np.mean([spent for _, spent in plans]))
    return {**found, "runs": runs}


def cell(found: dict[str, Any]) -> str:
    """One cell of the table."""
    asked = (("unchanged", "BLOCK"), ("unchanged", "PASS"), ("1.5 margins", "BLOCK"), ("at the margin", "PASS"))
    shares = " / ".join(f"{100 * found[effect].get(word, 0.0):.1f}" for effect, word in asked)
    return f"{shares}; {found['runs']:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("act", nargs="?", choices=("plans", "early"), default="plans")
    parser.add_argument("--repeats", type=int, default=300)
    parser.add_argument("--seed", type=int, default=31)
    parser.add_argument("--tiers", nargs="*", default=list(STEPS), choices=list(STEPS))
    places = [str(place) for place in PLACES]
    parser.add_argument("--places", nargs="*", default=places, choices=places, help="rows of the table")
    parser.add_argument("--seed-share", type=float, default=0.0)
    asked = parser.parse_args()
    if asked.act == "early":
        early.show(asked.tiers, asked.repeats, asked.seed)
        return
    print(f"| with top-up ({asked.repeats} repeats) | {' | '.join(asked.tiers)} |")
    print("|---" * (len(asked.tiers) + 1) + "|")
    found: dict[str, dict[str, Any]] = {}
    for place in (place for place in PLACES if str(place) in asked.places):
        found[str(place)] = {
            tier: measured(tier, place, asked.repeats, asked.seed, asked.seed_share) for tier in asked.tiers
        }
        print(f"| {place} | {' | '.join(cell(one) for one in found[str(place)].values())} |", flush=True)
    print(json.dumps({"benchmark": "gate plans", "repeats": asked.repeats, "seed": asked.seed, **found}))


if __name__ == "__main__":
    main()
