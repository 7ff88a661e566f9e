"""Many runs that write to one store at once, also while something breaks, and what the store holds afterwards."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import sqlalchemy as sa  # noqa: E402  # the path is set above
from click.testing import CliRunner  # noqa: E402
from load_places import FORK, Place, place  # noqa: E402

from canary_mlflow.cli import canary  # noqa: E402
from canary_mlflow.tracking.describing.schema import mlflow_key, name_of  # noqa: E402
from canary_mlflow.tracking.ending import Target  # noqa: E402
from canary_mlflow.tracking.journal import Journal  # noqa: E402
from canary_mlflow.tracking.probes import Setting  # noqa: E402
from canary_mlflow.tracking.sinks import SINKS, USUAL, SinkSetting  # noqa: E402
from canary_mlflow.tracking.stores.store import prepare_store  # noqa: E402

LOGGED = ("loss", "grad_norm", "rewards/margins", "logps/chosen", *(f"x_{number}" for number in range(20)))
APART = 0.2  # seconds between the starts of two processes; they begin to train together
TRIES = 3  # of `canary deliver`, which asks for another one while the store takes too little
STRUCK = 12.0  # seconds after the first step: the first rows are being sent
LASTS = {"killed": 15.0, "500": 15.0, "full": 15.0, "hangs": 60.0, "locked": 60.0}  # seconds until it is mended
IMPATIENT, PATIENT = 1.0, 60.0  # seconds that a run waits at its end for a store that takes nothing
IDLE = Setting(model=None, device="cpu", compiled=False, ranks=1, iterates=False, idle_cpu=float)


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
    lasts = LASTS.get(fault.rpartition(" ")[2])
    with place(kind, fault, folder) as made:
        assert apart(prepare, made, written) == 0
        experiment, together = (written / "experiment").read_text(), FORK.Barrier(runs + 1)
        children = []
        for number in range(runs):
            short = number % 2 == 1
            own = (steps // 2 if short else steps, pace, together, IMPATIENT if short and lasts else PATIENT)
            children.append(FORK.Process(target=write, args=(made, written, experiment, number, *own)))
        for child in children:
            child.start()
            time.sleep(APART)
        together.wait(300)
        began = time.monotonic()
        if lasts:
            time.sleep(STRUCK)
            made.breaks()
            time.sleep(lasts)
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
