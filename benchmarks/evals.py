"""How often rules for benchmark results block and pass: the gate's own, and those of other tools, on simulated items.

    python benchmarks/evals.py [--repeats 10000] [--only items|rare|suite|seeds|canary]

Every rule gets the same data. A cell: BLOCK of unchanged weights / PASS of unchanged / PASS at the limit / BLOCK at two
limits, in %. `break` and `mend`: how often an answer changes without any harm. The other rules are written here after
their tools' code: `nel gate` and `nel compare` of NeMo Evaluator, lm-eval's model_comparator (unpaired z), a bootstrap
interval of the mean (500 repeats), and a bare limit. `canary`: the held-out pairs of real canaries (canary-items.json),
whose accuracy each seed has as a metric already. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from canary_mlflow.gates.evals.pairing import Paired  # the path is set above
from canary_mlflow.gates.evals.rule import Harms, Seeds, against, seed_means, seeds_of
from canary_mlflow.gates.evals.suite import Compared, suite_test
from canary_mlflow.gates.model.rules import SHIPPED_DF, Prior, Role
from canary_mlflow.gates.stats.comparisons import compare

LEVEL, PASSING, LIMIT, PRIOR = 0.01, 0.05, 0.02, 0.01
CHUNK = 1000  # repeats that are in memory at once
Answer = tuple[Any, Any]  # PASS and BLOCK of each repeat


def harms_of(row: np.ndarray, groups: np.ndarray, resolution: float) -> Harms:
    return Harms(harms=row, groups=groups, short=np.zeros(len(row)), stakes=np.zeros(len(row)), resolution=resolution)


def ours(h: np.ndarray, limit: float, *, resolution: float = 1.0, level: float = LEVEL, seeds: Any = None) -> Answer:
    """The product's own rule, repeat by repeat. h: repeats x groups x items."""
    groups, passed, blocked = np.repeat(np.arange(h.shape[1]), h.shape[2]), [], []
    for at, row in enumerate(h.reshape(len(h), -1)):
        test = against(harms_of(row, groups, resolution), limit, seeds[at] if seeds else Seeds())
        passed.append(test.p_noninferior <= PASSING)
        blocked.append(not passed[-1] and test.p_harm <= level)
    return np.array(passed), np.array(blocked)


def means(h: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    flat = h.reshape(len(h), -1)
    return flat.mean(1), flat.var(1, ddof=1) / flat.shape[1], flat.shape[1]


def nel_gate(h: np.ndarray, limit: float, base: np.ndarray | None = None) -> Answer:
    """95 % two-sided interval; clustered with z where there are groups; `base`: its relative limit."""
    mean, variance, n = means(h)
    half = stats.t.ppf(0.975, n - 1) * np.sqrt(variance)
    if h.shape[2] > 1:
        sums = (h - mean[:, None, None]).sum(2)
        half = 1.96 * np.sqrt(h.shape[1] / (h.shape[1] - 1) * (sums**2).sum(1)) / n
    passed, breach = mean + half <= limit, mean - half > limit
    if base is not None:
        relative = (mean > 0) & (mean / np.maximum(base, 1e-9) > 0.02) & (base < 0.2) & (base > 0)
        passed, breach = passed & ~relative, breach | relative
    return passed & ~breach, breach


def mcnemar(h: np.ndarray, limit: float) -> Answer:
    flat = h.reshape(len(h), -1)
    broke, mended = (flat > 0).sum(1), (flat < 0).sum(1)
    odd = broke + mended
    p = np.where(odd == 0, 1.0, stats.binom.sf(broke - 1, np.maximum(odd, 1), 0.5))
    block = (p < 0.05) & (np.abs(flat.mean(1)) > limit) & (broke > mended)
    weak = 2.8 / np.sqrt(np.maximum(odd, 1)) > 2 * limit
    return (odd == 0) | (~block & (p >= 0.05) & ~weak), block


def unpaired(h: np.ndarray, limit: float, base: float = 0.7) -> Answer:
    mean, _, n = means(h)
    now = np.clip(base - mean, 0.001, 0.999)
    z = mean / np.sqrt((base * (1 - base) + now * (1 - now)) / n)
    return z < 1.96, z >= 1.96


def bootstrap(h: np.ndarray, limit: float) -> Answer:
    rng, passed, blocked = np.random.default_rng(3), [], []
    for row in h.reshape(len(h), -1):
        values, counts = np.unique(row, return_counts=True)
        drawn = rng.multinomial(len(row), counts / len(row), 400) @ values / len(row)
        low, high = np.quantile(drawn, [0.025, 0.975])
        passed.append(high < limit)
        blocked.append(low > limit)
    return np.array(passed), np.array(blocked)


def bare(h: np.ndarray, limit: float) -> Answer:
    mean = h.mean((1, 2))
    return mean <= limit, mean > limit


def items(rng: np.random.Generator, repeats: int, n: int, groups: int, flip: float, harm: float, spread: float) -> Any:
    """Each item breaks with flip + harm and is mended with flip; whole groups are shifted by `spread` (SD)."""
    shift = spread * rng.standard_normal((repeats, groups, 1))
    draw = rng.random((repeats, groups, n // groups))
    up = np.clip(flip + harm + np.maximum(shift, 0), 0, 1)
    down = np.clip(flip + np.maximum(-shift, 0), 0, 1)
    return np.where(draw < up, 1.0, np.where(draw > 1 - down, -1.0, 0.0))


RULES: dict[str, Callable[..., Answer]] = {
    "the gate's": ours,
    "nel gate": nel_gate,
    "nel compare (McNemar)": mcnemar,
    "unpaired z": unpaired,
    "bootstrap interval": bootstrap,
    "bare drop": bare,
}
CASES = {
    "164 items": (164, 164, 0.04, 0.0),
    "500": (500, 500, 0.04, 0.0),
    "1,319": (1319, 1319, 0.04, 0.0),
    "2,000 in 200 groups": (2000, 200, 0.04, 0.08),
    "300, only breaks": (300, 300, 0.0, 0.0),
    "300, 0.5 % flips": (300, 300, 0.005, 0.0),
}


def chunks(repeats: int) -> Iterator[int]:
    while repeats > 0:
        yield min(CHUNK, repeats)
        repeats -= CHUNK


def cell(found: list[Answer]) -> str:
    """Of unchanged, at the limit and at two limits."""
    (passed, blocked), (at_limit, _), (_, twice) = found
    return "/".join(f"{100 * float(np.mean(one)):.2f}" for one in (blocked, passed, at_limit, twice))


def table(title: str, columns: list[str], rows: dict[str, list[str]]) -> dict[str, Any]:
    print(f"\n| {title} | {' | '.join(columns)} |\n|{'---|' * (len(columns) + 1)}")
    for name, cells in rows.items():
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    return {name: dict(zip(columns, cells, strict=True)) for name, cells in rows.items()}


def of_items(repeats: int) -> dict[str, Any]:
    rows: dict[str, list[str]] = {name: [] for name in RULES}
    for at, (n, groups, flip, spread) in enumerate(CASES.values()):
        found: dict[str, list[list[Answer]]] = {name: [[], [], []] for name in RULES}
        rng = np.random.default_rng([7, at])
        for many in chunks(repeats):
            for level in range(3):
                h = items(rng, many, n, groups, flip, level * LIMIT, spread)
                for name, rule in RULES.items():
                    few = name.startswith("bootstrap")
                    if not few or not found[name][level]:
                        found[name][level].append(rule(h[:500] if few else h, LIMIT))
        for name, sides in found.items():
            rows[name].append(cell([tuple(map(np.concatenate, zip(*one, strict=True))) for one in sides]))  # type: ignore[misc]
    return table("limit 2 points", list(CASES), rows)


def of_rare(repeats: int) -> dict[str, Any]:
    """Few, hard items with repeats: 30 items, the baseline right in 10 %, limit 1 point."""
    rows: dict[str, list[str]] = {"the gate's": [], "nel gate with its relative limit": []}
    for repeated in (1, 8, 64):
        rng, found = np.random.default_rng([8, repeated]), []
        for harm in (0.0, 0.01, 0.02):
            right = np.clip(rng.beta(0.06, 0.54, (repeats, 30)), 0.001, 0.999)
            before = rng.binomial(repeated, right) / repeated
            now = rng.binomial(repeated, right * (1 - harm / 0.1)) / repeated
            found.append(((before - now)[:, :, None], before.mean(1)))
        rows["the gate's"].append(cell([ours(h, 0.01, resolution=1 / repeated) for h, _ in found]))
        rows["nel gate with its relative limit"].append(cell([nel_gate(h, 0.01, base=base) for h, base in found]))
    return table("30 items, limit 1 point", ["1 epoch", "8 epochs", "64 epochs"], rows)


def of_suite(repeats: int) -> dict[str, Any]:
    """Eight benchmarks of 500 items: eight gates of 2 points, or the mean as gate (1 point) and eight guards (3)."""
    m, n, rng = 8, 500, np.random.default_rng(9)
    labels = tuple(sorted(f"{at:03}" for at in range(n)))
    groups, none = np.arange(n), np.zeros((1, n))

    def judged(harm: list[float], as_suite: bool) -> tuple[float, float]:
        passed, blocked = 0, 0
        for _ in range(repeats):
            rows = [items(rng, 1, n, n, 0.04, one, 0.0).ravel() for one in harm]
            found = [harms_of(row, groups, 1.0) for row in rows]
            tests = [against(one, 0.03 if as_suite else LIMIT, Seeds()) for one in found]
            share = LEVEL / (m + as_suite)
            if not as_suite:
                outcomes = [(test.p_noninferior <= PASSING, test.p_harm <= share) for test in tests]
                block = any(bad and not good for good, bad in outcomes)
                passed += not block and all(good for good, _ in outcomes)
            else:
                pairs = [Paired(keys=labels, labels=labels, baseline=none, candidate=none, found=one, lost=(),
                                left_out=0)
                         for one in found]  # fmt: skip
                parts = [Compared(name=str(at), role=Role.GUARD, source=str(at), higher=True, in_points=True,
                                  sides=(0.7, 0.7), paired=pairs[at], test=test)
                         for at, test in enumerate(tests)]  # fmt: skip
                mean = suite_test(0.01, parts)
                good = mean.p_noninferior <= PASSING
                likely = any(PASSING >= test.p_harm > share for test in tests)  # which leaves a verdict open
                block = any(test.p_harm <= share < 1 and test.p_noninferior > PASSING for test in tests)
                block |= not good and mean.p_harm <= share
                passed += good and not block and not likely
            blocked += block
        return 100 * passed / repeats, 100 * blocked / repeats

    cases = {
        "unchanged": [0.0] * m,
        "one at the single limit (2)": [0.02] + [0.0] * 7,
        "one at two such limits (4)": [0.04] + [0.0] * 7,
        "all at the mean's limit (1)": [0.01] * m,
        "all at 2": [0.02] * m,
        "one at the guard's limit (3)": [0.03] + [0.0] * 7,
        "one at 6": [0.06] + [0.0] * 7,
    }
    names = {"eight gates of 2 points": False, "suite: mean 1 point, guards 3": True}
    rows = {name: ["{:.1f}/{:.1f}".format(*judged(harm, way)) for harm in cases.values()]
            for name, way in names.items()}  # fmt: skip
    return table("8 benchmarks: PASS / BLOCK", list(cases), rows)


def of_seeds(repeats: int) -> dict[str, Any]:
    """New weights of the same recipe: 1,319 items, seeds with an SD of 0.8 points, 4 % of answers differ by seed."""
    n, sizes = 1319, ((1, 1), (3, 3), (5, 3))
    rows: dict[str, list[str]] = {name: [] for name in ("items alone", "items and seeds", "nel gate")}
    for before, now in sizes:
        rng = np.random.default_rng([10, before])
        found: dict[str, list[list[Answer]]] = {name: [[], [], []] for name in rows}
        for _ in range(max(1, repeats // 100)):
            for level in range(3):
                b, c = sides(rng, 100, n, before, now, level * LIMIT)
                h, fine = (b.mean(1) - c.mean(1))[:, :, None], 1 / max(before, now)
                seeds = [seeds_of([seed_means(x), seed_means(y)], 0.01) for x, y in zip(b, c, strict=True)]
                found["items alone"][level].append(ours(h, LIMIT, resolution=fine))
                found["items and seeds"][level].append(ours(h, LIMIT, resolution=fine, seeds=seeds))
                found["nel gate"][level].append(nel_gate(h, LIMIT))
        for name, sides_of in found.items():
            rows[name].append(cell([tuple(map(np.concatenate, zip(*one, strict=True))) for one in sides_of]))  # type: ignore[misc]
    return table("1,319 items, seed SD 0.8 points", [f"{one} + {other} seeds" for one, other in sizes], rows)


def sides(rng: np.random.Generator, repeats: int, n: int, before: int, now: int, harm: float) -> tuple[Any, Any]:
    right = rng.random((repeats, n)) < 0.7
    return trained(rng, right, before, 0.0), trained(rng, right, now, harm)


def trained(rng: np.random.Generator, right: Any, seeds: int, harm: float) -> Any:
    """The answers of each seed's weights: its luck breaks or mends some, besides those that flip."""
    answers = np.repeat(right[:, None], seeds, 1) ^ (rng.random((len(right), seeds, right.shape[1])) < 0.04)
    luck = harm + 0.008 * rng.standard_normal((len(right), seeds, 1))
    draw, rate = rng.random(answers.shape), np.abs(luck)
    answers = np.where((luck > 0) & answers & (draw < rate / 0.7), False, answers)
    return np.where((luck < 0) & ~answers & (draw < rate / 0.3), True, answers).astype(float)


def of_canary(_: int) -> dict[str, Any]:
    """Three seeds against three of real canaries: by items and seeds, and by the mean of each seed, as `eval_accuracy`
    is judged in every tier."""
    read = json.loads((Path(__file__).parent / "data" / "canary-items.json").read_text())
    unchanged, changed = (np.array([list(map(float, row)) for row in read[name]]) for name in ("unchanged", "lr 1e-4"))
    rows: dict[str, list[str]] = {"items and seeds": [], "the mean of each seed": []}
    limits = (0.02, 0.03, 0.04)
    for limit in limits:
        for name, judged in zip(rows, (by_items, by_means), strict=True):
            threes = [*map(list, itertools.combinations(range(len(unchanged)), 3))]
            apart = [(one, other) for one in threes for other in threes if not {*one} & {*other}]
            same = np.array([judged(unchanged[one], unchanged[other], limit) for one, other in apart])
            harm = np.array([judged(unchanged[one], changed, limit) for one in threes])
            rows[name].append(
                f"{100 * same[:, 1].mean():.1f}/{100 * same[:, 0].mean():.1f}/{100 * harm[:, 1].mean():.1f}"
            )
    return table("3 + 3 real seeds", [f"limit {100 * limit:.0f} points" for limit in limits], rows)


def by_items(before: Any, now: Any, limit: float) -> tuple[bool, bool]:
    seeds = seeds_of([seed_means(before), seed_means(now)], PRIOR)  # the SD of a seed that both ways expect
    found = ours((before.mean(0) - now.mean(0))[None, :, None], limit, resolution=1 / 3, seeds=[seeds])
    return bool(found[0][0]), bool(found[1][0])


def by_means(before: Any, now: Any, limit: float) -> tuple[bool, bool]:
    found = compare(-before.mean(1), -now.mean(1), margin=limit, prior=Prior(sd=PRIOR, df=SHIPPED_DF, kind="shipped"))
    return found.p_noninferior <= PASSING, found.p_harm <= LEVEL


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--repeats", type=int, default=10_000)
    ask.add_argument("--only", choices=("items", "rare", "suite", "seeds", "canary"))
    given = ask.parse_args()
    parts: dict[str, Callable[[int], dict[str, Any]]] = {
        "items": of_items, "rare": of_rare, "suite": of_suite, "seeds": of_seeds, "canary": of_canary,
    }  # fmt: skip
    found = {name: part(given.repeats) for name, part in parts.items() if given.only in (None, name)}
    print(json.dumps({"repeats": given.repeats, **found}))


if __name__ == "__main__":
    main()
