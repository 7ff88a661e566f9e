"""Cells of a notebook: what one broke off ends with it, and what a script gets back shows as a table."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from recorded import Recorded
from workplace import Workplace

import canary_mlflow
from canary_mlflow import CanaryCallback
from canary_mlflow.registry.sessions.own import Session

CELLS = """
import json, sys, threading, time
from pathlib import Path
from IPython.core.interactiveshell import InteractiveShell
from mlflow import MlflowClient
from line_training import Line, fit, rows
from transformers import Trainer, TrainerCallback, TrainingArguments
from canary_mlflow import CanaryCallback

class Stop(TrainerCallback):
    def __init__(self, error):
        self.error = error

    def on_step_end(self, args, state, control, **_):
        if state.global_step == 3:
            raise self.error

class Hold(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        time.sleep(0.05)

def made():
    return CanaryCallback(watch=None, system_metrics=False)

def trainer(*callbacks):
    args = TrainingArguments("out", max_steps=6, use_cpu=True, report_to="none", save_strategy="no", disable_tqdm=True)
    return Trainer(Line(), args, train_dataset=rows(64), callbacks=list(callbacks))

def told(canary):
    run = MlflowClient().get_run(canary.run_id)
    return [run.info.status, run.data.tags.get("canary.failure"), run.data.tags.get("canary.exception")]

shell = InteractiveShell.instance(colors="nocolor") if SHELL else None
found = {}

def cell(code):
    result = shell.run_cell(code)
    return type(result.error_in_exec or result.error_before_exec).__name__
"""

STOPPED = """
SHELL = True
%s
shell.push(globals())

def broken(error, after=""):
    ended = cell(f"kept = made()\\none = trainer(kept, Stop({error}))\\n" + (after or "one.train()"))
    return [ended, *told(shell.user_ns["kept"])]

found["stopped"] = broken("KeyboardInterrupt()")
found["broken"] = broken("ValueError('no')")
found["caught"] = broken("ValueError('no')", "try:\\n    one.train()\\nexcept ValueError as error:\\n    held = error")
code = "kept = made()\\nthread = threading.Thread(target=trainer(kept, Hold()).train)\\nthread.start()"
found["thread"] = [cell(code + "\\nwhile not kept.rows:\\n    time.sleep(0.01)"), told(shell.user_ns["kept"])[0]]
shell.user_ns["thread"].join()
found["thread later"] = [cell("1"), told(shell.user_ns["kept"])[0]]
print("found " + json.dumps(found))
"""

SCRIPT = """
SHELL = False
%s
first, second = made(), made()
try:
    (one := trainer(first, Stop(ValueError("no")))).train()
except ValueError as error:
    held = error
class Look(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        found["during"] = told(first)[0]
trainer(second, Look()).train()
found["after"] = told(second)[0]
print("found " + json.dumps(found))
"""


def said(folder: Path, code: str) -> dict[str, Any]:
    place = Workplace(folder=folder)
    tests = str(Path(__file__).parents[1])
    done = place.run(
        "-c", code % CELLS, MLFLOW_TRACKING_URI=place.uri, PYTHONPATH=f"{place.environment['PYTHONPATH']}:{tests}"
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("found ")]
    assert lines, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(lines[0].removeprefix("found "))
    return found


def test_what_a_cell_broke_off_ends_with_the_cell(tmp_path: Path) -> None:
    found = said(tmp_path, STOPPED)
    assert found["stopped"] == ["KeyboardInterrupt", "FAILED", "interrupted", None]
    assert found["broken"] == ["ValueError", "FAILED", "error", "ValueError"]
    assert found["caught"][:2] == ["NoneType", "FAILED"]
    assert found["thread"] == ["NoneType", "RUNNING"]
    assert found["thread later"] == ["NoneType", "FINISHED"]


def test_what_an_exception_left_ends_when_the_next_training_begins(tmp_path: Path) -> None:
    assert said(tmp_path, SCRIPT) == {"during": "FAILED", "after": "FINISHED"}


class Cells(HTMLParser):
    """The texts of a table, row by row, and every tag that is opened."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.rows: list[list[str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)
        if tag == "tr":
            self.rows.append([])

    def handle_data(self, data: str) -> None:
        if self.rows:
            self.rows[-1].append(data)


def test_a_session_and_a_decision_are_tables(shared: Recorded) -> None:
    model = "tables"
    before = shared.session(runs=2, tags={"canary.model_name": model})
    after = shared.session(runs=2, slower=1.5, tags={"canary.model_name": model, "canary.failure_reason": "<b>no</b>"})
    decision = canary_mlflow.compare(before, after, policy="smoke", tracking_uri=shared.uri)
    shown = Cells(decision._repr_html_())
    checks = {check.metric: check for check in decision.verdict.checks}
    assert len(shown.rows) == 1 + len(checks)
    assert shown.rows[1][:2] == ["BLOCK", "step_cost"]
    frame = decision.frame().set_index("metric")
    evidence = checks["step_cost"].evidence
    assert evidence is not None
    assert frame.loc["step_cost", ["baseline", "candidate", "change"]].tolist() == [
        evidence.baseline,
        evidence.candidate,
        evidence.change,
    ]
    assert set(frame.index) == set(checks)
    session = Session(session_id=after, model=model, store=shared.uri)
    table = Cells(session._repr_html_())
    runs = canary_mlflow.frame(session)
    assert [row[0] for row in table.rows[1:]] == runs.index.tolist()
    assert "b" not in table.tags
    assert "<b>no</b>" in table.rows[1]
    assert runs["completed"].all()
    rows = canary_mlflow.frame(after, rows=True, tracking_uri=shared.uri)
    assert rows.columns[:3].tolist() == ["run", "seed", "step"]
    assert rows.groupby("run")["loss"].last().sort_index().tolist() == runs["loss"].sort_index().tolist()


def test_a_training_shows_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = canary_mlflow.LoopRun(seed=0, max_steps=8, sinks=(), system_metrics=False)
    assert "No training yet" in run._repr_html_()
    with run:
        run.log(1, loss=3.5)
        assert ["loss", "3.5"] in Cells(run._repr_html_()).rows
        assert "step 1 of 8, running" in run._repr_html_()
    assert "step 1 of 8, finished" in run._repr_html_()
    assert "No training yet" in CanaryCallback()._repr_html_()
