"""`canary power`: the chance of each outcome, of the spread that holds here, where a rule decides."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from fake_gpu import Driver
from recorded import Recorded
from unchanged_files import called

from canary_mlflow.registry.acts.by_hand import bless


@pytest.fixture(autouse=True)
def fewer_points(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """200 sets of runs give chances to two percent; all 1000 with --full."""
    if not request.config.getoption("--full"):
        monkeypatch.setattr("canary_mlflow.gates.stats.power.POINTS", 200)


def test_all_that_decides_stands_in_one_table_with_what_it_sees_and_the_joint_chance() -> None:
    cpu = ("power", "--policy", "smoke", "--fact", "backend=cpu", "--runs", "3+3")
    found = called(*cpu, "--json")[1]
    rows = {row["rule"]: row for row in found["rules"]}
    assert [name for name, row in rows.items() if row["role"] == "gate"] == ["step_cost", "peak_memory", "eval_loss"]
    assert {"run_cost", "memory_growth", "eval_accuracy"} < rows.keys()
    seen = rows["step_cost"]["reached"][0]["smallest"]
    assert 1.0 < seen / rows["step_cost"]["margin"] < 1.5  # in margins
    assert rows["eval_accuracy"]["reached"][0]["smallest"] < -rows["eval_accuracy"]["margin"]  # lower is worse
    together = found["together"][0]["unchanged"]
    assert 0.9 < together < min(row["reached"][0]["unchanged"] for row in rows.values())
    assert "as if the metrics varied independently" in found["assumption"]
    text = called(*cpu)[1]
    assert text.startswith("smoke: what decides with backend=cpu\n")
    assert "  sees at 3+3  passes at 3+3\n" in text
    assert "all together: the product of the chances above, as if the metrics varied independently" in text
    gpu = called("power", "--policy", "smoke", "--fact", "backend=cuda", "--runs", "1+1")[1]
    assert [line.split()[0] for line in gpu.splitlines() if " gate " in line] == [
        "step_time",
        "peak_memory",
        "eval_loss",
    ]
    assert "never" in gpu  # one run a side blocks nothing
    rewards = called("power", "--policy", "smoke", "--fact", "backend=cpu", "--fact", "algo=ppo", "--runs", "2+2")[1]
    decide = [line.split()[0] for line in rewards.splitlines() if " gate " in line]
    assert decide == ["iteration_cost", "peak_memory", "eval_reward"]


def test_power_answers_for_the_machine_that_it_runs_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Driver())
    for hidden, backend, judged in ((None, "cuda", "step_time"), ("", "cpu", "step_cost")):  # as CUDA has it
        if hidden is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        else:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        text = called("power", "--policy", "smoke", "--runs", "2+2")[1]
        assert text.startswith(f"smoke: what decides with backend={backend} (this machine's; --fact asks for others)")
        assert f"\n  {judged} " in text


def test_power_for_a_model_goes_by_what_its_champion_recorded(recorded: Recorded) -> None:
    version = recorded.version(runs=2, without=("perf/step_cost", "quality/eval_accuracy"))
    bless(recorded.client, recorded.model, version, "a baseline for the test")
    own = ("power", "--model", recorded.model, "--tracking-uri", recorded.uri)
    found = called(*own, "--policy", "smoke", "--json")[1]
    rules = [row["rule"] for row in found["rules"] if row["role"] == "gate"]
    assert rules == ["step_time", "peak_memory", "eval_loss"]  # on a CPU without step_cost
    assert "eval_accuracy" not in {row["rule"] for row in found["rules"]}
    assert {size["baseline_runs"] for size in found["together"]} == {2}
    text = called(*own, "--runs", "2+2")[1]  # by its own policy
    assert text.startswith(f"smoke: what decides for candidates like {recorded.model} version {version}\n")
    for words, part in (
        (("--model", "nosuch", "--tracking-uri", recorded.uri), "nosuch"),
        ((), "power: found neither --policy nor --model; expected one of them"),
    ):
        code, text = called("power", *words)
        assert (code, len(text.splitlines())) == (2, 1)
        assert part in text


def test_power_knows_the_spread_that_is_stored_for_such_runs(runs: list[str]) -> None:
    def step_time(*words: str) -> tuple[dict[str, Any], list[str]]:
        asked = ("power", "--policy", "perf", "--fact", "backend=cuda", "--runs", "5+1", "--json", *words)
        found = called(*asked)[1]
        return next(row for row in found["rules"] if row["rule"] == "step_time"), found["notes"][1:]

    row, notes = step_time()
    assert (row["spread"], row["spread_kind"], row["spread_entry"], row["scale"]) == (0.02, "shipped", None, "log")
    assert notes == []
    for path in Path().glob("r*.json"):
        path.write_text('{"hardware": {"backend": "cuda", "device": "H200 NVL"}}')
    called("calibrate", "--files", *runs[:3], "--write")
    assert step_time()[0]["spread_kind"] == "shipped"
    row, notes = step_time("--fact", "device=H200 NVL")
    assert (row["spread_kind"], row["spread_entry"], notes) == ("calibrated", "smoke cuda H200 NVL", [])
    facts = ("--fact", "backend=cuda", "--fact", "device=H200 NVL")
    text = called("power", "--policy", "perf", *facts, "--runs", "2+2")[1]
    assert "shipped with the policy (" in text
    assert "calibrated here (" in text


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("--fact", "colour=red"), "found colour, which policy smoke never looks at; expected one of algo, backend,"),
        (("--fact", "gpu"), "--fact: found 'gpu'; expected KEY=VALUE"),
        (("--runs", "3"), "--runs: found '3'; expected baseline and candidate runs"),
        (("--runs", "0+3"), "--runs: found '0+3'; expected"),
    ],
)
def test_what_would_change_nothing_is_refused(words: tuple[str, ...], part: str) -> None:
    code, text = called("power", "--policy", "smoke", *words)
    assert (code, len(text.splitlines())) == (2, 1)
    assert part in text
