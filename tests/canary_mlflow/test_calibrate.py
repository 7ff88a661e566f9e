"""`canary calibrate` and `canary power`: spreads measured, stored where policies find them, and said in the verdict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from canary_mlflow.cli import canary
from canary_mlflow.policies import PRIORS_FILE, load_policy


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Eight unchanged runs of one machine, 1 % apart, in the working folder."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(1)
    for number in range(8):
        times = 0.1 * np.exp(rng.normal(0, 0.01) + rng.normal(0, 0.02, 100))
        rows = ({"step": i, "step_time": t, "loss": 0.7 - 0.001 * i} for i, t in enumerate(times.tolist(), 1))
        Path(f"r{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        Path(f"r{number}.json").write_text('{"hardware": {"backend": "cuda", "device": "H200"}}')
    return [f"r{number}.jsonl" for number in range(8)]


def called(*words: str) -> tuple[int, Any]:
    result = CliRunner().invoke(canary, list(words), catch_exceptions=False)
    return result.exit_code, json.loads(result.stdout) if "--json" in words else result.output


def test_spreads_are_measured_stored_and_used(runs: list[str]) -> None:
    code, found = called("calibrate", "--files", *runs, "--write", "--json")
    time = found["metrics"]["step_time"]
    assert code == 0
    assert 0.004 < time["spread"] < 0.02
    assert (time["resolved_by"], time["prior"]["kind"]) == (["smoke", "perf", "nightly"], "calibrated")
    assert found["metrics"]["loss"]["prior"] is None, "bit-equal losses say nothing about a spread"
    assert found["resplits"] == {"k": 5, "m": 3, "splits": 200, "block": 0.0, "passed": 1.0}
    assert found["when"] == {"backend": "cuda", "device": "H200"}

    judge = ("judge", "--baseline", *runs[:5], "--candidate", *runs[5:], "--policy", "smoke", "--json")
    evidence = called(*judge)[1]["verdict"]["checks"]
    assert next(check["evidence"]["prior"] for check in evidence if check["metric"] == "step_time") == "calibrated"
    for path in Path().glob("r*.json"):
        path.write_text('{"hardware": {"backend": "cuda", "device": "A100"}}')
    evidence = called(*judge)[1]["verdict"]["checks"]
    assert next(check["evidence"]["prior"] for check in evidence if check["metric"] == "step_time") == "shipped"


def test_a_second_place_is_stored_beside_the_first(runs: list[str]) -> None:
    called("calibrate", "--files", *runs, "--write")
    for path in Path().glob("r*.json"):
        path.write_text('{"hardware": {"backend": "cuda", "device": "A100"}}')
    called("calibrate", "--files", *runs, "--write")
    assert [known.when["device"] for known in load_policy("perf").priors] == [("H200",), ("A100",)]


def test_a_table_for_people_and_nothing_stored_unasked(runs: list[str]) -> None:
    code, text = called("calibrate", "--files", *runs[:3])
    assert code == 0
    assert "step_time" in text
    assert "Too few runs to judge them against each other" in text
    assert not Path(PRIORS_FILE).exists()
    row = next(
        line.split() for line in called("calibrate", "--files", *runs, "--policy", "nightly")[1].splitlines()[3:]
    )
    assert (row[0], row[4:8]) == ("step_time", ["2.00", "%", "5.00", "%"]), "as the policy states them"
    assert row[8:] == ["smoke,", "perf,", "nightly"]


def test_runs_of_one_seed_are_named_as_a_poor_standard(runs: list[str]) -> None:
    assert called("calibrate", "--files", *runs, "--json")[1]["notes"] == []
    for number, name in enumerate(runs):
        Path(name).with_suffix(".json").write_text(json.dumps({"seed": number % 4}))
    assert called("calibrate", "--files", *runs[:4], "--json")[1]["notes"] == []
    assert (
        "several runs of a group have seeds 0, 1, 2, 3"
        in called("calibrate", "--files", *runs, "--json")[1]["notes"][0]
    )
    assert "calibrate with runs of different seeds" in called("calibrate", "--files", *runs)[1]


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ((), "expected session ids, or --files"),
        (("--files", "r0.jsonl"), "expected a group of at least 2"),
        (("--files", "r0.jsonl", "r1.jsonl", "--policy", "weekly"), "policy 'weekly' not found"),
    ],
)
def test_wrong_use(runs: list[str], words: tuple[str, ...], part: str) -> None:
    code, text = called("calibrate", *words)
    assert (code, len(text.splitlines())) == (2, 1)
    assert part in text


def test_a_broken_priors_file_is_one_line(runs: list[str]) -> None:
    Path(PRIORS_FILE).write_text("priors: {here: {when: {}, rules: {step_time: {sd: -1}}}}\n")
    code, text = called("power", "--policy", "smoke")
    assert (code, len(text.splitlines())) == (2, 1)
    assert "priors.here.rules.step_time.sd: found -1" in text


def test_sessions_of_the_store(recorded: Any, usual_session: str) -> None:
    code, found = called("calibrate", usual_session, usual_session, "--tracking-uri", recorded.uri, "--json")
    assert code == 0
    assert (found["when"]["backend"], found["when"]["algo"]) == ("cpu", "dpo")
    assert found["metrics"]["step_cost"]["groups"] == 2


def test_power_knows_the_stored_spread_and_a_given_one(runs: list[str]) -> None:
    def chance(*words: str) -> dict[tuple[int, float], Any]:
        found = called("power", "--policy", "perf", "--json", *words)[1]
        assert found["spread_kind"] == kind
        return {(row["candidate_runs"], row["effect"]): row for row in found["chances"] if row["baseline_runs"] == 5}

    kind = "given"
    assert chance("--spread", "0.02")[3, 1.5]["block"] > 0.85
    assert chance("--spread", "0.08")[3, 1.5]["block"] < 0.2
    kind = "shipped"
    assert chance()[3, 0.0]["passed"] > 0.95
    called("calibrate", "--files", *runs, "--write")
    assert chance()[3, 0.0]["passed"] > 0.95
    kind = "calibrated"
    assert chance("--fact", "backend=cuda", "--fact", "device=H200")[1, 0.0]["passed"] > 0.9
    code, text = called("power", "--policy", "smoke")
    assert code == 0
    assert "5+3" in text
    for words, part in ((("--rule", "speed"), "policy smoke has step_time"), (("--fact", "gpu"), "expected KEY=VALUE")):
        code, text = called("power", "--policy", "smoke", *words)
        assert code == 2
        assert part in text


def test_power_is_drawn_and_other_files_are_refused(tmp_path: Path) -> None:
    picture = tmp_path / "power.png"
    assert called("power", "--policy", "smoke", "--png", str(picture))[0] == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    code, text = called("power", "--policy", "smoke", "--png", str(tmp_path / "power.xyz"))
    assert (code, "expected a file that ends in .png" in text) == (2, True)
