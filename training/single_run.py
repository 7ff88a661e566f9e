"""`python -m canary_mlflow.training.single_run`: one more run of a session, with the configuration of another run or
a composed one.

`canary gate --top-up` and `canary ab` launch it through MLflow Projects. Exit codes: 0 finished, 1 unstable,
2 wrong use, 3 an exception ended it, 4 something outside failed.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

if __name__ == "__main__":  # before importing anything that another environment's Python may lack
    from canary_mlflow.interpreter import CORE, TRAINING_STACK, settle
    from canary_mlflow.starting import interruptible

    interruptible()
    settle((*CORE, *TRAINING_STACK))

from canary_mlflow.errors import UsageError
from canary_mlflow.loading import collect_seldom
from canary_mlflow.tracking.stores import owner
from canary_mlflow.training.command_line import expand, parse
from canary_mlflow.training.compose import check, register_schemas, to_config
from canary_mlflow.training.errors import ended
from canary_mlflow.training.peers import FOLLOWS
from canary_mlflow.training.plain import to_plain
from canary_mlflow.training.preflight import preflight

if TYPE_CHECKING:
    from canary_mlflow.training.config import CanaryConfig


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the run that the command line asks for."""
    collect_seldom()
    register_schemas()
    return ended(lambda: make(read(sys.argv[1:] if arguments is None else arguments)))


def read(arguments: Sequence[str]) -> Namespace:
    """Parse the command line. Raises UsageError, one line."""

    def refuse(message: str) -> NoReturn:
        raise UsageError(f"canary_mlflow.training.single_run: {message}")

    parser = ArgumentParser(prog="python -m canary_mlflow.training.single_run", description=__doc__)
    parser.error = refuse  # type: ignore[method-assign]
    parser.add_argument("--session", required=True, help="the parent run")
    parser.add_argument("--seed", required=True, type=int)
    parser.add_argument("--role", default="run", choices=("run", "baseline"))
    parser.add_argument("--like", default="", help="a run whose configuration it repeats")
    parser.add_argument(
        "--overrides", default="", help="Hydra's overrides, in one word, for a configuration of its own"
    )
    found = parser.parse_args(list(arguments))
    if bool(found.like) and bool(found.overrides):
        raise UsageError("canary_mlflow.training.single_run: found --like and --overrides; expected one of them")
    return found


def make(asked: Namespace) -> int:
    """Train one seed as a child of the session; under `mlflow run`, record into the run that MLflow made."""
    from canary_mlflow.launching.added_runs import configuration_of
    from canary_mlflow.tracking.stores.session import get_run
    from canary_mlflow.tracking.stores.store import prepare_store
    from canary_mlflow.training.process import OwnRun
    from canary_mlflow.training.runs import code_of, train

    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")  # for one file
    follow_launcher()
    client = prepare_store()
    get_run(client, asked.session)
    chosen = to_config(configuration_of(client, asked.like)) if asked.like else composed(asked.overrides)
    config = replace(chosen, seed=asked.seed, repeats=1)
    preflight(config)
    spec = OwnRun(
        name=f"{config.algo.name} seed {asked.seed}",
        store=client.tracking_uri,
        session=asked.session,
        seed=asked.seed,
        role=asked.role,
        run_id=os.environ.get("MLFLOW_RUN_ID", ""),
        config=to_plain(config),
    )
    return code_of(train(client, spec))


def follow_launcher() -> None:
    """End this run when the process that it is made for is gone: MLflow Projects, in between, would let it go on."""
    launcher = owner.read(os.environ.pop(owner.LAUNCHER, ""))
    if launcher is None:
        return

    def follow() -> None:
        while not owner.is_gone(launcher):
            time.sleep(FOLLOWS)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=follow, daemon=True).start()


def composed(overrides: str) -> CanaryConfig:
    """The one configuration that the overrides stand for."""
    line = parse(expand([f"--overrides={overrides}"]))
    if line.multirun or line.informs or line.helps:
        raise UsageError(f"--overrides: found {overrides!r}; expected key=value words for one configuration")
    return check(line)[0]


if __name__ == "__main__":
    sys.exit(main())
