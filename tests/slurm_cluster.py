"""A real Slurm with this machine as its only node, for tests and benchmarks: its own key, ports and folder, and no
accounts. Needs Slurm's daemons and MUNGE, on Debian the packages slurm-wlm and munge; no rights, and no running Slurm.
"""

from __future__ import annotations

import getpass
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue")
PATH = os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/sbin"])
PARTITION = "canaries"
CORES = len(os.sched_getaffinity(0))
CONFIG = """
ClusterName=canary
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser={user}
SlurmdUser={user}
AuthInfo=socket={folder}/munge.sock
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} State=UNKNOWN
PartitionName={partition} Nodes=ALL Default=YES MaxTime=60 State=UP
"""


def lacking() -> str:
    """What this machine lacks for a cluster, in one sentence; empty if nothing."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
    return f"no Slurm here: no {', no '.join(missing)}; on Debian: apt-get install slurm-wlm munge" if missing else ""


@dataclass
class Slurm:
    """A cluster that is up. `environment`: with it, Slurm's commands talk to this cluster."""

    folder: Path
    host: str
    environment: dict[str, str]
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def ask(self, *command: str) -> str:
        """What one of Slurm's commands printed."""
        done = subprocess.run(
            command, env={**os.environ, **self.environment}, capture_output=True, text=True, timeout=120, check=True
        )
        return done.stdout

    def state(self) -> str:
        """The node's."""
        return self.ask("sinfo", "--noheader", "--format=%T").strip()

    def jobs(self) -> list[str]:
        """The ids of those that have not ended."""
        return self.ask("squeue", "--noheader", "--array", "--format=%i").split()

    def lose_node(self) -> None:
        """As a machine dies: its daemon, and all that this has started. The controller learns of it at once."""
        found = {each for process in psutil.process_iter() if self._in_a_job(process) for each in _with_step(process)}
        for process in (self.daemons.pop("slurmd"), *found):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.ask("scontrol", "update", f"nodename={self.host}", "state=down", "reason=lost")

    def return_node(self) -> None:
        """The machine is there again."""
        self.start("slurmd", "-D", "-c")
        self.ask("scontrol", "update", f"nodename={self.host}", "state=idle")
        self.wait()

    def _in_a_job(self, process: psutil.Process) -> bool:
        with suppress(psutil.Error):
            own = process.environ()
            return "SLURM_JOB_ID" in own and own.get("SLURM_CONF") == self.environment["SLURM_CONF"]
        return False

    def start(self, name: str, *words: str) -> None:
        """Start a daemon in the foreground, as a child of this process."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self.daemons[name] = subprocess.Popen(
                [str(shutil.which(name, path=PATH)), *words],
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def wait(self, seconds: float = 60) -> None:
        """Until the node takes jobs. Raises RuntimeError with what its daemons say."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with suppress(subprocess.SubprocessError):
                if self.state() == "idle":
                    return
            time.sleep(0.2)
        said = "\n".join(path.read_text(errors="replace")[-2000:] for path in self.folder.glob("*.log"))
        raise RuntimeError(f"the cluster did not come up:\n{said}")


def _with_step(process: psutil.Process) -> list[psutil.Process]:
    """A job's process, and Slurm's own that waits for it."""
    with suppress(psutil.Error):
        return [process, *(each for each in process.parents() if each.name().startswith("slurmstepd"))]
    return []


@contextmanager
def cluster() -> Iterator[Slurm]:
    """Up for a while."""
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))  # a socket's path is short
    host = socket.gethostname().partition(".")[0]
    key = folder / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(1024))
    for name in ("state", "spool"):
        (folder / name).mkdir()
    own = {"host": host, "ports": _free_ports(2), "user": getpass.getuser(), "folder": folder}
    (folder / "slurm.conf").write_text(CONFIG.format(**own, cores=CORES, partition=PARTITION))
    found = Slurm(folder, host, {"PATH": PATH, "SLURM_CONF": str(folder / "slurm.conf")})
    files = {"key-file": "munge.key", "socket": "munge.sock", "pid-file": "munge.pid", "seed-file": "munge.seed"}
    try:
        found.start("munged", "--foreground", "--force", *(f"--{key}={folder / file}" for key, file in files.items()))
        found.start("slurmctld", "-D", "-c")
        found.start("slurmd", "-D", "-c")
        found.wait()
        yield found
    finally:
        with suppress(subprocess.SubprocessError):
            found.ask("scancel", f"--user={os.getuid()}")
            end = time.monotonic() + 60
            while found.jobs() and time.monotonic() < end:
                time.sleep(0.2)
        for daemon in reversed(found.daemons.values()):
            daemon.terminate()
            daemon.wait(60)
        shutil.rmtree(folder, ignore_errors=True)


def _free_ports(count: int) -> list[int]:
    held = [socket.socket() for _ in range(count)]
    for each in held:
        each.bind(("127.0.0.1", 0))
    ports = [int(each.getsockname()[1]) for each in held]
    for each in held:
        each.close()
    return ports
