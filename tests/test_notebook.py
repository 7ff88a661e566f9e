"""The notebook runs from top to bottom, and its figures are those of `canary report --json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nbformat
import pytest
from click.testing import CliRunner
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from recorded import Recorded

from canary_mlflow import cli
from canary_mlflow.policies import load_policy
from canary_mlflow.registry.acts.by_hand import bless
from canary_mlflow.registry.judging.gatekeeper import gate
from canary_mlflow.tracking.stores.store import prepare_store

NOTEBOOK = Path(__file__).resolve().parents[1] / "notebooks" / "stability_analysis.ipynb"
TELL = """
def told(table):
    return json.loads(table.to_json(orient="split", double_precision=15))

print(json.dumps({name: told(table) for name, table in {
    "figures": figures.reset_index(), "correlation": correlation, "performance": performance, "memory": memory,
    "instabilities": instabilities, "judged": judged}.items()}))
"""
WARNING = {
    "step": 5, "stream": "loss", "level": "WARN", "rule": "loss_rise", "seen": "7.1", "meaning": "it rises",
    "advice": "halve the learning rate",
}  # fmt: skip


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the notebook computed, as tables, and what --json says, over one store with all three algorithms."""
    folder = tmp_path_factory.mktemp("notebook")
    uri = f"sqlite:///{folder}/mlflow.db"
    client = prepare_store(uri)
    experiment = client.create_experiment("recorded", artifact_location=str(folder / "mlruns"))
    store = Recorded(client=client, uri=uri, experiment=experiment, model="m")
    for algo in ("ppo", "sft"):
        store.session(runs=1, tags={"canary.algo": algo})
    bless(client, "m", store.register(store.session(runs=2)), "a baseline for the test")
    watched = {"canary.watch.level": "warned", "canary.watch.found": json.dumps([WARNING])}
    session = store.session(runs=2, slower=1.5, tags=watched)
    gate(client, "m", store.register(session), load_policy("smoke"))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    notebook.cells.append(nbformat.v4.new_code_cell(TELL))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", uri)
        patch.setenv("CANARY_SESSION", session)
        patch.setenv("PYTHONPATH", str(NOTEBOOK.parents[1]))
        NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(folder)}}).execute()
    told = notebook.cells[-1].outputs[0].text
    result = CliRunner().invoke(cli.canary, ["report", session, "--json", "-", "--tracking-uri", uri])
    return json.loads(told), json.loads(result.stdout)


def table(found: dict[str, Any], name: str) -> dict[Any, dict[str, Any]]:
    """One of the notebook's tables: row → column → value."""
    plain = found[name]
    return {
        row: dict(zip(plain["columns"], values, strict=True))
        for row, values in zip(plain["index"], plain["data"], strict=True)
    }


def test_the_figures_of_every_series_are_the_same(both: Any) -> None:
    notebook, plain = both
    rows = {(row["run"], row["metric"]): row for row in table(notebook, "figures").values()}
    expected = {(run["run_id"], name): one for run in plain["runs"] for name, one in run["metrics"].items()}
    assert set(rows) == set(expected)
    assert len(expected) == 4 * 12
    for key, one in expected.items():
        mine = {name: rows[key][name] for name in one if name != "not_finite"}
        assert mine == pytest.approx({name: value for name, value in one.items() if name != "not_finite"}, rel=1e-9)


def test_correlation_performance_and_memory_are_the_same(both: Any) -> None:
    notebook, plain = both
    found = plain["correlation"]
    mine = table(notebook, "correlation")
    assert list(mine) == found["names"]
    for name, row in zip(found["names"], found["rows"], strict=True):
        assert [mine[name][other] for other in found["names"]] == pytest.approx(row, abs=1e-12)
    faster = table(notebook, "performance")
    assert list(faster) == [one["metric"] for one in plain["performance"]]
    for one in plain["performance"]:
        assert faster[one["metric"]] == pytest.approx({key: one[key] for key in ("baseline", "candidate", "change")})
    memory = table(notebook, "memory")
    assert list(memory) == ["ppo", "dpo", "sft"]
    for one in plain["memory"]["peaks"]:
        mine = memory[one["algo"]]
        assert (mine["count"], mine["median"], mine["min"], mine["max"]) == pytest.approx(
            (one["runs"], one["median"], one["lowest"], one["highest"])
        )


def test_instabilities_are_the_same(both: Any) -> None:
    notebook, plain = both
    mine = [{key: row[key] for key in WARNING} for row in table(notebook, "instabilities").values()]
    assert mine == [{key: one[key] for key in WARNING} for one in plain["instabilities"]] == [WARNING, WARNING]


def test_the_gate_says_the_same(both: Any) -> None:
    notebook, plain = both
    found = {row["metric"]: (row["outcome"], row["reason"]) for row in table(notebook, "judged").values()}
    checks = plain["verdict"]["checks"]
    assert found == {check["metric"]: (check["outcome"], check["reason"]) for check in checks}
    assert found["step_cost"][0] == "BLOCK"


def test_it_is_kept_without_outputs() -> None:
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    assert [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")] == []


@pytest.mark.full
def test_a_session_that_is_not_there_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    prepare_store(uri)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("PYTHONPATH", str(NOTEBOOK.parents[1]))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    for session, said in (("nosuch", f"NoSuchRun: run 'nosuch': not in {uri}"), ("", f"UsageError: {uri}: no session")):
        monkeypatch.setenv("CANARY_SESSION", session)
        with pytest.raises(CellExecutionError) as raised:
            NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
        assert said in raised.value.traceback
        assert "Traceback" not in raised.value.traceback
        assert "File " not in raised.value.traceback
