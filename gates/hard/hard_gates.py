"""Checks that need no baseline: every run finished, stayed finite, did not diverge, and learned something."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from canary_mlflow.gates.hard.crashes import crashes
from canary_mlflow.gates.model.metrics import metrics_with
from canary_mlflow.gates.model.paradigm import Paradigm, paradigm_of
from canary_mlflow.gates.model.policy import Policy
from canary_mlflow.gates.model.records import WITHIN_NOISE, Run, Values, Version, iqm
from canary_mlflow.gates.model.sides import CRASHES, Side, as_a_candidate
from canary_mlflow.gates.model.verdict import Check, CheckOutcome, ReasonCode, hard_check, open_check
from canary_mlflow.gates.model.wording import counted, figure, listed

_COUNT = "nonfinite"
_NEVER_NAN = metrics_with("never_nan")
OVERFLOWS = 3
"""fp16's loss scaling begins at 2**16 and halves after each overflow, which makes that step's gradient norm infinite
and moves no weight (torch.amp.GradScaler); the watch calls as many benign."""


def _nonfinite(run: Run) -> str:
    benign = scale_search(run)
    where = _first(run, benign)
    if run.nan_steps + run.inf_steps <= len(benign) and not where:
        return ""
    counts = [(run.nan_steps, "NaN"), (run.inf_steps, "Inf")]
    kinds = " and ".join(f"{count} {kind}" for count, kind in counts if count)
    return f"{kinds or 'non-finite'} steps" + (f", first {where}" if where else "")


def scale_search(run: Run) -> frozenset[int]:
    """The first steps of a run at which only the gradient norm is not finite; empty if they are too many, or if the run
    says that it does not train in fp16."""
    norms = run.series.get("grad_norm")
    if norms is None or not norms.finite.any() or run.workload.get("precision", "fp16") != "fp16":
        return frozenset()
    steps = frozenset(int(step) for step in norms.steps[: np.argmax(norms.finite)])
    others = {step for name in _NEVER_NAN if name != "grad_norm" for step in _bad(run, name)}
    return steps if len(steps) <= OVERFLOWS and steps.isdisjoint(others) else frozenset()


def _bad(run: Run, name: str) -> list[int]:
    if name not in run.series:
        return []
    series = run.series[name]
    return [int(step) for step in series.steps[series.values > 0 if name == _COUNT else ~series.finite]]


def _first(run: Run, benign: Collection[int]) -> str:
    """'at step 12 (loss)': the earliest non-finite value, by a count of them or in a metric that is never undefined, of
    several the first of the table: a loss before the gradients that it has."""
    names = (_COUNT, *_NEVER_NAN)
    found = [(step, name == _COUNT, name) for name in names for step in _bad(run, name) if step not in benign]
    if not found:
        return ""
    step, counted, name = min(found, key=lambda one: one[:2])
    return f"at step {step}" + ("" if counted else f" ({name})")


_BROKEN = "broken:"
_CHANCE = 0.25
"""Up to this p-value a candidate fails clearly more often than a baseline that fails too: 3 of 3 against 1 of 3 (0.2),
not 2 of 3 against 1 of 3 (0.5). So high, because neither answer lets anything pass."""
_DOUBT = 0.05
"""The same for what only noise keeps from being seen: 3 of 3 against none of 3, not 2 of 3."""
_UNCLEAR = "no learning beyond its noise"
RISE = 1.5
"""A loss has diverged that ends so many times as high as its lowest level was, if it lost half of what it had gained"""

SIGMAS = 5.0
"""and stands so many standard deviations out of its own noise,"""

REFUTED = 2.0
"""so many times as many where the held-out loss has not risen as far: batches in a row can be hard ones."""

PARTS = 33
"""A level is that of one of so many parts of a run, of ten values at least: of fewer, with small batches, it is luck,
and one part says nothing. The end is the last level, or as many values as a part has, three at least, that are all so
high."""


def hard_checks(policy: Policy, side: Side, baseline: Version | None = None, missing: int = 0) -> tuple[Check, ...]:
    """The hard checks that the policy asks for, over all runs that are evidence. A check that the baseline's runs fail
    just as often tells nothing about the change. `missing`: runs still to come; whatever blocks does so even if they
    are all good."""
    theirs = as_a_candidate(baseline, side)
    checks = []
    for name, rule in _RULES.items():
        if not getattr(policy.hard, name):
            continue
        mine, known = _found(rule, side), _found(rule, theirs)
        if rule.optional and not (mine.problems or mine.fine or known.always):
            continue
        check = _check(name, mine._replace(runs=mine.runs + missing), known)
        checks.append(_unless_broken_off(check, side, baseline) if name == "completed" else check)
    return tuple(checks)


class HardRule(NamedTuple):
    """What a hard check looks for.

    `find`: what a run did wrong; '' for nothing, None if the run does not tell. `fine`: the sentence for runs without
    it. `in_rows`: a run's rows show it as soon as it has happened, whatever ended the run afterwards; to finish and to
    learn takes all of them. `optional`: not every run looks for it, and what nobody looked for is not listed.
    """

    find: Callable[[Run], str | None]
    fine: str
    in_rows: bool = True
    optional: bool = False


class Found(NamedTuple):
    """What each failing run did, the sentence for the case that none failed ('' if there is nothing to judge by), the
    number of runs looked at, and how many of them do not tell."""

    problems: list[str]
    fine: str
    runs: int
    silent: int

    @property
    def always(self) -> bool:
        """Whether every run tells."""
        return self.runs > 0 and not self.silent


def _found(rule: HardRule, side: Side) -> Found:
    """What a check finds in the runs that are evidence, and in interrupted runs that had failed it before they were
    stopped."""
    said, fine = [rule.find(run) for run in side.evidence], rule.fine
    failed = [one for run in side.interrupted if rule.in_rows and (one := rule.find(run))]
    if rule.find is _nonfinite and any(map(scale_search, side.evidence)):
        fine = "no NaN or Inf, but for the first gradient norms, by which fp16 finds its loss scale,"
    problems = [*filter(None, said), *(f"{one}, before it was interrupted" for one in failed)]
    return Found(problems, _in_all(fine, said), len(said) + len(failed), said.count(None))


def _check(name: str, found: Found, known: Found) -> Check:
    """The check of that name. `known`: what it finds in the baseline's runs."""
    problems, fine, looked_at, silent = found
    if problems:
        reason = f"{len(problems)} of {looked_at} runs: {listed(list(dict.fromkeys(problems)), 2)}"
        mine, failed = (len(problems), looked_at), (len(known.problems), known.runs)
        unclear = all(one.startswith(_UNCLEAR) for one in problems)  # no sign that anything is wrong
        if (failed[0] or unclear) and not _clearly_more(mine, failed, _DOUBT if unclear else _CHANCE):
            means = "this canary is too short to say" if name == "learned" else "that tells nothing of the change"
            reason += f"; so did {failed[0]} of {failed[1]} of the baseline's: {means}" if failed[0] else f": {means}"
            return open_check(name, reason, ReasonCode.FAILS_ALIKE)
        return hard_check(name, CheckOutcome.BLOCK, reason, ReasonCode.HARD_GATE)
    if silent and known.always:  # what was looked for before is not left out now
        reason = f"{silent} of {looked_at} runs do not tell ({name}), all of the baseline's do"
        return open_check(name, reason, ReasonCode.MISSING_DATA)
    if not fine:
        return hard_check(name, CheckOutcome.NOT_JUDGED, "the runs say nothing about it")
    return hard_check(name, CheckOutcome.PASS, fine)


def _clearly_more(candidate: tuple[int, int], baseline: tuple[int, int], chance: float) -> bool:
    """Whether the candidate fails more often than chance explains (Fisher's exact test, one-sided). Each side: (failing
    runs, all runs)."""
    (worse, those), (failed, others) = candidate, baseline
    both = worse + failed
    as_many = sum(math.comb(those, n) * math.comb(others, both - n) for n in range(worse, min(those, both) + 1))
    return as_many <= chance * math.comb(those + others, both)


def _unless_broken_off(check: Check, side: Side, baseline: Version | None) -> Check:
    """The check, left open if a run failed for an unknown reason, as it neither finished nor crashed by itself, or was
    stopped and its seed not run again; unless other runs did crash, or an exception is shown to come from the
    candidate's code."""
    if check.outcome is CheckOutcome.BLOCK:
        return check
    if found := sorted(crashes(side.runs, baseline), key=lambda crash: not crash.blocks):
        first = found[0]
        if first.blocks:
            return hard_check(check.metric, CheckOutcome.BLOCK, first.reason, ReasonCode.CRASH)
        return open_check(check.metric, first.reason, ReasonCode.BROKEN_OFF)
    broken, stopped, of_all = side.broken_off, side.stopped, f"of {counted(len(side.runs), 'candidate run')}"
    if broken:
        said = listed(list(dict.fromkeys(run.failure_reason or "no end was recorded" for run in broken)), 2)
        why = {run.raised.outside if run.raised else "" for run in broken}
        by = f"which is no evidence: {listed(sorted(why))}" if all(why) else "by the code or by the machine"
        return open_check(check.metric, f"{len(broken)} {of_all} failed ({said}), {by}", ReasonCode.BROKEN_OFF)
    if stopped and side.evidence:
        seeds = sorted({run.seed for run in stopped if run.seed is not None})
        which = f"{'seed' if len(seeds) == 1 else 'seeds'} {listed([*map(str, seeds)])}"
        were = f"{len(stopped)} {of_all} {'was' if len(stopped) == 1 else 'were'} stopped before the end"
        return open_check(check.metric, f"{were}, and no run of {which} has finished", ReasonCode.BROKEN_OFF)
    return check


def _in_all(fine: str, said: Sequence[str | None]) -> str:
    """The sentence for when nothing is wrong, with the number of runs that it covers; '' if no run tells."""
    telling = len(said) - said.count(None)
    if not telling:
        return ""
    if telling == len(said):
        return f"{fine} in all {telling} runs"
    return f"{fine} in {telling} of {len(said)} runs; the others do not tell"


def _completed(run: Run) -> str:
    if run.failure not in CRASHES:
        return ""
    why = f" ({run.failure_reason})" if run.failure_reason else ""
    return f"{CRASHES[run.failure]} after step {run.last_step}{why}"


def _learned(run: Run) -> str | None:
    if run.learned is not False:
        return None if run.learned is None else ""
    what = _UNCLEAR if WITHIN_NOISE in run.learned_reason else "learned nothing"
    return f"{what} ({run.learned_reason or 'no reason recorded'})"


def _invariants(run: Run) -> str | None:
    if run.invariants.startswith(_BROKEN):
        return run.invariants.removeprefix(_BROKEN).strip()
    return "" if run.invariants else None


def divergence(run: Run) -> str | None:
    """How far above where it had been a run ended that learns from examples, in one clause; '' if it did not, None if
    it has no loss that could tell. What comes and goes on the way is left to the watch, and so is learning from
    rewards, whose loss is scaled by its own advantages."""
    series = run.series.get("loss")
    if series is None or paradigm_of(run.workload.get("algo", ""), run.series.keys()) is Paradigm.REINFORCEMENT:
        return None
    series = series.finite_only()
    loss = series.values
    parts = min(PARTS, len(loss) // 10)
    if parts < 2:
        return None
    evaluated = run.series.get("eval_loss")
    last = [] if evaluated is None else evaluated.values[evaluated.steps >= series.steps[-1]]
    return _ends_high(loss, parts, float(last[-1]) if len(last) and last[-1] > 0 else math.inf)


def _ends_high(loss: Values, parts: int, held_out: float) -> str:
    """`held_out`: the loss on other rows at the end; infinite if that is unknown."""
    if np.min(loss) <= 0:
        return ""  # no factor tells how far up that is
    windows = np.array_split(loss, parts)
    levels = [float(iqm(part)) for part in windows]
    last = max(3, len(loss) // PARTS)
    # In logarithms, as a loss wobbles in proportion to itself; of neighbours, as a trend is not noise.
    noise = float(np.std(np.diff(np.log(loss[:-last]))))
    lowest = min(levels)
    if held_out < lowest:
        held_out = math.inf  # on another scale

    def far(end: float, values: int, sigmas: float) -> bool:
        above = np.log(end / lowest) > max(np.log(RISE), sigmas * noise / np.sqrt(values))
        return bool(above) and end - lowest > (levels[0] - lowest) / 2

    for end, values in ((levels[-1], len(windows[-1])), (float(np.min(loss[-last:])), 1)):
        if far(min(end, held_out), values, SIGMAS) or far(end, values, REFUTED * SIGMAS):
            return f"loss ended at {figure(end)}, from {figure(lowest)}, over {RISE:g} times"
    return ""


_RULES: Mapping[str, HardRule] = {
    "nonfinite": HardRule(_nonfinite, "no NaN or Inf"),
    "invariants": HardRule(_invariants, "every invariant held", optional=True),
    "divergence": HardRule(divergence, "no divergence", optional=True),
    "completed": HardRule(_completed, "finished", in_rows=False),
    "learned": HardRule(_learned, "learned", in_rows=False),
    "watch": HardRule(attrgetter("critical_held"), "no warning stayed critical", optional=True),
}
"""Every check, by its key in a policy's `hard:`; what brings others about comes before them."""
