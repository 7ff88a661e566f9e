"""The process that forks: it loads the libraries once, when first asked; a fork then has fresh memory in no time.

It serves forking/python, one connection per fork: streams and a request come in, signals after it; the exit code goes
back. A connection that closes before means that whoever waited was killed, and so is the fork.

    python tests/forking/server.py SOCKET LIFELINE      # two file descriptors; ends when LIFELINE does
"""

from __future__ import annotations

import atexit
import gc
import marshal
import os
import pkgutil
import runpy
import selectors
import shutil
import signal
import socket
import sys
import threading
import time
import traceback
import weakref
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module, reload
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
RUNNER = str(ROOT / "canary_mlflow/module_runner.py")
# What sessions and servers load only as they go.
LATER = (
    "IPython",
    "alembic.command",
    "flask_wtf",
    "git",
    "hydra_plugins.hydra_joblib_launcher.joblib_launcher",
    "hydra_plugins.hydra_submitit_launcher.submitit_launcher",
    "matplotlib.backends.backend_agg",
    "matplotlib.backends.backend_svg",
    "matplotlib.figure",
    "mlflow.cli",
    "mlflow.protos.internal_pb2",
    "mlflow.pyfunc",
    "mlflow.store.tracking._sql_backend_utils",
    "mlflow.store.tracking.file_store",
    "mlflow.store.tracking.sqlalchemy_workspace_store",
    "mlflow.system_metrics.metrics.cpu_monitor",
    "mlflow.system_metrics.metrics.disk_monitor",
    "mlflow.system_metrics.metrics.gpu_monitor",
    "mlflow.system_metrics.metrics.network_monitor",
    "mlflow.webhooks.delivery",
    "netrc",
    "psycopg",
    "rich._emoji_codes",
    "scipy.stats",
    "sqlalchemy.dialects.postgresql.psycopg",
    "sqlalchemy.dialects.sqlite",
    "submitit.core.submission",
    "transformers.models.gpt_neox.modeling_gpt_neox",
    "uvicorn.main",
)
# Read when libraries are loaded: a fork has the values of this process.
READ_AT_START = ("PYTHON", "HF_", "TRANSFORMERS_", "TOKENIZERS_", "OMP_", "MKL_", "LD_")
NOT_READ = ("PYTHON", "PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE")  # a fork's path is made anew
OFFLINE = "HF_HUB_OFFLINE"  # read anew: whatever loads weights from a folder starts a process that asks no hub
CACHES = ("HF_DATASETS_CACHE", "HF_DATASETS_DOWNLOADED_DATASETS_PATH")  # and these: each side compared has its own
SITE = {"sitecustomize", "usercustomize"}  # Python loads them before it knows what it is to run
CLEAN_PATH = sys.path[1:]
FIRST = "CANARY_TEST_FIRST"  # a file of Python that a fork runs before all else, as a process does a sitecustomize


def load(folder: Path) -> None:
    """All that a session, its runs and the commands load: our own modules and with them the libraries."""
    import ready_configs
    import ready_packages
    import ready_store

    import canary_mlflow
    from canary_mlflow import policies
    from canary_mlflow.training import algorithms, command_line, compose, process, worker

    ready_store.install(folder)
    ready_configs.install()
    ready_packages.install()
    os.environ.update(process._environment(1))
    for algo in algorithms.NAMES:
        worker.load(algo)
    for module in pkgutil.walk_packages(canary_mlflow.__path__, "canary_mlflow."):
        import_module(module.name)
    for name in LATER:
        import_module(name)
    del sys.modules["mlflow.server"]  # the application itself reads its environment when it is loaded
    for name in policies.policy_names():
        policies.load_policy(name)  # whose files are read once in a process
    make_once()
    compose.register_schemas()
    for algo in ("sft", "dpo", "ppo"):  # what most forks ask for
        compose.check(command_line.parse([f"algo={algo}"]))
    leave_ends_to_this_process()
    gc.collect()
    gc.freeze()


def leave_ends_to_this_process() -> None:
    """Have no fork take down at its end what was loaded here, torch's operators above all: 35 ms of CPU, for it would
    get a copy of 9000 pages."""
    for end in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        end.atexit = False


def make_once() -> None:
    """What takes a tenth of a second when a process first needs it."""
    from transformers.conversion_mapping import get_checkpoint_conversion_mapping

    from canary_mlflow.reports.rendering import environment
    from canary_mlflow.shown import finalized

    get_checkpoint_conversion_mapping("gpt_neox")
    environment(finalized).get_template("study.html")


@dataclass(kw_only=True)
class Request:
    """What a process is made of."""

    executable: str
    words: list[str]
    folder: str
    environment: dict[str, str]
    blocked: list[int]
    ignored: list[int]
    streams: list[int]

    @property
    def path(self) -> list[str]:
        """What `sys.path` begins with."""
        first = {"-m": self.folder, "-c": ""}.get(self.words[0], str(Path(self.folder, self.words[0]).parent))
        return [first, *filter(None, self.environment.get("PYTHONPATH", "").split(os.pathsep))]

    def forkable(self) -> bool:
        """Whether the fork would be what a new process is."""
        if not self.words or (self.words[0].startswith("-") and self.words[0] not in ("-m", "-c")):
            return False
        if self.words[:2] == ["-m", "submitit.local._local"]:
            return False  # known by the number of its process, which a fork does not have
        for key, value in self.environment.items():
            if (
                key.startswith(READ_AT_START)
                and key not in (*NOT_READ, OFFLINE, *CACHES)
                and os.environ.get(key) != value
            ):
                return False
        first, *others = (Path(self.folder, entry) for entry in self.path)
        return not (shadows(first, loaded()) or any(shadows(each, loaded() | SITE) for each in others))


def loaded() -> set[str]:
    """The top-level modules that are loaded here."""
    return {name.partition(".")[0] for name in sys.modules}


def shadows(folder: Path, names: set[str]) -> bool:
    """Whether a folder of the path has code that Python would have taken instead of what is loaded here."""
    if folder == ROOT or not folder.is_dir():
        return False
    return any(
        entry.name.removesuffix(".py") in names
        for entry in os.scandir(folder)
        if entry.name.endswith(".py") or Path(entry, "__init__.py").exists()
    )


def become(request: Request) -> int:
    """Be what was asked for, until it ends; returns its exit code."""
    for at, stream in enumerate(request.streams):
        os.dup2(stream, at)
        os.close(stream)
    os.setsid()  # with a group of its own, which a kill ends
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environment)
    time.tzset()
    sys.executable = request.executable
    sys.orig_argv = [request.executable, *request.words]
    sys.path[:] = [*request.path, *CLEAN_PATH]
    sys.stdout.reconfigure(write_through="PYTHONUNBUFFERED" in os.environ)  # type: ignore[union-attr]
    seed_anew()
    ask_a_hub_or_not()
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        usual = signal.default_int_handler if each == signal.SIGINT else signal.SIG_DFL
        signal.signal(each, signal.SIG_IGN if each in request.ignored else usual)
    signal.pthread_sigmask(signal.SIG_SETMASK, request.blocked)
    if first := os.environ.get(FIRST):
        runpy.run_path(first)
    code = outcome(request.words)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    return code


def seed_anew() -> None:
    """Python does it for `random`."""
    import tempfile

    import numpy as np

    np.random.seed()
    tempfile.tempdir = None


def ask_a_hub_or_not() -> None:
    """What two libraries made of OFFLINE and CACHES when they were loaded."""
    from datasets import config
    from huggingface_hub import constants

    if os.environ.keys() & {*CACHES}:
        reload(config)
    offline = constants._is_true(os.environ.get(OFFLINE) or os.environ.get("TRANSFORMERS_OFFLINE"))
    constants.HF_HUB_OFFLINE = config.HF_HUB_OFFLINE = config.HF_DATASETS_OFFLINE = offline


def outcome(words: list[str]) -> int:
    """Run a module, a text or a file as `python` does."""
    try:
        if words[0] in ("-m", RUNNER):
            for name in (words[1], f"{words[1]}.__main__"):
                if name not in sys.modules or not hasattr(sys.modules[name], "__path__"):
                    sys.modules.pop(name, None)  # what is run has not been loaded
        if words[0] == "-m":
            sys.argv = words[1:]
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        elif words[0] == "-c":
            sys.argv = ["-c", *words[2:]]
            sys.modules["__main__"] = main = ModuleType("__main__")
            exec(compile(words[1], "<string>", "exec"), vars(main))
        else:
            sys.argv = [*words]
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xFF
        print(end.code, file=sys.stderr)
        return 1
    except BaseException as error:  # noqa: BLE001 - as Python does at its end
        sys.last_type, sys.last_value, sys.last_traceback = sys.exc_info()
        sys.excepthook(*sys.exc_info())
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return 0


class Server:
    """Forks, and says how each fork ended."""

    def __init__(self, listener: int, lifeline: int) -> None:
        self.listener = socket.socket(fileno=listener)
        self.place = Path(self.listener.getsockname())
        self.events = selectors.DefaultSelector()
        self.events.register(self.listener, selectors.EVENT_READ, self.accept)
        self.events.register(lifeline, selectors.EVENT_READ, self.end)
        self.forks: dict[int, socket.socket] = {}
        self.loaded = False

    def serve(self) -> None:
        while True:
            for key, _ in self.events.select():
                key.data()

    def end(self) -> None:
        for pid in self.forks:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        shutil.rmtree(self.place.parent, ignore_errors=True)
        os._exit(0)

    def accept(self) -> None:
        connection, _ = self.listener.accept()
        _, streams, _, _ = socket.recv_fds(connection, 1, 3)
        said = b""
        while b"\n" not in said and (more := connection.recv(65536)):
            said += more
        text, asked, signals = said.partition(b"\n")
        if not asked:  # killed meanwhile
            connection.close()
            return self.close(streams)
        request = Request(**marshal.loads(bytes.fromhex(text.decode())), streams=streams)
        if request.words[:1] == ["-u"]:
            del request.words[0]
            request.environment["PYTHONUNBUFFERED"] = "1"
        if not self.loaded:
            load(self.place.parent)
            self.loaded = True
        if not request.forkable():
            connection.sendall(b"real\n")
            connection.close()
            return self.close(streams)
        pid = os.fork()
        if pid == 0:
            self.become(request, connection)
        self.close(streams)
        self.forks[pid] = connection
        for number in signals.split():
            os.kill(pid, int(number))
        ended = os.pidfd_open(pid)
        self.events.register(connection, selectors.EVENT_READ, lambda: self.hand_on(pid))
        self.events.register(ended, selectors.EVENT_READ, lambda: self.bury(pid, ended))
        return None

    def close(self, streams: list[int]) -> None:
        for stream in streams:
            os.close(stream)

    def become(self, request: Request, connection: socket.socket) -> None:
        code = 1
        try:
            for key in list(self.events.get_map().values()):
                os.close(key.fd)
            self.events.close()
            connection.close()
            code = become(request)
        except BaseException:  # noqa: BLE001 - what a fork cannot become is no matter of the process that forks
            traceback.print_exc()
        finally:
            if code < 0:
                signal.signal(-code, signal.SIG_DFL)
                os.kill(os.getpid(), -code)
            os._exit(code)

    def hand_on(self, pid: int) -> None:
        """Signals, as lines; at the end of file, a death."""
        if (connection := self.forks.get(pid)) is None:
            return  # it has ended in this moment
        try:
            text = connection.recv(64)
        except ConnectionResetError:
            text = b""
        for number in text.split():
            os.kill(pid, int(number))
        if not text:
            self.events.unregister(connection)
            os.kill(pid, signal.SIGKILL)
            with suppress(ProcessLookupError):  # it had not come to making a group yet
                os.killpg(pid, signal.SIGKILL)

    def bury(self, pid: int, ended: int) -> None:
        _, status = os.waitpid(pid, 0)
        connection = self.forks.pop(pid)
        self.events.unregister(ended)
        os.close(ended)
        with suppress(KeyError):  # whoever waited was killed
            self.events.unregister(connection)
        with suppress(OSError):
            connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
        connection.close()


if __name__ == "__main__":
    Server(int(sys.argv[1]), int(sys.argv[2])).serve()
