"""What Slurm needs beyond Hydra's launcher for it: jobs that are not started twice, and word of how they are.

Imported, with submitit, only when a sweep's jobs go to Slurm.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from submitit.slurm.slurm import SlurmInfoWatcher, SlurmJob

from canary_mlflow.errors import one_line

PATIENCE = 60.0  # seconds that Slurm's own commands have to answer
LONGEST = 600.0  # seconds between two questions about the same jobs, as submitit has it
GONE = "no longer known to squeue"
COLUMNS = "JobID|State|Reason"
# Beginnings of the variables by which a job knows itself, and those of them that only name the cluster.
OF_JOBS = ("SLURM_", "SLURMD_", "SRUN_", "SUBMITIT_EXECUTOR", "SUBMITIT_FOLDER")
OF_CLIENTS = ("SLURM_CLUSTERS", "SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT")


class Watcher(SlurmInfoWatcher):
    """Asks Slurm how the jobs are, at growing intervals: `sacct`, or `squeue` where no accounts are kept or their
    server does not answer. Submitit's own asks `sacct` alone, and waits for ever for a job that was lost.

    `say` is told, each once, that `squeue` is asked instead, and what the jobs wait for while none runs.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(delay_s=int(LONGEST))
        self.say, self._said = say, set[str]()

    def update(self) -> None:
        """Ask once for all jobs that have not ended."""
        waiting = self._registered - self._finished
        if not waiting:
            return
        self._num_calls += 1
        self._info_dict.update(self._ask(waiting))
        self._finished |= {job for job in waiting if self.is_done(job, mode="cache")}
        self._last_status_check = time.time()
        if all(self.get_state(job, mode="cache") in ("PENDING", "UNKNOWN") for job in waiting):
            self._say_what_all_wait_for(waiting)

    def _ask(self, waiting: set[str]) -> dict[str, dict[str, str]]:
        try:
            return self.read_info(answer(*self._make_command() or ()))
        except (OSError, subprocess.SubprocessError) as error:
            self._once(f"sacct does not answer ({why(error)}); asking squeue")
        try:
            found = queued()
        except (OSError, subprocess.SubprocessError) as error:  # a controller that restarts: asked again
            self._once(f"squeue does not answer ({why(error)}); waiting for the jobs' results")
            return {}
        return {job: found.get(job, {"State": GONE}) for job in waiting}

    def _say_what_all_wait_for(self, waiting: set[str]) -> None:
        try:
            found = queued()
        except (OSError, subprocess.SubprocessError):
            return
        if any(found[job]["State"] != "PENDING" for job in waiting & set(found)):
            return
        if reasons := {found[job]["Reason"] for job in waiting & set(found)} - {"None", ""}:
            self._once(f"no job is running; what squeue says they wait for: {', '.join(sorted(reasons))}")

    def _once(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            self.say(line)


def queued() -> dict[str, dict[str, str]]:
    """What `squeue` knows of this user's jobs, by their ids; those that ended stay for some minutes. Raises OSError or
    SubprocessError if it does not answer."""
    text = answer("squeue", "--noheader", "--array", "--states=all", f"--user={os.getuid()}", "--format=%i|%T|%r")
    rows = [line.strip().split("|", 2) for line in text.splitlines() if line.count("|") >= 2]
    return {row[0]: dict(zip(COLUMNS.split("|"), row, strict=True)) for row in rows}


def answer(*command: str) -> str:
    """What a command printed."""
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True).stdout


def why(error: Exception) -> str:
    """One line on a command that failed, in its own words if it has any."""
    said = getattr(error, "stderr", None)
    lines = str(said or "").strip().splitlines()
    return one_line(Exception(lines[-1]) if lines else error)


@contextmanager
def watched(say: Callable[[str], None]) -> Iterator[None]:
    """Ask about the jobs as Watcher does."""
    before = SlurmJob.watcher
    SlurmJob.watcher = Watcher(say)
    try:
        yield
    finally:
        SlurmJob.watcher = before


@contextmanager
def outside_of_jobs() -> Iterator[None]:
    """Hide what a job around this process, as in an interactive allocation, says of itself: `sbatch` takes some of it
    for what the new jobs need, and passes the rest on to them, where submitit takes it for their own."""
    within = "SLURM_JOB_ID" in os.environ
    theirs = [key for key in os.environ if key.startswith(OF_JOBS) and key not in OF_CLIENTS] if within else []
    hidden = {key: os.environ.pop(key) for key in theirs}
    try:
        yield
    finally:
        os.environ.update(hidden)
