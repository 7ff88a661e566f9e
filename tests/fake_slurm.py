"""A fake of Slurm's commands, for tests: one partition, and each job a group of processes of this machine.

It knows what submitit and we ask of `sbatch`, `srun`, `sacct`, `squeue` and `scancel`, and nothing more. It keeps each
submission script and each job's state in its folder.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

PARTITION = "canaries"
COMMANDS = ("sbatch", "srun", "sacct", "squeue", "scancel")
# In the environment: its folder, a job whose node is lost at once, and the commands that do not answer.
FOLDER, LOST, SILENT = "FAKE_SLURM", "FAKE_SLURM_LOST", "FAKE_SLURM_SILENT"


def install(folder: Path) -> dict[str, str]:
    """Make the commands; returns the environment in which they are found."""
    place = folder / "slurm"
    (place / "bin").mkdir(parents=True)
    for name in COMMANDS:
        command = place / "bin" / name
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -IS {__file__} {name} "$@"\n')
        command.chmod(0o755)
    return {"PATH": f"{place}/bin{os.pathsep}{os.environ['PATH']}", FOLDER: str(place)}


def scripts(folder: Path) -> list[str]:
    """What was given to `sbatch`."""
    return [path.read_text() for path in sorted((folder / "slurm").glob("*.sh"))]


def cancelled(folder: Path) -> set[str]:
    """The jobs that were given to `scancel`."""
    return {path.stem for path in (folder / "slurm").glob("*.cancelled")}


def options(script: str) -> dict[str, str]:
    """The `#SBATCH` lines of a submission script."""
    found = re.findall(r"^#SBATCH --([\w-]+)=(.*)$", script, flags=re.MULTILINE)
    return {key: " ".join(shlex.split(value)) for key, value in found}


def sbatch(place: Path, script: str) -> int:
    """Begin the jobs of a script."""
    text = Path(script).read_text()
    asked = options(text)
    if asked.get("partition") != PARTITION:
        sys.stderr.write(f"sbatch: error: invalid partition specified: {asked.get('partition')}\n")
        return 1
    number = 41 + len(list(place.glob("*.sh")))
    kept = place / f"{number}.sh"
    kept.write_text(text)
    last = re.fullmatch(r"0-(\d+)%\d+", asked.get("array", ""))
    for index in range(int(last[1]) + 1) if last else [None]:
        job = str(number) if index is None else f"{number}_{index}"
        if os.environ.get(LOST) == job:
            (place / f"{job}.ended").write_text("NODE_FAIL")
            continue
        own = {"SLURM_JOB_ID": str(number), "SLURM_NTASKS": "1", "SLURM_JOB_NUM_NODES": "1", "FAKE_SLURM_JOB": job}
        if index is not None:
            own |= {"SLURM_ARRAY_JOB_ID": str(number), "SLURM_ARRAY_TASK_ID": str(index)}
        ended = str(place / f"{job}.ended")
        process = subprocess.Popen(
            ["sh", "-c", 'bash "$0" && echo COMPLETED >"$1" || echo FAILED >"$1"', str(kept), ended],
            env={**os.environ, **own},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        (place / f"{job}.pid").write_text(str(process.pid))
    sys.stdout.write(f"Submitted batch job {number}\n")
    return 0


def srun(*words: str) -> int:
    """Become the command of a job, with its output in the files that are named."""
    names = {"%A_%a": os.environ["FAKE_SLURM_JOB"], "%j": os.environ["FAKE_SLURM_JOB"], "%t": "0"}
    command = list(words)
    assert command.pop(0) == "--unbuffered"
    for stream, option in ((1, "--output"), (2, "--error")):
        assert command.pop(0) == option
        path = command.pop(0)
        for sign, meant in names.items():
            path = path.replace(sign, meant)
        wait_for_folder(Path(path).parent)
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
    os.environ |= {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}
    os.execvp(command[0], command)


def wait_for_folder(folder: Path) -> None:
    """Wait until submitit has made a job's folder, which it does once `sbatch` has answered: the scheduler of a real
    Slurm takes longer than that to start the job, and here a busy machine may leave submitit behind."""
    deadline = time.monotonic() + 60
    while not folder.exists() and time.monotonic() < deadline:
        time.sleep(0.05)


def sacct(place: Path, *words: str) -> int:
    """The states of all jobs."""
    sys.stdout.write("JobID|State|NodeList\n")
    sys.stdout.writelines(f"{job}|{state(place, job)}|here\n" for job in known(place))
    return 0


def squeue(place: Path, *words: str) -> int:
    """The same, in the columns that we ask for."""
    assert words[-1] == "--format=%i|%T|%r"
    sys.stdout.writelines(f"{job}|{state(place, job)}|None\n" for job in known(place))
    return 0


def known(place: Path) -> list[str]:
    return sorted({path.stem for kind in ("pid", "ended") for path in place.glob(f"*.{kind}")})


def state(place: Path, job: str) -> str:
    """In Slurm's words."""
    if (place / f"{job}.cancelled").exists():
        return "CANCELLED by 0"
    process = place / f"{job}.pid"
    alive = process.exists() and Path("/proc", process.read_text()).exists()  # asked first: it may end meanwhile
    ended = place / f"{job}.ended"
    if ended.exists():
        return ended.read_text().strip() or "RUNNING"
    return "RUNNING" if alive else "NODE_FAIL"


def scancel(place: Path, quiet: str, *jobs: str) -> int:
    """Ask the processes of jobs to end."""
    assert quiet == "--quiet"
    for job in jobs:
        (place / f"{job}.cancelled").touch()
        with suppress(OSError):  # it is over
            os.killpg(int((place / f"{job}.pid").read_text()), signal.SIGTERM)
    return 0


if __name__ == "__main__":
    name, *given = sys.argv[1:]
    here = Path(os.environ[FOLDER])
    if name in os.environ.get(SILENT, "").split():
        sys.exit(f"{name}: error: no connection")
    if name == "srun":
        sys.exit(srun(*given))
    sys.exit({"sbatch": sbatch, "scancel": scancel, "sacct": sacct, "squeue": squeue}[name](here, *given))
