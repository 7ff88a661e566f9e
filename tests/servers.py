"""A real tracking server that can be killed and started again on the same port and store."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path

import forking
import psutil


class Server:
    """`mlflow server` with one worker; its artifacts lie under `folder`, or at `artifacts`. `app`: MLflow's --app-name.

    `python`: instead of the one that forks. Whoever sends signals needs one whose processes are those of Linux.
    """

    def __init__(
        self,
        store: str,
        folder: Path,
        *,
        registry: str = "",
        app: str = "",
        environment: Mapping[str, str] | None = None,
        python: str = "",
        artifacts: str = "",
    ) -> None:
        self.store = store
        self.artifacts = artifacts or str(folder / "artifacts")
        self.folder = folder
        self.words = [*(["--registry-store-uri", registry] if registry else []), *(["--app-name", app] if app else [])]
        self.environment = dict(environment or {})
        self.python = python or forking.python()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None
        self._port_kept: socket.socket | None = None

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()
        self._free_port()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self._free_port()
        command = [self.python, "-m", "mlflow", "server", "--backend-store-uri", self.store, "--workers", "1"]
        artifacts = ["--artifacts-destination", self.artifacts, *self.words]
        kept = {key: value for key, value in os.environ.items() if not key.startswith("MLFLOW_")}
        log = self.folder / "server.log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [*command, "--host", "127.0.0.1", "--port", str(self.port), *artifacts],
                cwd=self.folder,
                env={**kept, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", **self.environment},
                stdout=output,
                stderr=output,
                start_new_session=True,  # a group of its own, with the workers that it starts
            )
        for _ in range(960):  # it takes 5 s on an idle machine, and minutes on a crowded one
            assert self._process.poll() is None, f"the server did not start: {log.read_text()[-2000:]}"
            try:
                with urllib.request.urlopen(f"{self.uri}/health", timeout=2):
                    return
            except OSError:
                time.sleep(0.25)
        raise TimeoutError(self.uri)

    @property
    def pid(self) -> int:
        """Of the process that answers: a child of `mlflow server`, where that has started uvicorn as a command."""
        assert self._process is not None
        pid = self._process.pid
        started = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(started[0]) if started else pid

    def wait(self) -> None:
        """Until it has ended by itself."""
        assert self._process is not None
        self._process.wait(timeout=30)

    def hang(self) -> None:
        """Have it take connections and answer nobody."""
        os.kill(self._listens(), signal.SIGSTOP)

    def go_on(self) -> None:
        """Have it answer what it was asked meanwhile."""
        os.kill(self._listens(), signal.SIGCONT)

    def _listens(self) -> int:
        (pid,) = {
            each.pid
            for each in psutil.net_connections("tcp")
            if each.status == psutil.CONN_LISTEN and each.laddr.port == self.port
        }
        assert pid is not None
        return pid

    def kill(self) -> None:
        """End it as a crash would."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)  # with the workers that it started
            self._process.wait()
        while self._answers():  # a fork ends a moment later
            time.sleep(0.02)
        self._free_port()
        self._port_kept = socket.socket()  # or another test's server might answer here meanwhile
        self._port_kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._port_kept.bind(("127.0.0.1", self.port))

    def _free_port(self) -> None:
        if self._port_kept is not None:
            self._port_kept.close()
            self._port_kept = None

    def _answers(self) -> bool:
        with socket.socket() as caller:
            return caller.connect_ex(("127.0.0.1", self.port)) == 0
