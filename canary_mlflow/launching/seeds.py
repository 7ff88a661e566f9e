"""Somebody's own training command within an open session: once for each seed, each bound to the session and to its
seed, and none left behind."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil

from canary_mlflow.errors import BrokeOff, CanaryError, UsageError
from canary_mlflow.gates.model.wording import counted
from canary_mlflow.shown import say
from canary_mlflow.tags import ROLE, SEED
from canary_mlflow.tracking.signals import waiting
from canary_mlflow.tracking.stores.session import child_runs

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

VARIABLE, MARK = "CANARY_SEED", "{seed}"
"""How a command hears of its seed: a variable of its environment, and what is replaced in its words."""
GRACE = 25.0  # seconds for a training to record its end after SIGTERM
OWN_END = 5.0  # for one that had the terminal's Ctrl-C too


def seeds_of(words: Iterable[str]) -> list[int]:
    """The seeds of `0 1 2` or `0,1,2`. Raises UsageError for what is none, and for one given twice."""
    parts = [part for word in words for part in word.split(",") if part]
    if wrong := [part for part in parts if not part.isdecimal()]:
        raise UsageError(f"--seeds: found {wrong[0]!r}; expected whole numbers, then -- and the command: 0 1 2 -- …")
    seeds = [int(part) for part in parts]
    if len({*seeds}) < len(seeds):
        raise UsageError(f"--seeds: found {' '.join(parts)}; expected each seed once")
    return seeds


def refuse_no_command(command: Sequence[str]) -> None:
    """Raise UsageError unless there is a command that can be started."""
    if not command or shutil.which(command[0]) is None:
        found = f"{command[0]!r}, which is no command here" if command else "none"
        raise UsageError(
            f"the training's command: found {found}; expected one behind --, such as -- python train.py --seed {MARK}"
        )


def train(
    client: MlflowClient, session_id: str, command: Sequence[str], seeds: Sequence[int], certain: Callable[[int], str]
) -> None:
    """Run the command for each seed in turn, or once without one where its script goes over seeds by itself. `certain`:
    what blocks although so many are missing. Raises BrokeOff where it does not end well, or something blocks, and
    UsageError for runs that are not of their seed."""
    for number, seed in enumerate(seeds or [None], 1):
        words = [word if seed is None else word.replace(MARK, str(seed)) for word in command]
        before = {run.info.run_id for run in _runs(client, session_id)}
        if seed is not None:
            say(f"seed {seed} ({number}/{len(seeds)}): {shlex.join(words)}")
        code = _run(words, {} if seed is None else {VARIABLE: str(seed)})
        made = [run for run in _runs(client, session_id) if run.info.run_id not in before]
        who = f"{shlex.join(words)}" if seed is None else f"seed {seed}: {shlex.join(words)}"
        if code:
            _broken(who, code, made)
        if seed is not None:
            _refuse_others(who, seed, made)
        missing = len(seeds) - number
        if missing > 0 and (why := certain(missing)):
            raise BrokeOff(
                f"{who}: {why} blocks already; {counted(missing, 'seed')} not trained, no version registered"
            )


def _runs(client: MlflowClient, session_id: str) -> list[Run]:
    return [run for run in child_runs(client, session_id) if run.data.tags.get(ROLE) == "run"]


def _broken(who: str, code: int, made: Sequence[Run]) -> None:
    """Raise BrokeOff for a command whose run broke off, CanaryError for one that was killed or failed beside it."""
    if code < 0:
        raise CanaryError(f"{who}: it was killed by {signal.Signals(-code).name}; train again")
    if all(run.info.status == "FINISHED" for run in made):
        when = "after its training" if made else "before any training"
        raise CanaryError(f"{who}: it ended with code {code} {when}; its own output above says why")
    raise BrokeOff(f"{who}: it ended with code {code}; no version was registered")


def _refuse_others(who: str, seed: int, made: Sequence[Run]) -> None:
    if not made:
        raise UsageError(
            f"{who}: no run joined the session; expected a training with callbacks=[CanaryCallback()]; add it"
        )
    if found := sorted({run.data.tags.get(SEED, "none") for run in made} - {str(seed)}):
        raise UsageError(
            f"{who}: it trained with seed {', '.join(found)}; expected {seed}; pass it on: {MARK} in the command, or "
            f"{VARIABLE} in the script, as its trainer's seed (a script that goes over seeds by itself: leave out "
            "--seeds)"
        )


def _run(words: Sequence[str], more: dict[str, str]) -> int:
    """The command's exit code, -N after signal N. An exception meanwhile ends it, and all that it started."""
    sys.stdout.flush()
    process = subprocess.Popen(words, env={**os.environ, **more})
    try:
        with waiting():
            return process.wait()
    except BaseException as error:
        _stop(process, interrupted=isinstance(error, KeyboardInterrupt))
        raise


def _stop(process: subprocess.Popen[bytes], *, interrupted: bool) -> None:
    """End a training, which records its end by itself, and whatever it started."""
    with suppress(psutil.NoSuchProcess):
        first = psutil.Process(process.pid)
        alive = [first, *first.children(recursive=True)]
        if interrupted:
            _, alive = psutil.wait_procs(alive, timeout=OWN_END)
        for one in alive:
            with suppress(psutil.NoSuchProcess):
                one.terminate()
        for one in psutil.wait_procs(alive, timeout=GRACE)[1]:
            with suppress(psutil.NoSuchProcess):
                one.kill()
    process.wait()
