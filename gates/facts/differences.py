"""What a change consists of: the differences in what both sides recorded about how they were made."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter

from canary_mlflow.gates.facts.exact import FACTS, ends_a_text, fact_differences, renamed
from canary_mlflow.gates.facts.regressions import CANARY, decisive_first
from canary_mlflow.gates.model.records import Run
from canary_mlflow.gates.model.sides import ABSENT, Pick, differing, values_of, values_of_both
from canary_mlflow.gates.model.verdict import Difference

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
    kept = (one for one in found if one.group not in (WORKLOAD, DATA) or one.key not in said)
    return tuple(kept), tuple(compared)


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
            candidate=" | ".join(commit[:SHORT] for commit in there) + _apart(*logs),
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
