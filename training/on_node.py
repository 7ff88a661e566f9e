"""Makes a session's own runs on a node of a cluster: in the same processes as here, in a scratch folder of the node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from canary_mlflow.tracking.stores.owner import scratch
from training.ahead import workers_of
from training.compose import to_config


def prepare(*, tags: Mapping[str, str], config: Mapping[str, Any]) -> dict[str, Any]:
    """What a run of this configuration reports about its work on this node's device (training.process.Prepared)."""

    with scratch("prepare") as folder, workers_of(to_config(config), folder, 1) as workers:
        return asdict(next(workers).prepared)


def train(
    *,
    tags: Mapping[str, str],
    config: Mapping[str, Any],
    store: str,
    session: str,
    place: str,
    champion: list[str],
    keep_weights: bool,
    profile: bool,
    holder: Mapping[str, str],
) -> dict[str, Any]:
    """Make one run of a session, and return its Result (training.process) and its work as JSON values.

    `holder`: the lease of the session's process, which holds the run: if both processes are killed, the next session
    ends the run.
    """
    from canary_mlflow.tracking.stores.store import prepare_store
    from training.runs import train_one

    seeded, client = to_config(config), prepare_store(store)
    with scratch("node") as folder, workers_of(seeded, folder, 1) as workers:
        worker = next(workers)
        work = worker.prepared.workload
        given = {**tags, **holder}
        result = train_one(
            client,
            session,
            seeded,
            worker,
            place,
            champion,
            keep_weights=keep_weights,
            profile=profile,
            tags=given,
            alone=False,
        )
    return {"result": asdict(result), "work": work}
