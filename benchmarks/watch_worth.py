"""What each rule and each setting of the watch is worth: the runs that are judged differently without it.

Judged differently: another worst level, or STOP at another step. A rule is switched off; with `--settings`, a setting
is also divided and multiplied by four, and those that change nothing either way are listed. Of sessions that were made
to fail only what is said from the fault on counts.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import watch_histories
import watch_peers as peers
import watch_recorded
import yaml

from canary_mlflow.errors import UsageError
from canary_mlflow.gates.watch import Level, Watch, WatchPolicy, WatchWarning
from canary_mlflow.gates.watch.advice import rules
from canary_mlflow.policies import conf_dir, load_watch

_PARTS = ("rows", "drift", "facts", "gain", "patterns")  # a band needs a champion, ceilings are off
_TIMES = (0.25, 4)
Judged = tuple[int, int]  # worst level, step of the first STOP or -1
Judge = Callable[[WatchPolicy], Judged]


def worth(arguments: argparse.Namespace) -> dict[str, Any]:
    """A line for each rule, a column for each set of runs."""
    sets = {path.name.split(".")[0]: list(_judges(path)) for path in arguments.sets}
    usual = {name: [judge(load_watch()) for judge in judges] for name, judges in sets.items()}

    def changed(**keys: Any) -> dict[str, int]:
        policy = load_watch({"base": "default", **keys})
        return {
            name: sum(judge(policy) != was for judge, was in zip(judges, usual[name], strict=True))
            for name, judges in sets.items()
        }

    result: dict[str, Any] = {"benchmark": "watch worth", "runs": {name: len(one) for name, one in sets.items()}}
    print(f"{'without':18s}" + "".join(f"{f'{name} ({len(judges)})':>20s}" for name, judges in sets.items()))
    result["rules"] = {rule: changed(silent=[rule]) for rule in sorted(rules())}
    for rule, counts in result["rules"].items():
        print(f"{rule:18s}" + "".join(f"{count:20d}" for count in counts.values()))
    if arguments.settings:
        result["settings"] = {name: _most(changed, name, value) for name, value in _numbers()}
        idle = [name for name, count in result["settings"].items() if not count]
        print(f"\nchange nothing, a quarter or four times as large: {', '.join(idle) or 'none'}")
    return result


def _most(changed: Callable[..., dict[str, int]], name: str, value: float) -> int:
    """How many runs a setting changes, divided or multiplied; values that the policy refuses do not count."""
    counts = [0]
    for times in _TIMES:
        other: Any = max(1, round(value * times)) if isinstance(value, int) else value * times
        keys = functools.reduce(lambda inner, key: {key: inner}, reversed(name.split(".")), other)
        try:
            counts.append(sum(changed(**keys).values()))
        except UsageError:
            continue
    return max(counts)


def _numbers() -> Iterator[tuple[str, float]]:
    """(path, value) of every number in the shipped policy that judges a run by itself."""
    body = yaml.safe_load((conf_dir() / "watch" / "default.yaml").read_text())
    drift = body["drift"]  # all other streams drift from a champion's only
    drift["streams"] = {name: drift["streams"][name] for name in drift["alone"]}

    def inside(path: str, value: Any) -> Iterator[tuple[str, float]]:
        if isinstance(value, Mapping):
            for key, one in value.items():
                yield from inside(f"{path}.{key}", one)
        elif isinstance(value, int | float) and not isinstance(value, bool) and value:  # a multiple of 0 is 0
            yield path, value

    for part in _PARTS:
        yield from inside(part, body[part])


def _judges(path: Path) -> Iterator[Judge]:
    """One function per run of a set: recorded sessions, or labelled histories."""
    sessions = [] if path.is_dir() else watch_recorded.read(path)
    if not sessions or "label" in sessions[0]:
        for _, rows in watch_histories.labelled(path):
            yield functools.partial(_judged, rows, "", 0, None)
        return
    for one in sessions:
        rows = watch_recorded.rows_of(one)
        yield functools.partial(_judged, rows, one["algo"], one["onset"], rows[-1][0])


def _judged(rows: peers.Rows, algo: str, onset: int, steps: int | None, policy: WatchPolicy) -> Judged:
    watch = Watch(policy, algo=algo, max_steps=steps)
    for step, row in rows:
        watch.observe(step, row)
    watch.finish(True)
    said: Sequence[WatchWarning] = [one for one in watch.warnings if one.step >= onset]
    stop = next((one.step for one in said if one.level is Level.STOP), -1)
    return max((one.level for one in said), default=0), stop
