"""`python -m training.profile_run`: profile the configuration of a run, in a separate run that is never evidence.

`canary profile` starts it. Exit codes: 0 profiled, 2 wrong use, 4 something outside failed.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser
from collections.abc import Sequence

if __name__ == "__main__":  # before importing anything that another environment's Python may lack
    from canary_mlflow.interpreter import CORE, TRAINING_STACK, settle

    settle((*CORE, *TRAINING_STACK))

from canary_mlflow.loading import collect_seldom
from canary_mlflow.registry.artifacts import subject_of
from canary_mlflow.tags import ALGO, NOT_PROMOTABLE, PROFILE_OF, ROLE, SEED
from canary_mlflow.tracking.reading.profile import FOLDER, PROFILE
from canary_mlflow.training.compose import register_schemas, to_config
from canary_mlflow.training.errors import ended
from canary_mlflow.training.naming import PROFILER
from canary_mlflow.training.preflight import preflight
from canary_mlflow.training.process import settings


def main(arguments: Sequence[str] | None = None) -> int:
    """Profile the run that the command line names."""
    collect_seldom()
    register_schemas()
    parser = ArgumentParser(prog="python -m training.profile_run", description=__doc__)
    parser.add_argument("--like", required=True, help="the run whose configuration is repeated")
    parser.add_argument("--store", required=True)
    found = parser.parse_args(sys.argv[1:] if arguments is None else arguments)
    return ended(lambda: profile_run(found.store, found.like))


def profile_run(store: str, run_id: str) -> int:
    """Train a few steps under the profiler, and keep profile and trace in a new run beside the one it repeats."""
    from canary_mlflow.launching.added_runs import configuration_of
    from canary_mlflow.tracking.delivery.uploading import upload
    from canary_mlflow.tracking.stores.owner import scratch
    from canary_mlflow.tracking.stores.session import get_run
    from canary_mlflow.tracking.stores.store import prepare_store
    from canary_mlflow.training import algorithms
    from canary_mlflow.training.devices import settle as settle_device
    from canary_mlflow.training.parts import prepare_inputs

    client = prepare_store(store)
    like = get_run(client, run_id)
    config = to_config(configuration_of(client, run_id))
    os.environ.update(settings(config.hardware.threads))  # torch is not loaded yet
    preflight(config)
    algorithms.load(config.algo.name)
    device, inputs = settle_device(config.hardware), prepare_inputs(config)
    from canary_mlflow.training.profiling import profile_training

    with scratch("profile") as folder:
        profile_training(config, inputs, device, folder)
        told = {ALGO: config.algo.name, SEED: str(config.seed), NOT_PROMOTABLE: PROFILER}
        tags = {ROLE: PROFILE, PROFILE_OF: subject_of(like), **told}
        name = f"profile of {like.info.run_name}"
        made = client.create_run(like.info.experiment_id, tags=tags, run_name=name).info.run_id
        ended_as = "FAILED"
        try:
            upload(client, made, folder / FOLDER, FOLDER, scratch=True)
            ended_as = "FINISHED"
        finally:
            client.set_terminated(made, ended_as)
    return 0


if __name__ == "__main__":
    sys.exit(main())
