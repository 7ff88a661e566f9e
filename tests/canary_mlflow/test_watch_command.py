"""`canary watch`: a run on the terminal while it goes on, through the command, over a database and a server."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import time
from pathlib import Path
from typing import Any

import forking
import numpy as np
import pytest
from click.testing import CliRunner, Result
from mlflow.entities import Metric
from servers import Server
from workplace import ROOT

from canary_mlflow import cli
from canary_mlflow.reports.following import sparkline

WARNING = {"step": 40, "stream": "loss", "level": "CRITICAL", "rule": "loss_rise", "seen": "rose from 0.2 to 5",
           "meaning": "the run diverges", "advice": "halve the learning rate"}  # fmt: skip


def watch(store: Any, *words: str) -> Result:
    return CliRunner().invoke(cli.canary, ["watch", *words, "--tracking-uri", getattr(store, "uri", store)])


def start(store: Any, **tags: str) -> str:
    """A run that goes on."""
    made = {"canary.role": "run", "canary.max_steps": "100", "mlflow.runName": "seed 3", **tags}
    return str(store.client.create_run(store.experiment, tags=made).info.run_id)


def log(store: Any, run_id: str, first: int, last: int) -> None:
    steps = range(first, last + 1)
    store.client.log_batch(
        run_id, [Metric("stability/loss", 1 / step, int(time.time() * 1000), step) for step in steps]
    )


def test_a_finished_run_is_told_in_lines(recorded: Any) -> None:
    run_id = recorded.children(recorded.session(runs=1))[0]
    done = watch(recorded, run_id)
    assert done.exit_code == 0, done.output
    assert "FINISHED  step 40" in done.output
    assert "  loss 0." in done.output
    assert done.output.rstrip().endswith("FINISHED at step 40; nobody watched it")


@pytest.mark.parametrize(
    ("tags", "status", "code"),
    [
        ({"canary.watch.level": "warned"}, "FINISHED", 0),
        ({"canary.watch.level": "critical"}, "FINISHED", 1),
        ({"canary.failure": "oom", "canary.failure_reason": "no memory"}, "FAILED", 1),
        ({"canary.failure": "interrupted"}, "FAILED", 4),
        ({}, "KILLED", 4),
    ],
)
def test_the_exit_code_says_how_it_ended(recorded: Any, tags: dict[str, str], status: str, code: int) -> None:
    run_id = start(recorded, **tags)
    recorded.client.set_terminated(run_id, status)
    done = watch(recorded, run_id)
    assert done.exit_code == code, done.output
    assert watch(recorded, run_id, "--once").exit_code == 0
    assert f"{status} at step 0" in done.output


def test_a_session_is_followed_from_run_to_run_over_a_server_that_comes_back(recorded: Any, tmp_path: Path) -> None:
    session = recorded.client.create_run(recorded.experiment, tags={"canary.role": "session"}).info.run_id
    parent = {"mlflow.parentRunId": session}
    first = start(recorded, **parent)
    log(recorded, first, 1, 10)

    said: list[str] = []
    with Server(recorded.uri, tmp_path) as server:
        words = ["-m", "canary_mlflow.cli", "watch", session, "--every", "0.3", "--tracking-uri", server.uri]
        place = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120"}
        out = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "env": place}
        with subprocess.Popen([forking.python(), *words], **out) as process:

            def until(text: str) -> None:
                for line in process.stdout:
                    said.append(line.rstrip("\n"))
                    if text in line:
                        return
                raise AssertionError(said)

            until("RUNNING  step 10 of 100")
            log(recorded, first, 11, 40)
            recorded.client.set_tag(first, "canary.watch.found", json.dumps([WARNING]))
            until("RUNNING  step 40 of 100")
            recorded.client.set_terminated(first)
            server.kill()
            second = start(recorded, **{**parent, "mlflow.runName": "seed 4"})
            log(recorded, second, 1, 20)
            recorded.client.set_tag(session, "canary.verdict", "PASS")
            until("nobody answers there")
            time.sleep(1)  # asked again, and again in vain
            server.start()
            until("RUNNING  step 20 of 100")
            recorded.client.set_terminated(second)
            recorded.client.set_terminated(session)
            said += process.stdout.read().splitlines()
        assert process.returncode == 0, said
    assert said[0] == "seed 3, run 1 of its session"
    assert any(line.startswith("CRITICAL loss at step 40: rose from 0.2 to 5. Usually: the run diver") for line in said)
    assert "seed 4, run 2 of its session" in said
    gone = f"canary: no news: {server.uri}: nobody answers there; asking again every 0.3 s"
    assert said.count(gone) == 1  # seconds of silence are one sentence
    assert said[-1] == "FINISHED at step 20; nobody watched it; verdict: PASS"


def test_without_a_name_the_newest_that_goes_on_is_shown(recorded: Any) -> None:
    late = {"start_time": int(time.time() * 1000) + 3_600_000}
    tags = {"canary.role": "run", "mlflow.runName": "the newest"}
    run_id = recorded.client.create_run(recorded.experiment, tags=tags, **late).info.run_id
    try:
        assert watch(recorded, "--once").output.startswith("the newest\nRUNNING  step 0")
    finally:
        recorded.client.set_terminated(run_id)


def test_on_a_terminal_it_draws(recorded: Any) -> None:
    run_id = start(recorded, **{"mlflow.runName": "\x1b[31mred", "canary.watch.found": json.dumps([WARNING])})
    log(recorded, run_id, 1, 80)
    recorded.client.log_metric(run_id, "stability/kl", float("nan"), step=80)
    ours, theirs = pty.openpty()
    command = [forking.python(), "-m", "canary_mlflow.cli", "watch", run_id, "--once", "--tracking-uri", recorded.uri]
    place = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120", "LINES": "40", "TERM": "xterm"}
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, env=place) as process:
        os.close(theirs)
        text = b""
        while True:
            try:
                found = os.read(ours, 65536)
            except OSError:  # Linux's way to say that the other side has closed
                break
            if not found:
                break
            text += found
    os.close(ours)
    recorded.client.set_terminated(run_id)
    shown = text.decode()
    assert process.returncode == 0, shown
    assert "\\x1b[31mred" in shown
    assert "\x1b[31mred" not in shown
    assert "step 80 of 100" in shown
    assert "█▄▂▂" in shown
    assert "CRITICAL" in shown
    assert "NaN" in shown


def test_nothing_to_follow_is_said_in_one_line(recorded: Any, tmp_path: Path) -> None:
    gone = start(recorded)
    recorded.client.set_terminated(gone)
    recorded.client.delete_run(gone)
    for words, said in (
        ((gone,), "deleted; expected an active run"),
        (("nosuchrun",), "expected the id of a run there"),
        (("x", "--every", "0"), "--every"),
    ):
        done = watch(recorded, *words)
        assert (done.exit_code, len(done.output.strip().splitlines())) == (2, 1), done.output
        assert said in done.output
    nowhere = watch(f"sqlite:///{tmp_path}/none.db", "x")
    assert (nowhere.exit_code, "no store there" in nowhere.output) == (4, True)
    assert not list(tmp_path.iterdir())


def test_a_curve_in_a_line() -> None:
    assert sparkline(np.arange(8.0)) == "▁▂▃▄▅▆▇█"
    assert sparkline(np.array([3.0, 3.0])) == "▅▅"
    assert sparkline(np.array([1.0, np.nan, 2.0, np.inf])) == "▁!█!"
    assert sparkline(np.array([])) == ""
    assert len(sparkline(np.arange(1000.0))) == 40
    assert sparkline(np.arange(1000.0))[::39] == "▁█"
