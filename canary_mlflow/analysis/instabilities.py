"""What went wrong in a run: what the watch said, or says now about a run that was not watched, and how it broke off."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from canary_mlflow.errors import StoreError
from canary_mlflow.policies import load_watch
from canary_mlflow.reports.instabilities import Instability
from canary_mlflow.tags import WATCH_LEVEL, WATCH_WARNINGS
from canary_mlflow.tracking.reading.facts import count, warnings_in
from gates.model.records import Run
from gates.watch import Watch, WatchWarning

# How a run broke off → what that usually means, what to try.
ENDINGS: Mapping[str, tuple[str, str]] = {
    "instability": (
        "the training itself went wrong: an overflow, a division by zero, a learning rate too high",
        "look at the last steps above; a lower learning rate, bf16 instead of fp16, clip gradients",
    ),
    "oom": ("more memory was asked for than there is", "a smaller batch, shorter sequences, gradient checkpointing"),
    "timeout": ("the run was slower than its tier allows, or hung", "look at step time and data wait; raise the limit"),
    "crash": ("the process died without saying why", "look at the run's log; run it again with the same seed"),
    "interrupted": ("somebody or something ended it from outside", "run it again: it says nothing about the change"),
    "error": ("an exception ended the training, or something outside", "fix what the reason names and run it again"),
}


def instabilities_of(run: str, found: Run, tags: Mapping[str, str]) -> list[Instability]:
    """The instabilities of one run, the earliest first, how it ended last."""
    watched = WATCH_LEVEL in tags
    source = "reported while it ran" if watched else "nobody watched this run; found now, in what it recorded"
    try:
        warnings = warnings_in(tags) if watched else replayed(found)
    except StoreError:  # somebody else's tag
        warnings, source = replayed(found), "its tag of warnings cannot be read; found now, in what it recorded"
    listed = [instability(run, one, source) for one in sorted(warnings, key=lambda one: one.step)]
    return [*listed, *ending(run, found)]


def instability(run: str, warning: WatchWarning, source: str) -> Instability:
    """A warning of the watch."""
    return Instability(run=run, source=source, **warning.to_dict())  # type: ignore[arg-type]  # the same names


def ending(run: str, found: Run) -> Iterator[Instability]:
    """How the run broke off, if it did."""
    if found.failure:
        meaning, advice = ENDINGS.get(found.failure, ("", ""))
        yield Instability(
            run=run,
            step=found.last_step or None,
            stream="run",
            level="FAILED",
            rule=found.failure,
            seen=found.failure_reason or f"ended as {found.failure}",
            meaning=meaning or "a kind of end that this version does not know",
            advice=advice or "look at the run's log",
            source="recorded with the run",
        )


def replayed(run: Run) -> tuple[WatchWarning, ...]:
    """What the watch would have said, by its default policy."""
    watch = Watch(load_watch(), algo=run.workload.get("algo", ""), max_steps=None)
    rows: dict[int, dict[str, float]] = {}
    for name, series in run.series.items():
        for step, value in zip(series.steps.tolist(), series.values.tolist(), strict=True):
            rows.setdefault(step, {})[name] = value
    for step in sorted(rows):
        if step > 0:  # 0: logged before training
            watch.observe(step, rows[step])
    watch.finish(run.completed)
    return tuple(watch.warnings)


def unlisted(run: str, tags: Mapping[str, str], listed: int) -> str:
    """That a run was warned more often than its tag tells; empty where it was not."""
    more = count(tags.get(WATCH_WARNINGS, "")) - listed
    return f"{run}: {more} further warnings in warnings.jsonl, among its artifacts." if more > 0 else ""
