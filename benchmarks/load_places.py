"""A store for many runs, and what breaks and mends it."""

from __future__ import annotations

import multiprocessing
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import sqlalchemy as sa  # noqa: E402  # the path is set above
from cluster import cluster, free_port  # noqa: E402
from guard_modes import users  # noqa: E402
from servers import Server  # noqa: E402
from small_disk import fill, small_disk  # noqa: E402

FORK = multiprocessing.get_context("fork")  # each run is a process that has its libraries loaded already
DISK, LEFT = 512 * 1024, 64  # KiB: the disk that becomes full, and what is left on it then
LOCK = {"sqlite": "BEGIN EXCLUSIVE", "postgresql": "LOCK TABLE runs, metrics, latest_metrics"}
Act = Callable[[], object]


@dataclass(frozen=True, kw_only=True)
class Place:
    """A store: where runs write, the database behind it, and what breaks and mends it."""

    store: str
    database: str
    breaks: Act
    mends: Act


@contextmanager
def place(kind: str, name: str, folder: Path) -> Iterator[Place]:
    """A store of its own. `name`: what will break, after the word `direct` if there is to be no server. `users`: the
    server knows its users, and lets the administrator bless."""
    direct, fault = name.startswith("direct"), name.rpartition(" ")[2]
    disk = folder / "disk"
    disk.mkdir()
    with ExitStack() as stack:
        if fault == "full":
            stack.enter_context(small_disk(disk, DISK))
        uri = stack.enter_context(database(kind, disk))
        breaks: Act = nothing
        mends: Act = nothing
        if fault == "full":
            breaks, mends = (lambda: fill(disk, LEFT)), (disk / "filler").unlink
        elif fault == "locked":
            breaks, mends = stack.enter_context(lock(kind, uri))
        if direct:
            yield Place(store=uri, database=uri, breaks=breaks, mends=mends)
            return
        known = {"app": "canary-auth", "environment": users(folder)} if name == "users" else {"app": "canary"}
        server = stack.enter_context(Server(uri, folder, registry=f"canary+{uri}", **known))
        store = server.uri
        if fault == "killed":
            breaks, mends = server.kill, server.start
        elif fault == "hangs":
            breaks, mends = server.hang, server.go_on
        elif fault == "500":
            store, breaks, mends = stack.enter_context(flaky(server.uri))
        yield Place(store=store, database=uri, breaks=breaks, mends=mends)


def nothing() -> None:
    """What breaks where nothing is to break."""


@contextmanager
def database(kind: str, disk: Path) -> Iterator[str]:
    """The address of an empty database whose files lie on `disk`."""
    if kind == "sqlite":
        yield f"sqlite:///{disk}/mlflow.db"
        return
    disk.parent.chmod(0o755)  # PostgreSQL's account has to come through
    with cluster(disk) as made:
        made.run("CREATE DATABASE mlflow")
        yield made.uri("mlflow")


@contextmanager
def lock(kind: str, uri: str) -> Iterator[tuple[Act, Act]]:
    """Lets somebody else take what the runs write to, and give it back."""
    engine = sa.create_engine(uri, poolclass=sa.pool.NullPool)
    with ExitStack() as held:  # nothing before it breaks: no run may inherit the connection
        yield (lambda: held.enter_context(engine.connect()).exec_driver_sql(LOCK[kind])), held.close


@contextmanager
def flaky(server: str) -> Iterator[tuple[str, Act, Act]]:
    """The address of a way to the server; what has it answer 500, and what ends that."""
    port, broken = free_port(), FORK.Event()
    process = FORK.Process(target=relay, args=(server, port, broken), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{port}", broken.set, broken.clear
    finally:
        process.kill()


def relay(server: str, port: int, broken: Any) -> None:
    """Pass requests on. While `broken` is set, each is answered 500; of these every second had reached the server."""
    count = iter(range(sys.maxsize))

    class Relay(BaseHTTPRequestHandler):
        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            breaks = broken.is_set()
            status, said = (500, b"{}") if breaks and next(count) % 2 else passed_on(server, self, body)
            self.send_response(500 if breaks else status)
            self.send_header("Content-Length", str(len(said)))
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(said)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any

        def log_message(self, *said: object) -> None:
            pass

    ThreadingHTTPServer.request_queue_size = 128
    ThreadingHTTPServer(("127.0.0.1", port), Relay).serve_forever()


def passed_on(server: str, asked: BaseHTTPRequestHandler, body: bytes) -> tuple[int, bytes]:
    """The server's status and answer."""
    headers = {key: value for key, value in asked.headers.items() if key.lower() not in ("host", "connection")}
    request = urllib.request.Request(server + asked.path, body or None, headers, method=asked.command)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return int(answer.status), bytes(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, error.read()
