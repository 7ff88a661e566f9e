"""Makes runs of the running code, each in a fresh process and recorded as FINISHED or FAILED whatever happens to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

from mlflow import MlflowClient

from canary_mlflow.launching.runs import Here, Result, Runner, RunSpec, make_one
from canary_mlflow.tags import CLUSTER_NODE, ROLE, ROWS_LOST
from canary_mlflow.tracking.describing.failures import UNSTABLE, raised_tags
from canary_mlflow.tracking.stores.owner import lease, scratch
from canary_mlflow.tracking.stores.session import NOTHING, close_run, create_child_run, describe_run, get_run
from canary_mlflow.training.ahead import workers_of
from canary_mlflow.training.config import CanaryConfig
from canary_mlflow.training.naming import run_name, run_params, run_tags, usual_params
from canary_mlflow.training.plain import read_back, to_plain
from canary_mlflow.training.process import OwnRun, Worker, run

UNRECORDED = (
    "it trained to its end, but its store did not take everything; expected one that answers and has room; fix that, "
    "then canary deliver sends the rest"
)
AT_THE_END = ("matplotlib.figure",)
"""What the session's end needs, loaded while the runs' processes load as well: a core is free then, and later none may
be busy, as runs are measured."""


class Preparation(OwnRun):
    """No run yet: what one would report about its work. Where runs are made elsewhere, this machine may have another
    device than they."""

    makes: ClassVar[str] = "canary_mlflow.training.runs:prepare"


def own_run(
    client: MlflowClient,
    session: str,
    config: CanaryConfig,
    place: str,
    tags: Mapping[str, str] = NOTHING,
    **more: Any,
) -> OwnRun:
    """A run of a session that this process holds. `place`: its place among the runs, such as 1/3."""
    return OwnRun(
        name=f"{config.algo.name} seed {config.seed} ({place})",
        store=client.tracking_uri,
        session=session,
        seed=config.seed,
        config=to_plain(config),
        tags={**lease(), **tags},
        **more,
    )


def own_runs(
    client: MlflowClient,
    session: str,
    config: CanaryConfig,
    count: int,
    *,
    keep_weights: bool = False,
    profile: bool = False,
    **more: Any,
) -> list[OwnRun]:
    """So many runs of a session, from `config.seed` on. `keep_weights`, `profile`: whether the first of them does so,
    the latter if its configuration asks for it; the others are evidence alone."""
    firsts: dict[str, Any] = {"keep_weights": keep_weights, "profile": profile and config.profile}
    return [
        own_run(
            client,
            session,
            replace(config, seed=config.seed + index),
            f"{index + 1}/{count}",
            **(firsts if index == 0 else {}),
            **more,
        )
        for index in range(count)
    ]


def until_broken(
    runner: Runner, specs: Sequence[RunSpec], certain: Callable[[int], str] = lambda missing: ""
) -> list[Result]:
    """Make the runs up to the first that breaks off or becomes unstable, or with which it is `certain`, however many
    are missing, that the session fails; others that have begun are stopped, and are no evidence."""
    results: list[Result] = []
    for _, result in runner.make(specs):
        missing = len(specs) - len(results) - 1
        results.append(replace(result, certain=certain(missing) if missing and not result.failure else ""))
        if result.failure or results[-1].certain:
            break
    return results


class Prestarted(Here):
    """This machine, with processes that have already begun to load: one for each of the runs, in their order."""

    def __init__(self, client: MlflowClient, workers: Iterator[Worker]) -> None:
        super().__init__(client)
        first = next(workers)
        self.prepared, self.workers = first.prepared, chain([first], workers)

    def one(self, spec: RunSpec) -> Result:
        if isinstance(spec, Preparation):
            return self.prepared
        assert isinstance(spec, OwnRun)
        return train_in(self.client, spec, next(self.workers))


@contextmanager
def prestarted(
    runner: Runner, config: CanaryConfig, folder: Path, count: int, begun: Iterator[Worker] | None = None
) -> Iterator[Runner]:
    """The runner for `count` runs of one configuration, from its seed on: on this machine, their processes load at the
    same time. The block's end also ends what has begun. `begun`: the processes, if whoever calls has started them and
    will end them."""
    if not isinstance(runner, Here):
        yield runner
        return
    with nullcontext(begun) if begun else workers_of(config, folder, count) as workers:
        for name in AT_THE_END:
            with suppress(ImportError):
                import_module(name)
        yield Prestarted(runner.client, workers)


def prepared(runner: Runner, client: MlflowClient, config: CanaryConfig) -> Result:
    """What the first run reports about its work, before anything is recorded; its failure is wrong use."""
    plain, store = to_plain(config), client.tracking_uri
    return make_one(runner, Preparation(name="prepare", store=store, session="", seed=config.seed, config=plain))


def prepare(client: MlflowClient, spec: Preparation) -> Result:
    """What a run of this configuration reports about its work on this machine's device."""
    with _workers(spec) as workers:
        return next(workers).prepared


def train(client: MlflowClient, spec: OwnRun) -> Result:
    """Make one run in a process that is started for it."""
    with _workers(spec) as workers:
        return train_in(client, spec, next(workers))


@contextmanager
def _workers(spec: OwnRun) -> Iterator[Iterator[Worker]]:
    """A process for the run alone."""
    mine = spec.folder and CLUSTER_NODE not in spec.tags  # a node has a disk of its own
    with (
        nullcontext(Path(spec.folder)) if mine else scratch("run") as folder,
        workers_of(read_back(spec.config), folder, 1) as workers,
    ):
        yield workers


def train_in(client: MlflowClient, spec: OwnRun, worker: Worker) -> Result:
    """Make one run, recorded as FINISHED or FAILED whatever happens to its process or to this one."""
    config, run_id = read_back(spec.config), spec.run_id
    name, params, usual = run_name(config), run_params(config), usual_params(config)
    own = {**run_tags(config), ROLE: spec.role, **spec.tags}
    if run_id:
        describe_run(client, run_id, name, own, params, usual)
    else:
        run_id = create_child_run(client, spec.session, name, own, params, usual)
    # For runs that are added to a session, or made on a node, another process holds it open.
    alone = not spec.run_id and CLUSTER_NODE not in spec.tags
    job = replace(spec, run_id=run_id, alone_in_session=alone)
    try:
        result = run(worker, job, config.tier.timeout_minutes * 60)
    except BaseException:
        close_run(client, run_id, "interrupted", "the session was stopped")
        raise
    if not result.failure and not is_recorded(client, run_id):
        result = replace(result, failure="error", reason=UNRECORDED)
    # The run has recorded its end itself, unless its process was killed.
    close_run(client, run_id, result.failure, result.reason, raised_tags(result.raised))
    return result


def is_recorded(client: MlflowClient, run_id: str) -> bool:
    """Whether the store has a run's end, which is the last thing that a run sends."""
    return ROWS_LOST in get_run(client, run_id).data.tags


def code_of(result: Result) -> int:
    """The exit code for one run's end: 3 if an exception ended it, which the gate weighs."""
    return 3 if result.failure == "error" and result.raised else code_of_failure(result.failure)


def code_of_failure(failure: str) -> int:
    """0 finished, 1 unstable, 2 wrong configuration, 4 broken from outside."""
    if not failure:
        return 0
    return 1 if failure in UNSTABLE else 2 if failure == "config" else 4
