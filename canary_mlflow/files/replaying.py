"""Runs the watch over a finished history, as if it were going on now, without MLflow and torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from canary_mlflow.errors import UsageError
from canary_mlflow.files.history import History
from canary_mlflow.files.reading import read_history
from canary_mlflow.files.runs import unread_of
from canary_mlflow.files.source import SHOWN
from canary_mlflow.files.watched import LEARNING, REWARDS, algo_of, rows_that_tell, watch_over
from canary_mlflow.gates.model.paradigm import Paradigm, named_paradigm, paradigm_of
from canary_mlflow.gates.model.wording import listed
from canary_mlflow.gates.watch import HEALTHY, Watch, WatchPolicy, WatchWarning

UNKNOWN, WARNED = "unknown", "warned"


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """What the watch says about one file. `verdict`: healthy, warned, critical, failed, or unknown if there are too few
    rows to judge, or nothing in them tells what was learned. `rows`: how many it saw."""

    file: str
    kind: str
    verdict: str
    rows: int
    last_step: int
    warnings: tuple[WatchWarning, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "file": self.file,
            "kind": self.kind,
            "verdict": self.verdict,
            "rows": self.rows,
            "last_step": self.last_step,
            "warnings": [warning.to_dict() for warning in self.warnings],
            "notes": list(self.notes),
        }


def replay_file(file: str | Path, policy: WatchPolicy, algo: str = "") -> Replayed:
    """Watch one file. `algo`: sft, dpo, grpo …; "" to tell it from the columns. Raises UsageError if the file cannot be
    read or holds nothing that the watch looks at, or if the algorithm is unknown."""
    if algo and named_paradigm(algo) is None:
        raise UsageError(
            f"algo is {algo!r}; expected sft, dpo, kto, orpo, reward, grpo, rloo, ppo or the like; leave it out"
        )
    history = read_history(Path(file))
    algo = algo or algo_of(history)
    watch = watch_over(history, policy, algo)
    if not watch.watched:
        found = ", ".join(list(history.series)[:8])
        why = f"{file}: nothing that the watch looks at; found {found}; expected loss, grad_norm, kl or others"
        raise UsageError(f"{why}; rename the columns")
    unseen = list(_unseen(algo, history))
    unsure = list(_unsure(watch, history, policy)) if watch.verdict == HEALTHY else []
    unsure = list(history.gaps) if watch.verdict == WARNED else unsure
    return Replayed(
        file=str(file),
        kind=history.kind,
        verdict=UNKNOWN if unsure else watch.verdict,
        rows=watch.rows,
        last_step=history.last_step,
        warnings=tuple(watch.warnings),
        notes=tuple(
            dict.fromkeys((*unsure, *unseen, *_unfinished(history), *history.notes, *history.gaps, *watch.notices))
        ),
    )


def _unseen(algo: str, history: History) -> Iterator[str]:
    """What a verdict on a policy says nothing of: its loss does not tell what was learned."""
    if paradigm_of(algo, history.series) is Paradigm.REINFORCEMENT and history.series.keys().isdisjoint(REWARDS):
        yield "no reward found: whether the policy gets better is not known"


def _unfinished(history: History) -> Iterator[str]:
    """That there was to be more."""
    if not history.completed:
        yield f"ends at step {history.last_step:,} of {history.max_steps:,}"


def _unsure(watch: Watch, history: History, policy: WatchPolicy) -> Iterator[str]:
    """Why a run without a warning is not called healthy."""
    yield from history.gaps
    told, least = rows_that_tell(history, watch), policy.rows.burn_in_least
    if told < least:
        of_all = f"{told} of {watch.rows} rows with a loss or a reward" if told < watch.rows else f"{told}"
        yield f"too few rows to judge: {of_all}, and the watch needs {least} to know what is normal"
    if history.series.keys().isdisjoint(LEARNING):
        strange = unread_of(history)
        hint = f"; nothing is read from {listed(strange, SHOWN)}: rename what is one of them" if strange else ""
        yield f"neither loss nor reward found: only {listed(list(watch.watched), SHOWN)} could be watched{hint}"
