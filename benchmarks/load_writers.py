"""Many runs that write to one store at once, also while something breaks, and what the store holds afterwards."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
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
from click.testing import CliRunner  # noqa: E402
from cluster import cluster, free_port  # noqa: E402
from servers import Server  # noqa: E402
from small_disk import fill, small_disk  # noqa: E402

from canary_mlflow.cli import canary  # noqa: E402
from canary_mlflow.tracking.ending import Target  # noqa: E402
from canary_mlflow.tracking.journal import Journal  # noqa: E402
from canary_mlflow.tracking.probes import Setting  # noqa: E402
from canary_mlflow.tracking.schema import mlflow_key, name_of  # noqa: E402
from canary_mlflow.tracking.sinks import SINKS, USUAL, SinkSetting  # noqa: E402
from canary_mlflow.tracking.store import prepare_store  # noqa: E402

FORK = multiprocessing.get_context("fork")  # each run is a process that has its libraries loaded already
LOGGED = ("loss", "grad_norm", "rewards/margins", "logps/chosen", *(f"x_{number}" for number in range(20)))
APART = 0.2  # seconds between the starts of two processes; they begin to train together
TRIES = 3  # of `canary deliver`, which asks for another one while the store takes too little
STRUCK, MENDED = 12.0, 27.0  # seconds after the first step: the first rows are being sent; half of the runs are over
IMPATIENT, PATIENT = 1.0, 60.0  # seconds that a run waits at its end for a store that takes nothing
DISK = 512 * 1024  # KiB of the disk that becomes full
IDLE = Setting(model=None, device="cpu", compiled=False, ranks=1, iterates=False, idle_cpu=float)
Act = Callable[[], object]


@dataclass(frozen=True, kw_only=True)
class Place:
    """A store: where runs write, the database behind it, and what breaks and mends it."""

    store: str
    database: str
    breaks: Act
    mends: Act


def nothing() -> None:
    """What breaks where nothing is to break."""


@contextmanager
def database(kind: str, disk: Path) -> Iterator[str]:
    """The address of an empty database; that of SQLite lies on `disk`."""
    if kind == "sqlite":
        yield f"sqlite:///{disk}/mlflow.db"
        return
    with cluster() as made:
        made.run("CREATE DATABASE mlflow")
        yield made.uri("mlflow")


@contextmanager
def place(kind: str, fault: str, folder: Path) -> Iterator[Place]:
    """A store of its own. `fault`: `direct` has no server; `killed`, `500` and `full` break."""
    with ExitStack() as stack:
        disk = folder / "disk"
        disk.mkdir()
        if fault == "full":
            stack.enter_context(small_disk(disk, DISK))
        uri = stack.enter_context(database(kind, disk))
        if fault == "direct":
            yield Place(store=uri, database=uri, breaks=nothing, mends=nothing)
            return
        server = stack.enter_context(Server(uri, folder, registry=f"canary+{uri}", app="canary"))
        if fault == "killed":
            yield Place(store=server.uri, database=uri, breaks=server.kill, mends=server.start)
        elif fault == "500":
            address, broken = stack.enter_context(flaky(server.uri))
            yield Place(store=address, database=uri, breaks=broken.set, mends=broken.clear)
        else:
            filler = disk / "filler"
            breaks, mends = (lambda: fill(disk, 64), filler.unlink) if fault == "full" else (nothing, nothing)
            yield Place(store=server.uri, database=uri, breaks=breaks, mends=mends)


@contextmanager
def flaky(server: str) -> Iterator[tuple[str, Any]]:
    """The address of a way to the server that answers 500 while the event is set."""
    port, broken = free_port(), FORK.Event()
    process = FORK.Process(target=relay, args=(server, port, broken), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{port}", broken
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


def write(
    made: Place, folder: Path, experiment: str, number: int, steps: int, pace: float, together: Any, patience: float
) -> None:
    """One run from its first row to its end; what it says about itself goes into a file."""
    client = prepare_store(made.store)
    run_id = client.create_run(experiment).info.run_id
    setting = SinkSetting(folder=folder / run_id, artifacts=None, algo="dpo", batch_size=8)
    target = Target(client=client, run_id=run_id, owned=True, algo="dpo", folder=folder)
    journal = Journal(target, {}, [SINKS[name](setting) for name in USUAL])
    together.wait()
    journal.begin(IDLE)
    for step in range(1, steps + 1):
        journal.step_ended(step)
        journal.logged(step, {key: step + at / 100 for at, key in enumerate(LOGGED)})
        time.sleep(pace)
    journal.finish(timeout=patience)
    assert journal.recorder is not None
    said = {"run": run_id, "steps": steps, "waits": journal.recorder.undelivered is not None}
    (folder / f"{number}.json").write_text(json.dumps(said))


def deliver(folder: Path) -> None:
    """`canary deliver` in the folder; this process ends with its exit code."""
    os.chdir(folder)
    done = CliRunner().invoke(canary, ["deliver"])
    if done.exit_code:
        sys.stderr.write(done.output[-2000:])
    sys.exit(done.exit_code)


def prepare(made: Place, folder: Path) -> None:
    """Make the store and the experiment, in another process: no connection may be shared with the runs."""
    artifacts = {} if made.store.startswith("http") else {"artifact_location": str(folder / "artifacts")}
    (folder / "experiment").write_text(prepare_store(made.store).create_experiment("load", **artifacts))


def apart(work: Callable[..., None], *arguments: Any) -> int:
    """Do it in a process of its own; its exit code."""
    process = FORK.Process(target=work, args=arguments)
    process.start()
    process.join()
    return process.exitcode or 0


def load(kind: str, fault: str, folder: Path, *, runs: int, steps: int, pace: float) -> dict[str, Any]:
    """Have the runs written, and count what the store has of them. Every second run has half of the steps."""
    written = folder / "written"
    written.mkdir()
    breaks = fault in ("killed", "500", "full")
    with place(kind, fault, folder) as made:
        assert apart(prepare, made, written) == 0
        experiment, together = (written / "experiment").read_text(), FORK.Barrier(runs + 1)
        children = []
        for number in range(runs):
            short = number % 2 == 1
            own = (steps // 2 if short else steps, pace, together, IMPATIENT if short and breaks else PATIENT)
            children.append(FORK.Process(target=write, args=(made, written, experiment, number, *own)))
        for child in children:
            child.start()
            time.sleep(APART)
        together.wait(300)
        began = time.monotonic()
        if breaks:
            time.sleep(STRUCK)
            made.breaks()
            time.sleep(max(0.0, MENDED - (time.monotonic() - began)))
            made.mends()
        for child in children:
            child.join()
        seconds = time.monotonic() - began
        said = [json.loads(file.read_text()) for file in written.glob("*.json")]
        deliveries = next((at for at in range(1, TRIES + 1) if apart(deliver, written) == 0), TRIES)
        waited = sum(one["waits"] for one in said)
        found = {"runs": runs, "seconds": round(seconds, 1), "waited": waited, "deliveries": deliveries}
        stored = counted(made.database, {one["run"]: one["steps"] for one in said})
        stored["not_ended"] += runs - len(said)  # a process that failed has said nothing about its run
        return found | stored


def counted(uri: str, steps: dict[str, int]) -> dict[str, int]:
    """Values that the store should have, lacks and has twice, and runs that have not ended well."""
    keys = {mlflow_key(name_of(key)) for key in LOGGED}
    points = "SELECT run_uuid, key, count(*), count(DISTINCT step) FROM metrics GROUP BY run_uuid, key"
    ends = "SELECT r.run_uuid FROM runs r JOIN tags t ON t.run_uuid = r.run_uuid AND t.key = 'canary.completed'"
    with sa.create_engine(uri, poolclass=sa.pool.NullPool).connect() as connection:
        rows = [row for row in connection.exec_driver_sql(points) if row[0] in steps and row[1] in keys]
        good = f"{ends} WHERE r.status = 'FINISHED' AND t.value = 'true'"
        ended = {row[0] for row in connection.exec_driver_sql(good)}
    expected = sum(steps.values()) * len(keys)
    there = sum(row[3] for row in rows)
    return {
        "values": expected, "lost": expected - there, "doubled": sum(row[2] for row in rows) - there,
        "not_ended": len(steps.keys() - ended),
    }  # fmt: skip
