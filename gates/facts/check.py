"""The hard check of exact facts: what differs in what both sides recorded about how they were made, and what blocks.

If work, data and seed are unchanged, a run that trains less, on other tokens or from another first loss is a
regression, unless a changed setting may explain it, until somebody accepts it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter

from canary_mlflow.gates.facts.courses import COURSE
from canary_mlflow.gates.facts.exact import (
    FACTS,
    LEAKED,
    NEAR,
    REWARDS,
    TOKENS,
    bare,
    covers,
    ends_a_text,
    fact_differences,
    pairs_of,
    renamed,
    variant_of,
)
from canary_mlflow.gates.facts.regressions import CANARY, deciding, decisive_first, may_explain
from canary_mlflow.gates.model.policy import Policy
from canary_mlflow.gates.model.records import Run
from canary_mlflow.gates.model.sides import ABSENT, Pick, differing, values_of, values_of_both
from canary_mlflow.gates.model.verdict import Check, CheckOutcome, Difference, ReasonCode, hard_check, open_check
from canary_mlflow.gates.model.wording import around_difference, listed, many, told_apart

CONFIGURATION, CODE, PACKAGES = "configuration", "code", "packages"
DATA, HARDWARE, WORKLOAD = "data", "hardware", "workload"

MACHINE = frozenset({"host", "platform", "cpu", "gpu", "driver", "device", "omp_num_threads"})
GPU = "gpu_"  # its memory, and how it and torch's use of it are set up
GIT = "git_"
SCRIPT = "script"  # a user's own: its name and a digest of its text
UNKNOWN = "unknown"
SHORT = 7  # characters of a commit, as git shows it

INCIDENTAL = frozenset(
    {"seed", "data_seed", "run_name", "run_id", "output_dir", "logging_dir", "log_dir", "save_dir"}
    | {"date", "timestamp", "hub_token", "push_to_hub_token"}
)
"""Last words of keys that differ from run to run, whatever is changed."""
NOT_TRAINED_BY = ("repeats", "register", "model_name", "tracking.uri", "tracking.experiment", "tracking.full_report",
                  "tier.repeats", "fault.description", "fault.kind", "fault.unit", "fault.signals.",
                  "fault.settings")  # fmt: skip
"""Beginnings of keys of a canary's configuration that say where a run is recorded and what becomes of it, or describe
what other keys set. In a configuration of a user's own, a `model_name` may be what was changed."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")

Facts = Mapping[str, str]


def differences(
    baseline: Sequence[Run], candidate: Sequence[Run], exact: Sequence[Run] | None = None
) -> tuple[tuple[Difference, ...], tuple[str, ...]]:
    """What differs, by group, with changed values before those that only one side has; and the groups in which both
    sides recorded something: of the others nothing is known. `exact`: the baseline's runs whose facts count, if they
    are not `baseline`."""
    found: list[Difference] = []
    compared: list[str] = []
    for group, pick in _PICKS.items():
        if group == CODE:
            found += _script(baseline, candidate)
        if group == FACTS:  # a series may tell where no fact was recorded
            found += decisive_first(fact_differences(baseline if exact is None else exact, candidate))
        if not all(any(pick(run) for run in side) for side in (baseline, candidate)):
            continue
        compared.append(group)
        if group == CODE:
            found += _code(baseline, candidate)
        elif group != FACTS:
            found += sorted(
                differing(baseline, candidate, pick, group=group),
                key=lambda one: (ABSENT in (one.baseline, one.candidate), not ends_a_text(one.key)),
            )
    settings = {one.key for one in found if one.group == CONFIGURATION}
    said = {key.rpartition(".")[2] for key in settings} | {key.removesuffix(".name") for key in settings}
    twice = {one.key for one in found for other in found if _short_for(one, other)}
    kept = (one for one in found if one.group not in (WORKLOAD, DATA) or one.key not in said)
    return tuple(one for one in kept if one.group != CONFIGURATION or one.key not in twice), tuple(compared)


def _short_for(one: Difference, other: Difference) -> bool:
    """Whether a setting is the other by a shorter name, such as the `lr` that a script logs beside learning_rate."""
    if not one.group == other.group == CONFIGURATION:
        return False
    alike = (one.baseline, one.candidate) == (other.baseline, other.candidate)
    rate = one.key == "lr" and other.key.rpartition(".")[2] == "learning_rate"
    return alike and (rate or other.key.endswith(f".{one.key}"))


def recipe(runs: Sequence[Run]) -> dict[str, dict[str, list[str]]]:
    """What these runs recorded about how they were made, by group, without the hardware, without the facts, which
    follow from the rest, and without the code. Equal recipes at one commit mean the same code but for edits."""
    found = recorded(runs)
    return {
        group: {key: list(values) for key, values in found[group].items()}
        for group in GROUPS
        if group not in (HARDWARE, FACTS, CODE)
    }


def recorded(runs: Sequence[Run]) -> dict[str, dict[str, tuple[str, ...]]]:
    """Every value that these runs recorded about how they were made, by group and key."""
    found = {group: values_of(runs, pick) for group, pick in _PICKS.items()}
    found[CODE] = values_of(runs, lambda run: {**_of_code(run), "uncommitted": _uncommitted(run), **_own_script(run)})
    return found


def _code(baseline: Sequence[Run], candidate: Sequence[Run]) -> Iterable[Difference]:
    """Differences in the commit, with the number of commits between, and in uncommitted changes."""
    here, there = (
        sorted({run.environment["git_commit"] for run in side if _of_code(run)}) for side in (baseline, candidate)
    )
    if here != there:
        logs = [_history(side) for side in (baseline, candidate)]
        yield Difference(
            key="commit",
            baseline=" | ".join(commit[:SHORT] for commit in here),
            candidate=" | ".join(commit[:SHORT] for commit in there) + _apart(*logs) + _titled(candidate),
            group=CODE,
        )
    dirty = [" | ".join(sorted({_uncommitted(run) for run in side})) for side in (baseline, candidate)]
    if dirty[0] != dirty[1]:
        yield Difference(key="uncommitted changes", baseline=dirty[0], candidate=dirty[1], group=CODE)


def _script(baseline: Sequence[Run], candidate: Sequence[Run]) -> Iterable[Difference]:
    """The script itself, if both sides recorded theirs. That it is the same says nothing of the modules it imports, so
    without commits the code still counts as not recorded."""
    for key, here, there in values_of_both(baseline, candidate, _own_script):
        if here != there and ABSENT not in (*here, *there):
            yield Difference(key=key, baseline=" | ".join(here), candidate=" | ".join(there), group=CODE)


def _own_script(run: Run) -> Facts:
    return {SCRIPT: run.environment[SCRIPT]} if SCRIPT in run.environment else {}


def _history(side: Sequence[Run]) -> list[str]:
    """The last commits of a side, newest first; empty if its runs come from several, or recorded none."""
    logs = {run.environment.get("git_log", "") for run in side}
    return logs.pop().split() if len(logs) == 1 else []


def _apart(before: Sequence[str], now: Sequence[str]) -> str:
    """` (3 commits on)`; between two branches ` (3 commits on, 2 back)`; '' if the records do not tell."""
    shared = next((commit for commit in now if commit in before), None)
    if shared is None:
        return ""
    ways = [(now.index(shared), "on"), (before.index(shared), "back")]
    words = [f"{count} {'commit' if count == 1 else 'commits'} {way}" for count, way in ways if count]
    return f" ({', '.join(words)})" if words else ""


def _titled(side: Sequence[Run]) -> str:
    """`: shorter prompts`, the title of a side's commit; '' if its runs come from several, or recorded none."""
    titles = {run.environment.get("git_title", "") for run in side}
    title = titles.pop() if len(titles) == 1 else ""
    return f": {title}" if title else ""


def _uncommitted(run: Run) -> str:
    """`none`, or the digest of the uncommitted changes: two sides with the same changes do not differ."""
    dirty = run.environment.get("git_dirty", UNKNOWN)
    if dirty == "true":
        return f"some ({run.environment.get('git_diff', UNKNOWN)[:SHORT]})"
    return "none" if dirty == "false" else UNKNOWN


def _configuration(run: Run) -> Facts:
    left_out = NOT_TRAINED_BY if CANARY in run.configuration else ()
    return {
        key: without_addresses(value)
        for key, value in renamed(run.configuration).items()
        if key.rpartition(".")[2] not in INCIDENTAL and not key.startswith(left_out)
    }


def without_addresses(value: str) -> str:
    """The value without the addresses of Python objects, which differ in every process."""
    return _ADDRESS.sub("", value)


def _of_code(run: Run) -> Facts:
    commit = run.environment.get("git_commit", UNKNOWN)
    return {} if commit == UNKNOWN else {"git_commit": commit}


def _environment(run: Run, group: str) -> Facts:
    """What a run's environment says of its machine, of git and its script, or of its packages."""

    def group_of(key: str) -> str:
        if key in MACHINE or key.startswith(GPU):
            return HARDWARE
        return CODE if key == SCRIPT or key.startswith(GIT) else PACKAGES

    return {key: value for key, value in run.environment.items() if group_of(key) == group}


def _work(run: Run, of_data: bool) -> Facts:
    """The workload: what tells about data (`data`, `data.size`, or `train_data`, which the callback records in a user's
    own script), or the rest."""
    about = {key: key.startswith("data") or key.endswith("_data") for key in run.workload}
    return {key: value for key, value in run.workload.items() if about[key] is of_data}


_PICKS: Mapping[str, Pick] = {
    FACTS: attrgetter("facts"),
    CONFIGURATION: _configuration,
    CODE: _of_code,
    PACKAGES: partial(_environment, group=PACKAGES),
    DATA: partial(_work, of_data=True),
    HARDWARE: lambda run: {**_environment(run, HARDWARE), **run.hardware},
    WORKLOAD: partial(_work, of_data=False),
}
GROUPS = tuple(_PICKS)
"""In the order in which a reader asks for them: what is exactly other, then what was changed."""


def missing(compared: Collection[str]) -> list[str]:
    """The groups of which a side recorded nothing, as a reader is told: of the code that is git's, for the text of the
    script itself may be compared without it."""
    return ["git" if group == CODE else group for group in GROUPS if group not in compared]


NAMES = {
    "course.learning_rate": "learning rate",
    "batches.repeated": "batches of the first two steps that come again",
    "data.held_out_near": "held-out rows of which half is trained on",
    "data.held_out_trained": "held-out rows that are trained on",
    "data.rows": "rows trained on",
    "first.labels": "labels of the first step",
    "first.loss.1": "first loss",
    **{f"first.loss.{step}": f"loss of step {step}" for step in (2, 3)},
    "first.grad_norm.1": "first gradient norm",
    **{f"first.grad_norm.{step}": f"gradient norm of step {step}" for step in (2, 3)},
    **{f"first.{name}.{step}": f"{name.partition('_')[0]} of step {step}" for name in REWARDS for step in (1, 2, 3)},
    "first.tokens": "tokens of the first step",
    "training.groups": "the optimizer's groups",
    "training.optimizer_state": "the optimizer's state",
    "training.scheduler_state": "the schedule's state",
    "parameters.dtype": "types of the parameters",
    "parameters.trainable": "trainable parameters",
    "parameters.trainable_at_end": "trainable parameters at the end",
    "labels.trained": "labels learned over the training",
    "labels.evaluated": "labels of an evaluation",
    "labels.which": "which labels were learned over the training",
    "evaluated.eval": "rows of the last evaluation",
    "evaluated.labels_eval": "labels of the last evaluation",
    "evaluated.weights_eval": "weights of the last evaluation",
    "outcome.ended": "the short training",
    "outcome.trainable": "trainable parameters at the end",
    "outcome.resumed_step": "the step after a checkpoint",
    **{f"outcome.resumed_{what}": f"{what} after a checkpoint" for what in ("model", "optimizer", "scheduler")},
    "outcome.resumed_random": "random state after a checkpoint",
}
_DIGESTED = re.compile(r"(.*), ([0-9a-f]{16})")
LONGEST = 60  # characters of a value
UNCHANGED = "configuration, data and seeds are the same, but"
UNEXPLAINED = "data and seeds are the same, and no setting that was changed can explain"


def what_differs(
    baseline: Sequence[Run], fresh: Sequence[Run], candidate: Sequence[Run], *, judged: bool
) -> tuple[tuple[Difference, ...], tuple[str, ...]]:
    """As `differences`, with the deciding facts marked. A seed's fresh baseline run replaces the stored one, if one was
    made beside the candidate's. `judged`: the sides compare, and the policy asks for the check; else no fact
    decides."""
    held = with_fresh(baseline, fresh)
    found, compared = differences(baseline, candidate, held)
    if not judged or CONFIGURATION not in compared:
        return found, compared
    marked = {one.key: one for one in deciding(found, held, candidate)}
    return tuple(marked.get(one.key, one) if one.group == FACTS else one for one in found), compared


def with_fresh(baseline: Sequence[Run], fresh: Sequence[Run]) -> tuple[Run, ...]:
    """The baseline's runs, those that were made beside the candidate's in place of the stored ones of their seeds."""
    made = {run.seed for run in fresh}
    return (*fresh, *(run for run in baseline if run.seed not in made))


def unrecorded(baseline: Sequence[Run], candidate: Sequence[Run], found: Sequence[Difference]) -> str:
    """What the check rests on that all of the baseline's runs recorded and some of the candidate's did not; '' for
    nothing. `found`: the differences, among which a setting or another release may explain that a model's forward is no
    longer called where its tokens can be seen."""
    needed: dict[str, Callable[[Run], object]] = {
        "exact facts": lambda run: run.facts,
        "their configuration": lambda run: run.configuration,
        "how many parameters they train": lambda run: run.facts.get("parameters.trainable"),
        "on which rows they were evaluated": lambda run: any(key.startswith("evaluated.eval") for key in run.facts),
    }
    settings = (one.key for one in found if one.group == CONFIGURATION)
    if not any(one.group == PACKAGES for one in found) and not any(may_explain(key, TOKENS) for key in settings):
        needed["which tokens reached their models"] = lambda run: run.facts.get(TOKENS)
    return next((what for what, has in needed.items() if all(map(has, baseline)) and not all(map(has, candidate))), "")


def fact_check(
    policy: Policy, found: Sequence[Difference], compared: Sequence[str], accepted: Sequence[Difference], missing: str
) -> Check | None:
    """The check, if both sides recorded facts and the policy asks for it. Equal facts are no evidence of anything else:
    the check passes then, and decides nothing. `missing`: what `unrecorded` says; nobody hides a fact by leaving it
    out."""
    if not policy.hard.facts:
        return None
    facts = [one for one in found if one.group == FACTS and not one.rounding]
    known = [one for one in facts if one.decides and any(covers(each, one) for each in accepted)]
    against = [one for one in facts if one.decides and one not in known]
    if against:
        beginning = UNEXPLAINED if any(one.group == CONFIGURATION for one in found) else UNCHANGED
        reason = f"{beginning} {listed([said(one) for one in against])}"
        return hard_check(FACTS, CheckOutcome.BLOCK, reason, ReasonCode.HARD_GATE)
    not_meant = [one for one in facts if one.key.startswith(COURSE) and CONFIGURATION not in compared]
    leaks = [one for one in rising(facts, LEAKED, above="0") if not any(covers(each, one) for each in accepted)]
    for which, why in (
        (not_meant, "and no configuration says whether that was set"),
        (leaks, "so that an evaluation is none of what the model has not seen"),
    ):
        if which:
            return open_check(FACTS, f"{listed([*map(said, which)])}, {why}", ReasonCode.FACTS_DIFFER)
    if missing:
        unsaid = f"the candidate's runs do not say {missing}, the baseline's do"
        return open_check(FACTS, unsaid, ReasonCode.MISSING_DATA)
    if FACTS not in compared:
        unknown = "exact facts are not recorded of both sides"
        return open_check(FACTS, unknown, ReasonCode.NOT_COMPARABLE) if compared and facts_only(policy) else None
    if known:
        reason = f"accepted: {listed([said(one) for one in known])}"
        return hard_check(FACTS, CheckOutcome.PASS, reason)
    if facts and facts_only(policy):  # shown, and nothing to judge
        shown = listed([*map(said, facts)])
        differ = f"exact facts differ, and nothing says whether that is harm: {shown}"
        return open_check(FACTS, differ, ReasonCode.FACTS_DIFFER)
    if near := rising(facts, NEAR):
        return hard_check(FACTS, CheckOutcome.WARN, listed([*map(said, near)]))
    if facts:
        return None
    return hard_check(FACTS, CheckOutcome.PASS, "exact facts are equal, or differ by rounding alone")


def rising(found: Sequence[Difference], fact: str, above: str = "") -> list[Difference]:
    """The differences in a count that grew in every seed, from `above` if that is given."""
    return [
        one
        for one in found
        if bare(one.key) == fact
        and all(int(now) > int(before) and before in (above or before) for before, now in pairs_of(one).values())
    ]


def facts_only(policy: Policy) -> bool:
    """Whether the policy asks about facts only and judges no metric. Equal facts are then a PASS."""
    return policy.hard.facts and not policy.rules


def said(one: Difference) -> str:
    """`first loss 0.6931 → 2.773 (4.00 times) in seeds 0, 1, 2`."""
    before, now = (side.partition(" | ")[0] for side in (one.baseline, one.candidate))
    told = _numbers(before, now) or _groups(before, now) or _digested(before, now)
    values = told or " → ".join(around_difference(before, now, LONGEST))
    seeds = f" in {'seed' if len(one.seeds) == 1 else 'seeds'} {', '.join(map(str, one.seeds))}" if one.seeds else ""
    variant = f"{variant_of(one.key)}: " if variant_of(one.key) else ""
    name = re.sub(r"^data\.(tokens|labels)\.", "the data's ", bare(one.key))
    name = name.replace("data.order.", "order of the data's ")
    return f"{variant}{NAMES.get(name, name)} {values}{seeds}"


def _groups(before: str, now: str) -> str:
    """What differs in the first groups of an optimizer that are not alike, such as `tensors 21 → 17`; '' for other
    values."""
    try:
        here, there = json.loads(before), json.loads(now)
    except ValueError:
        return ""
    if not all(isinstance(side, list) and side and isinstance(side[0], dict) for side in (here, there)):
        return ""
    pairs = ((left, right) for left, right in zip(here, there, strict=False) if left != right)
    for left, right in pairs:
        apart = [f"{key} {left.get(key, ABSENT)} → {right.get(key, ABSENT)}" for key in sorted({*left, *right})
                 if left.get(key) != right.get(key)]  # fmt: skip
        return ", ".join(apart)
    return f"{len(here)} → {len(there)}"


def _digested(before: str, now: str) -> str:
    """What two contents hold: `38 → 42`, or `38, but others` with the digests where they are as many."""
    here, there = (_DIGESTED.fullmatch(side) for side in (before, now))
    if not here or not there:
        return ""
    return f"{here[1]} → {there[1]}" if here[1] != there[1] else f"{here[1]}, but others ({here[2]} → {there[2]})"


def _numbers(before: str, now: str) -> str:
    """Two numbers, and how many times as large the second is; '' for values that are not numbers."""
    try:
        here, there = float(before), float(now)
    except ValueError:
        return ""
    if before.isdigit() and now.isdigit():
        return f"{before} → {now}"
    told = told_apart(here, there)
    factor = there / here if here and math.isfinite(here) else math.nan
    return f"{told} ({many(factor)})" if factor > 2 or 0 < factor < 0.5 else told
