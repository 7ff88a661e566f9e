"""What a reader should know about the runs of a comparison besides the checks: one sentence each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from operator import attrgetter
from statistics import median

from canary_mlflow.gates.evidence.clocks import LONGER, Pairs
from canary_mlflow.gates.facts.check import with_fresh
from canary_mlflow.gates.facts.exact import not_compared
from canary_mlflow.gates.model.metrics import metrics_with
from canary_mlflow.gates.model.policy import Policy
from canary_mlflow.gates.model.records import Run
from canary_mlflow.gates.model.sides import Side, same_values, values_of_both
from canary_mlflow.gates.model.verdict import Check
from canary_mlflow.gates.model.wording import counted, listed, together

USUAL_FACTS = frozenset({"algo", "backend", "bound", "device", "model", "paradigm", "tier"})
"""Facts that overlays may ask for even if the runs of a comparison do not record them."""
UNCOUNTED = "of that, outside_time counts what the CPU computed"
"""How the notes end on costs that no check knows of."""
CLOCK = "clock not usable"
"""How the notes on runs begin whose clock does not count."""
OTHER_POLICY = "policy changed since"
"""How the note begins that says what was asked of the champion and is not asked any more."""
_LOSSES = metrics_with("training_loss")


def notes(baseline: Side, candidate: Side, pairs: Pairs) -> tuple[str, ...]:
    """Notes on the runs' data, on runs left out, on runs whose clock does not count, and on what was compared in
    pairs."""
    return (
        *dict.fromkeys(run.note for run in (*baseline.evidence, *candidate.evidence) if run.note),
        *(f"left out of the baseline: {reason}" for reason in baseline.left_out),
        *(f"left out of the candidate: {reason}" for reason in candidate.left_out),
        *_as_one("baseline", baseline.finished),
        *_as_one("candidate", candidate.finished),
        *_clocks(baseline.finished, candidate.finished, pairs),
        *_pauses(baseline.finished, candidate.finished),
        *_pairs(pairs),
        *_rows_alone(baseline.evidence, candidate.evidence),
        *filter(None, [not_compared(with_fresh(baseline.evidence, pairs.fresh), candidate.evidence)]),
    )


def unsaid(policy: Policy, facts: Mapping[str, str]) -> Iterator[str]:
    """Overlays that ask for a fact that these runs do not record, and no trainer is known to: most likely a typo, with
    which the overlay never applies."""
    for overlay in policy.overlays:
        others = {key: values for key, values in overlay.when.items() if key not in ("backend", "bound")}
        if len(others) < len(overlay.when) and "backend" not in facts and replace(overlay, when=others).holds(facts):
            yield f"overlay '{overlay.name}' is left out: these runs do not say their hardware.backend, such as cpu"
        for key in sorted(overlay.when.keys() - facts.keys() - USUAL_FACTS):
            alike = get_close_matches(key, sorted({*facts, *USUAL_FACTS}), n=1)
            instead = f"; '{alike[0]}' is a fact" if alike else ""
            yield f"overlay '{overlay.name}' looks at '{key}', of which these runs say nothing{instead}"


def of_checks(checks: Iterable[Check]) -> tuple[str, ...]:
    """What checks note about their data: each note once, with the metrics it is about."""
    metrics: dict[str, list[str]] = {}
    for check in checks:
        for note in check.notes:
            metrics.setdefault(note, []).append(check.metric)
    return tuple(f"{note} ({listed(names, most=6)})" for note, names in metrics.items())


def _as_one(side: str, finished: Sequence[Run]) -> Iterator[str]:
    """The runs of a side that repeat one training although their seeds differ, or are not known."""
    alike: dict[tuple[bytes, ...], list[Run]] = {}
    for run in finished:
        held = [run.series[name] for name in _LOSSES if name in run.series and run.series[name].varies]
        alike.setdefault(tuple(part.tobytes() for one in held for part in (one.steps, one.values)), []).append(run)
    for losses, same in alike.items():
        seeds = {run.seed for run in same}
        if losses and len(same) > 1 and (None in seeds or len(seeds) > 1):
            who = together(run.called for run in same)
            yield (
                f"{counted(len(same), f'{side} run')} have the same loss at every step ({who}): in what they learned "
                "they are one run; see that the training uses its seed"
            )


def _rows_alone(baseline: Sequence[Run], candidate: Sequence[Run]) -> Iterator[str]:
    """Data of which the baseline only says how many rows they are, and the candidate which."""
    for key, here, there in values_of_both(baseline, candidate, attrgetter("workload")):
        if here != there and same_values(key, here, there):
            yield f"{key}: the baseline says how many rows, not which, so whether they are the same is not known"


def _clocks(baseline: Sequence[Run], candidate: Sequence[Run], pairs: Pairs) -> Iterator[str]:
    """How many runs were contended, which they are, and what one of them did."""
    sides = (("baseline", baseline), ("fresh baseline", pairs.used), ("candidate", candidate))
    everyone = {run.run_id: run for _, side in sides for run in side}
    slow = [run_id for run_id in everyone if run_id in pairs.invalid]
    named = [(name, together(r.called for r in side if r.run_id in slow)) for name, side in sides]
    who = "; ".join(f"{name} {runs}" for name, runs in named if runs)
    if slow:
        said = f"{who}: {'one' if len(slow) > 1 else 'it'} {pairs.invalid[slow[0]]}"
        yield f"{CLOCK}: {len(slow)} of {len(everyone)} runs contended ({said})"


def _pauses(baseline: Sequence[Run], candidate: Sequence[Run]) -> Iterator[str]:
    """That no clock counts what the candidate does between its steps, if that has become more."""
    shares = [median(found) for side in (baseline, candidate) if (found := [*_paused(side)])]
    if len(shares) == 2 and shares[1] > shares[0] + LONGER:
        before, now = (f"{100 * share:.0f} %" for share in shares)
        yield (
            f"{now} of the candidate's time went by between its steps (evaluating, saving, or left out by the script), "
            f"{before} of the baseline's: {UNCOUNTED}"
        )


def _paused(side: Sequence[Run]) -> Iterator[float]:
    """Each run's share of time between its steps, of those that note it: versions of the callback that say nothing of
    what they left out note none."""
    for run in side:
        steps, pauses = (float(run.finite(name).sum()) for name in ("step_time", "pause_time"))
        if steps + pauses > 0 and len(run.finite("outside_time")):
            yield pauses / (steps + pauses)


def _pairs(pairs: Pairs) -> Iterator[str]:
    if not pairs.fresh:
        return
    if pairs:
        seeds = listed([str(run.seed) for run in pairs.candidate], most=10)
        yield f"speed is judged in pairs, with fresh runs of the baseline beside the candidate's (seeds {seeds})"
        if pairs.unpaired:
            yield f"not judged by speed, for want of a fresh run beside: {listed(pairs.unpaired, most=10)}"
    else:
        made = f"{counted(len(pairs.fresh), 'fresh run')} of the baseline"
        yield f"{made} left out, with fewer than two valid pairs: judged by the stored runs alone"
    for reason in pairs.left_out:
        yield f"left out of the fresh baseline: {reason}"
