"""`python -m training`: compose, train, register, gate. The story of a canary.

Exit codes: 0 PASS or bootstrap, 1 BLOCK, 2 wrong use or configuration, 3 INCONCLUSIVE,
4 something outside failed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # before importing anything that another environment's Python may lack
    from canary_mlflow.interpreter import CORE, TRAINING_STACK, settle
    from canary_mlflow.starting import interruptible

    interruptible()
    settle((*CORE, *TRAINING_STACK))

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from canary_mlflow.errors import CanaryError
from canary_mlflow.loading import collect_seldom
from canary_mlflow.notify.session import ask
from canary_mlflow.policies import conf_dir
from canary_mlflow.shown import replace_unknown, say
from canary_mlflow.training import submitting
from canary_mlflow.training.ahead import begun
from canary_mlflow.training.command_line import expand, parse
from canary_mlflow.training.compose import Composed, composed, register_schemas, to_config
from canary_mlflow.training.config import CanaryConfig
from canary_mlflow.training.errors import ended
from canary_mlflow.training.preflight import check_outputs, check_signer, preflight

# launch and sweep import MLflow, which takes longer to load than a refusal should take: imported where they are used.


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for and return the exit code; only here do errors become one line."""
    collect_seldom()
    replace_unknown()
    os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")  # a machine without git can train; silences MLflow's warning
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")  # a server's URL; stdout is for the verdict
    register_schemas()
    return ended(lambda: _run(expand(sys.argv[1:] if arguments is None else arguments)))


def _run(argv: list[str]) -> int:
    """Refuse what cannot be run before anything is recorded; then run the session, or the sweep."""
    line = parse(argv)
    if line.helps:
        _with_hydra(argv)
        return 0
    jobs = composed(line)
    configs = [job.config for job in jobs]
    if line.informs:
        _with_hydra(argv)
        return 0
    submitting.refuse_copies()
    for job in jobs:
        submitting.check(job.launcher, job.launcher_keys, job.config, multirun=line.multirun)
        preflight(job.config, here=job.launcher in submitting.HERE and job.config.launcher.name == "local")
    check_outputs(line.outputs)
    if line.plain:
        return _alone(jobs[0])
    store = _may_begin(configs, in_sweep=line.multirun)
    if line.multirun:
        from canary_mlflow.training.sweep import run_sweep

        if said := submitting.note(jobs[0].launcher, store):
            say(said)
        return run_sweep(configs, argv, submitting.submitted(jobs[0].launcher, _with_hydra))
    (code,) = _with_hydra(argv)
    return code


def _may_begin(configs: Sequence[CanaryConfig], *, in_sweep: bool = False) -> str:
    """Refuse what only the libraries, the ledger or the store know to be wrong; the store's address otherwise."""
    from canary_mlflow.installation import outside_ranges
    from canary_mlflow.training.reward_checks import precheck

    if found := outside_ranges():
        say(f"{found}; a run may break off; pip install 'canary-mlflow[train]'")
    for said in precheck(configs):
        say(said)
    if not in_sweep:  # a sweep registers nothing
        check_signer(configs[0])
    from canary_mlflow.tracking.stores.store import prepare_store

    return prepare_store(configs[0].tracking.uri).tracking_uri  # now: Hydra makes its folder before a job starts


def _alone(job: Composed) -> int:
    """Run one job without Hydra, if nothing says how Hydra is to run it: Hydra would compose it twice more."""
    outputs = Path(job.outputs).absolute()
    ask(job.config.notify.entry(), outputs)
    with begun(job.config, outputs, lambda: _may_begin([job.config])) as workers:
        from canary_mlflow.training import launch

        return launch.run_session(job.config, outputs, workers)


def _with_hydra(argv: Sequence[str]) -> list[int]:
    """Let Hydra do what the words say; return the exit codes of the jobs that ran in this process."""
    codes: list[int] = []
    raised: list[BaseException] = []

    @hydra.main(version_base="1.3", config_path=str(conf_dir().resolve()), config_name="config")
    def task(tree: DictConfig) -> int:
        try:
            settings: Any = HydraConfig.get()
            in_sweep, launcher = settings.mode == RunMode.MULTIRUN, settings.runtime.choices["hydra/launcher"]
            outputs = Path(settings.runtime.output_dir)
            code = submitting.in_job(launcher, lambda: _job(to_config(tree), outputs, in_sweep=in_sweep))
        except BaseException as error:
            raised.append(error)
            if HydraConfig.get().mode == RunMode.MULTIRUN:
                raise  # not an Exception but a signal: let Hydra end the sweep
            return CanaryError.exit_code  # the error is raised below: here Hydra would add its own line
        codes.append(code)
        return code

    # Hydra reads sys.argv. For what is not the user's mistake, show the whole traceback.
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    before, sys.argv = sys.argv, [sys.argv[0], *argv]
    try:
        task()
    finally:
        sys.argv = before
    if raised:
        raise raised[0]
    return codes


def _job(config: CanaryConfig, scratch: Path, *, in_sweep: bool) -> int:
    from canary_mlflow.training import launch, sweep

    ask(config.notify.entry(), scratch)  # whom the processes of its runs are to tell
    return sweep.run_job(config, scratch) if in_sweep else launch.run_session(config, scratch)


if __name__ == "__main__":
    sys.exit(main())
