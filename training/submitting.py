"""Runs a sweep's jobs by Hydra's submitit launchers: as local processes or Slurm jobs, which end with the sweep.

The launcher submits them and waits for them. Submitit is imported only if it is asked for.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from hydra.core.utils import JobReturn, JobStatus

from canary_mlflow.edge import OUTSIDE, unwinding
from canary_mlflow.errors import CanaryError, UsageError, one_line
from canary_mlflow.launching.cluster import GRACE
from canary_mlflow.shown import say
from canary_mlflow.tracking.signals import Terminated, notice, waiting
from canary_mlflow.tracking.stores import owner
from canary_mlflow.training import devices
from canary_mlflow.training.config import CanaryConfig
from canary_mlflow.training.process import deaf_to_the_terminal

LOCAL, SLURM = "submitit_local", "submitit_slurm"
LAUNCHERS = (LOCAL, SLURM)
HERE = ("basic", "joblib", LOCAL)  # Hydra's launchers whose jobs run on this machine
TOOLS = ("sbatch", "srun", "sacct", "scancel")
CONTROLLER = "submitit.local._local"  # the module of the process that runs a job on this machine
EARLY = 60  # seconds that Slurm may send a signal before it is due
TASKS = "SLURM_STEP_NUM_TASKS"  # in the environment of what `srun` started
RESTARTS = "SLURM_RESTART_COUNT"  # in the environment of a job that Slurm has started again
NEVER_AGAIN = "++hydra.launcher.additional_parameters.no-requeue=true"  # Slurm itself starts lost jobs again

Jobs = Callable[[Sequence[str]], object]
"""A function that lets Hydra run the jobs that a command line asks for."""


def check(launcher: str, keys: Mapping[str, Any], config: CanaryConfig, *, multirun: bool) -> None:
    """Raise UsageError for jobs that could not be started, or would not be one process each."""
    if launcher not in LAUNCHERS:
        return
    if not multirun:
        raise UsageError(
            f"hydra/launcher={launcher} runs the jobs of a sweep, and this is a session; expected --multirun, or "
            "launcher=ray"
        )
    for key in ("nodes", "tasks_per_node"):
        if keys[key] != 1:
            raise UsageError(
                f"hydra.launcher.{key} is {keys[key]}, and each task would make the job's runs again; expected 1; "
                "hardware.ranks trains a run with several processes"
            )
    if keys.get("max_num_timeout"):
        raise UsageError(
            f"hydra.launcher.max_num_timeout is {keys['max_num_timeout']}; expected 0: no run resumes after its "
            "time is up; set hydra.launcher.timeout_min"
        )
    if launcher == SLURM:
        _check_slurm(keys)
    if launcher == LOCAL and not keys["gpus_per_node"] and devices.cards_in_sight(vars(config.hardware)):
        raise UsageError(
            f"hydra/launcher={LOCAL} hides this machine's GPUs from its jobs; expected hydra.launcher.gpus_per_node=1, "
            "or hardware=cpu"
        )


def _check_slurm(keys: Mapping[str, Any]) -> None:
    if lacking := [tool for tool in TOOLS if shutil.which(tool) is None]:
        raise UsageError(
            f"hydra/launcher={SLURM}: there is no {' and no '.join(lacking)} here; expected a machine that submits to "
            f"Slurm; hydra/launcher={LOCAL} runs the jobs on this one"
        )
    if keys["additional_parameters"].get("requeue"):
        raise UsageError(
            "hydra.launcher.additional_parameters.requeue is true, and no run can resume; expected no such key: a job "
            "that is lost is missed, and the others are judged"
        )
    if os.environ.get("SBATCH_EXPORT", "").upper() in ("NONE", "NIL"):
        raise UsageError("SBATCH_EXPORT is NONE, and jobs need this environment; expected ALL: unset SBATCH_EXPORT")
    minutes, delay = keys["timeout_min"], keys["signal_delay_s"]
    if minutes * 60 <= delay + EARLY:
        raise UsageError(
            f"hydra.launcher.timeout_min is {minutes}, and Slurm ends a job {delay} s before its time is up "
            f"(hydra.launcher.signal_delay_s), or up to a minute earlier; expected at least {(delay + EARLY) // 60 + 1}"
        )


def refuse_copies() -> None:
    """Raise UsageError in one of several tasks that `srun` started with the same command."""
    tasks = os.environ.get(TASKS, "1")
    if tasks not in ("0", "1"):
        raise UsageError(
            f"srun started this command as {tasks} tasks, and each would make the same runs; expected one: srun "
            "--ntasks=1; hardware.ranks trains a run with several processes"
        )


def note(launcher: str, store: str) -> str:
    """A sentence on what a reader should know about where the jobs record."""
    if launcher != SLURM or not store.startswith("sqlite"):
        return ""
    return (
        f"note: the store {store} is a file: the nodes must see it at this path; more than one node needs a server; "
        "set MLFLOW_TRACKING_URI"
    )


def submitted(launcher: str, jobs: Jobs) -> Jobs:
    """`jobs` by this Hydra launcher, wrapped so that its end also ends the jobs that were submitted."""
    if launcher not in LAUNCHERS:
        return jobs

    def run(argv: Sequence[str]) -> object:
        if launcher != SLURM:
            with _kept():
                return jobs(argv)
        from canary_mlflow.training import slurm

        with slurm.watched(say), slurm.outside_of_jobs(), _kept():
            return jobs([*argv, NEVER_AGAIN])

    return run


def in_job(launcher: str, work: Callable[[], int]) -> int:
    """Do the work of one job. In a submitted job, a signal or the end of its time also ends its runs, and becomes an
    error that the launcher's job passes on: it would pass on no signal. Raises CanaryError."""
    if launcher not in LAUNCHERS:
        return work()
    from submitit import JobEnvironment

    from canary_mlflow.training.single_run import follow_launcher

    if os.environ.get(RESTARTS, "0") != "0":
        raise CanaryError("Slurm has started it again, and no run can resume; it has made none")
    sys.argv[0] = str(
        Path(__file__).resolve().with_name("__main__.py")
    )  # MLflow takes a run's source and commit from it
    # Sent if its time is up or Slurm wants the node. Submitit would restart the job, but no run can continue.
    soon = signal.Signals[f"SIG{JobEnvironment.USR_SIG}"]
    signal.signal(soon, notice)
    try:
        with unwinding():
            follow_launcher()
            return work()
    except (KeyboardInterrupt, Terminated) as error:
        why = ", sent because its time is up" if getattr(error, "signum", None) == soon else ""
        line = f"{one_line(error)}{why}; runs that had not ended are recorded as FAILED"
        say(line)
        raise CanaryError(line) from error


class Job:
    """What the launcher waits for. A lost job does not end the others; its runs' records tell that it was lost."""

    def __init__(self, job: Any) -> None:
        self.job, self.ended_well = job, False

    def results(self) -> list[JobReturn]:
        """How the job ended; the launcher calls this method."""
        from submitit.core.utils import FailedJobError, UncompletedJobError

        try:
            with waiting():
                found: list[JobReturn] = self.job.results()
            self.ended_well = all(one.status == JobStatus.COMPLETED for one in found)
            if self.ended_well:
                return found
            how = f"broke off ({one_line(found[0]._return_value)})"  # the property would raise it
        except FailedJobError as error:  # its last lines are advice, behind a line of dashes
            *_, last = str(error).rpartition("-" * 22)[0].strip().splitlines() or [one_line(error)]
            how = f"broke off ({last})"
        except UncompletedJobError:
            how = f"reported nothing (state {self.job.state})"
        say(f"job {self.job.job_id} {how}; its output: {self.job.paths.stderr}")
        return [JobReturn(_return_value=OUTSIDE, status=JobStatus.COMPLETED)]


@contextmanager
def _kept() -> Iterator[None]:
    """Keep track of the jobs that are submitted meanwhile, which the launcher does not expose."""
    import submitit
    from submitit.core.utils import FailedJobError

    known: list[Job] = []
    submit = submitit.AutoExecutor.map_array

    def submit_and_keep(executor: Any, *arguments: Any) -> list[Job]:
        try:
            with deaf_to_the_terminal():
                found = submit(executor, *arguments)
        except FailedJobError as error:
            raise CanaryError(f"no job was submitted: {one_line(error)}; expected options Slurm accepts") from error
        folder = str(executor.folder).partition("/%")[0]  # submitit's own placeholders for the job
        say(f"jobs {' '.join(job.job_id for job in found)}; their output: {folder}")
        known.extend(kept := [Job(job) for job in found])
        return kept

    os.environ[owner.LAUNCHER] = owner.this_process().to_text()
    submitit.AutoExecutor.map_array = submit_and_keep  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        submitit.AutoExecutor.map_array = submit  # type: ignore[method-assign]
        del os.environ[owner.LAUNCHER]
        _end_here()
        _end_in_slurm(known)


def _end_here() -> None:
    """End the jobs on this machine, found among its processes: one may have started before anybody knew of it."""
    left = [child for child in psutil.Process().children() if _is_controller(child)]
    deadline = time.monotonic() + GRACE
    while left and time.monotonic() < deadline:
        for each in left:  # again, because a process that is just starting misses it
            with suppress(psutil.NoSuchProcess):
                each.terminate()
        _, left = psutil.wait_procs(left, timeout=1)
    for each in left:
        with suppress(psutil.NoSuchProcess):
            for process in (*each.children(recursive=True), each):
                process.kill()


def _is_controller(process: psutil.Process) -> bool:
    try:
        return CONTROLLER in process.cmdline()
    except psutil.Error:
        return False


def _end_in_slurm(jobs: Sequence[Job]) -> None:
    """Cancel the jobs that have not ended, and those that Slurm may yet start again; the store shows when their runs
    have ended."""
    from submitit.slurm.slurm import SlurmJob

    left = [one.job.job_id for one in jobs if isinstance(one.job, SlurmJob) and not one.ended_well]
    with suppress(OSError):
        if left:
            subprocess.run(["scancel", "--quiet", *left], check=False)
