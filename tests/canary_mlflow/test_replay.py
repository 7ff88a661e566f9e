"""`canary replay` as its user meets it: verdicts, JSON alone on stdout, exit codes, bad files beside good ones."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from watch_runs import Rows, fail, sft

from canary_mlflow import cli

ROOT = Path(__file__).resolve().parents[2]


def replay(*arguments: str | Path) -> Result:
    words = ["replay", *map(str, arguments)]
    return CliRunner().invoke(cli.canary, words, catch_exceptions=False, prog_name="canary")


def written(folder: Path, name: str, rows: Rows) -> Path:
    path = folder / name
    path.write_text("".join(json.dumps({"step": step} | row) + "\n" for step, row in enumerate(rows, 1)))
    return path


@pytest.fixture
def runs(tmp_path: Path) -> dict[str, Path]:
    rising = fail(sft(0), 200, 100, loss=lambda x, s: 8 * x)
    return {
        "healthy": written(tmp_path, "healthy.jsonl", sft(5)),
        "warned": written(tmp_path, "warned.jsonl", [{"clip_fraction": 0.6, "kl": 1.0}] * 15),
        "critical": written(tmp_path, "critical.jsonl", rising[:206]),
        "failed": written(tmp_path, "failed.jsonl", [*sft(0)[:50], {"loss": math.nan}]),
    }


def test_each_verdict_and_its_exit_code(runs: dict[str, Path]) -> None:
    for verdict, path in runs.items():
        result = replay(path, "--json")
        (found,) = json.loads(result.stdout)
        assert (found["file"], found["verdict"]) == (str(path), verdict)
        assert result.exit_code == (verdict in ("critical", "failed"))
        assert result.stderr == ""
        text = replay(path)
        assert text.stdout.split()[0] == verdict
        assert text.exit_code == result.exit_code


def test_json_holds_one_object_per_file_with_its_warnings(runs: dict[str, Path]) -> None:
    found = json.loads(replay(*runs.values(), "--json").stdout)
    assert [one["verdict"] for one in found] == list(runs)
    warning = found[3]["warnings"][-1]
    assert {key: warning[key] for key in ("step", "stream", "level", "rule")} == {
        "step": 51,
        "stream": "loss",
        "level": "STOP",
        "rule": "nonfinite",
    }
    assert set(warning) == {"step", "stream", "level", "rule", "seen", "meaning", "advice"}
    assert (found[0]["rows"], found[0]["last_step"], found[0]["kind"]) == (400, 400, "jsonl")


def test_a_bad_file_is_one_line_and_the_rest_is_judged(tmp_path: Path, runs: dict[str, Path]) -> None:
    cut = tmp_path / "trainer_state.json"
    cut.write_text('{"log_history": [{"step": 1, "loss"')
    missing = tmp_path / "none.csv"
    result = replay(cut, runs["healthy"], missing, runs["failed"], "--json")
    found = json.loads(result.stdout)
    assert [one["verdict"] for one in found] == [None, "healthy", None, "failed"]
    assert [bool(one.get("error")) for one in found] == [True, False, True, False]
    assert "is cut off" in found[0]["error"]
    assert result.exit_code == 2
    lines = result.stderr.splitlines()
    assert [line.split(": ")[:2] for line in lines] == [["canary", str(cut)], ["canary", str(missing)]]


def test_oddities_are_noted(tmp_path: Path) -> None:
    path = tmp_path / "resumed.jsonl"
    rows = [{"step": step, "loss": 2.0 / step} for step in [*range(1, 31), *range(20, 41)]]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = replay(path)
    assert "note: steps go back from 30 to 20 at line 31" in result.stdout
    (found,) = json.loads(replay(path, "--json").stdout)
    assert len(found["notes"]) == 1


def test_a_checkpoint_is_the_beginning_of_a_run(tmp_path: Path) -> None:
    log = [{"step": step, "loss": 2.0 + 0.1 * (step % 3)} for step in range(1, 61)]
    for planned, verdict in ((600, "healthy"), (60, "warned")):
        path = tmp_path / f"{planned}.json"
        path.write_text(json.dumps({"max_steps": planned, "log_history": log}))
        (found,) = json.loads(replay(path, "--json").stdout)
        assert found["verdict"] == verdict


def test_a_policy_of_ones_own(tmp_path: Path, runs: dict[str, Path]) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("base: default\nname: mine\npatterns: {clip_fraction: 0.8}\n")
    assert replay(runs["warned"], "--policy", mine).stdout.split()[0] == "healthy"
    mine.write_text("base: default\npatterns: {clip: 0.8}\n")
    result = replay(runs["warned"], "--policy", mine)
    assert result.exit_code == 2
    assert result.stderr.startswith(
        f"canary: policy '{mine}': watch.patterns: unknown key 'clip'; valid: clip_fraction"
    )
    assert replay(runs["warned"], "--policy", "strict").exit_code == 2
    assert replay().exit_code == 2


def test_ceiling_notices_reach_the_report(tmp_path: Path, runs: dict[str, Path]) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("base: default\nceilings: {grad_norm: 0.001}\n")
    assert "note: ceiling grad_norm" in replay(runs["healthy"], "--policy", mine).stdout


@pytest.mark.parametrize("arguments", [("--json",), ()])
def test_neither_torch_nor_mlflow_is_loaded(runs: dict[str, Path], arguments: tuple[str, ...]) -> None:
    probe = (
        "import sys\nfrom canary_mlflow.cli import canary\n"
        "try: canary(prog_name='canary')\n"
        "finally: print({'torch', 'mlflow', 'transformers'} & set(sys.modules), file=sys.stderr)"
    )
    command = [sys.executable, "-c", probe, "replay", str(runs["failed"]), *arguments]
    done = subprocess.run(command, cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.strip() == "set()"


def test_text_is_cut_where_there_is_too_much(tmp_path: Path) -> None:
    rows: Rows = []
    for turn in range(8):
        rows += [{"kl": 1.0, "clip_fraction": 0.1, "grad_norm": 1.0}] * (60 + 60 * turn)
        rows += [{"kl": 30.0, "clip_fraction": 0.9, "grad_norm": 40.0}] * 4
    path = written(tmp_path, "many.jsonl", rows)
    (found,) = json.loads(replay(path, "--json").stdout)
    shown = replay(path).stdout
    assert len(found["warnings"]) > 12
    assert f"and {len(found['warnings']) - 12} more; --json has them all" in shown
