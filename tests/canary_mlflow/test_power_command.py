"""`canary power`: the chance of each outcome, of the spread that holds here, where a rule decides."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_gpu import Driver
from recorded import Recorded
from unchanged_files import called

from canary_mlflow.registry.acts.by_hand import bless

GPU = ("--rule", "step_time", "--fact", "backend=cuda")


@pytest.fixture(autouse=True)
def fewer_points(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """200 sets of runs give chances to two percent; all 1000 where digits are compared, and with --full."""
    digits = request.function is test_power_counts_both_directions_where_both_are_harm
    if not digits and not request.config.getoption("--full"):
        monkeypatch.setattr("gates.stats.power.POINTS", 200)


def test_all_that_decides_stands_in_one_table_with_what_it_sees_and_the_joint_chance() -> None:
    cpu = ("power", "--policy", "smoke", "--fact", "backend=cpu", "--runs", "3+3")
    found = called(*cpu, "--json")[1]
    rows = {row["rule"]: row for row in found["rules"]}
    assert [name for name, row in rows.items() if row["role"] == "gate"] == ["step_cost", "peak_memory", "eval_loss"]
    assert {"run_cost", "memory_growth", "eval_accuracy"} < rows.keys()
    one = called("power", "--policy", "smoke", "--fact", "backend=cpu", "--rule", "step_cost", "--json")[1]["chances"]
    chance = {row["effect"]: row["block"] for row in one if (row["baseline_runs"], row["candidate_runs"]) == (3, 3)}
    seen = rows["step_cost"]["reached"][0]["smallest"]
    assert 1.0 < seen / rows["step_cost"]["margin"] < 1.5  # in margins: between these two lie 80 %
    assert chance[1.0] < 0.8 < chance[1.5]
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


@pytest.mark.parametrize(
    ("words", "role"),
    [
        (("reward_mean", "--fact", "algo=grpo"), "gate"),
        (("loss",), "gate"),
        (("step_cost", "--fact", "backend=cuda"), "advisory"),
        (("step_cost", "--fact", "backend=cpu"), "gate"),
        (("step_cost", "--fact", "backend=cuda", "--fact", "bound=host"), "gate"),
        (("step_time", "--fact", "backend=cuda"), "gate"),
        (("step_time", "--fact", "backend=cpu"), "advisory"),
    ],
)
def test_power_is_that_of_a_rule_where_it_decides(words: tuple[str, ...], role: str) -> None:
    found = called("power", "--policy", "perf", "--json", "--rule", *words)[1]
    assert found["role"] == role
    assert max(row["block"] for row in found["chances"]) > (0.9 if role == "gate" else -1)
    other = {
        "step_cost": "step_cost decides with --fact bound=host",
        "step_time": "step_time does not decide with backend=cpu; it does with --fact backend=cuda",
    }
    assert found["notes"] == ([] if role == "gate" else [other[words[0]]])


def test_power_knows_the_stored_spread_and_a_given_one(runs: list[str]) -> None:
    def chance(*words: str) -> dict[tuple[int, float], Any]:
        found = called("power", "--policy", "perf", "--json", *GPU, *words)[1]
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
    assert chance("--fact", "device=H200")[1, 0.0]["passed"] > 0.9
    code, text = called("power", "--policy", "smoke", *GPU)
    assert code == 0
    assert "5+3" in text
    for words, part in ((("--rule", "speed"), "policy smoke has step_time"), (("--fact", "gpu"), "expected KEY=VALUE")):
        code, text = called("power", "--policy", "smoke", *words)
        assert code == 2
        assert part in text


def test_power_says_whose_spread_it_is_and_which_facts_choose_a_stored_one(runs: list[str]) -> None:
    def head(*words: str) -> list[str]:
        return called("power", "--policy", "perf", "--fact", "backend=cuda", *words)[1].splitlines()[:3]

    assert head(*GPU)[0].startswith("perf, step_time: spread 2.00 % (shipped with the policy), margin 8.00 %; ")
    given, meaning, _ = head("--rule", "step_time_tail", "--spread", "0.01")
    assert given.startswith("perf, step_time_tail: spread 0.0100 (given with --spread), margin 0.0300; ")
    assert meaning.endswith("(a fraction of the step time: 0.02 is 2 %)")
    assert head("--rule", "eval_accuracy")[1].endswith("(in units of the evaluation accuracy)")
    for path in Path().glob("r*.json"):
        path.write_text('{"hardware": {"backend": "cuda", "device": "H200 NVL"}}')
    called("calibrate", "--files", *runs[:3], "--write")
    note = head(*GPU)[2]
    assert note.startswith(
        "Note: canary-priors.yaml has spreads of step_time for other facts: smoke cuda H200 NVL (--fact "
    )
    options = shlex.split(note.partition("(")[2].rpartition(")")[0])
    chosen = head("--rule", "step_time", *options)
    assert "(calibrated here)" in chosen[0]
    assert "stored as 'smoke cuda H200 NVL'" in chosen[1]
    assert not chosen[2].startswith("Note")
    found = called("power", "--policy", "perf", "--json", *GPU)[1]
    assert (found["spread_entry"], found["scale"], len(found["notes"])) == (None, "log", 1)
    assert "canary-priors.yaml has no spread of loss" in head("--rule", "loss")[2]


@pytest.mark.parametrize("spread", ["nan", "inf", "1e-300", "1e300", "0", "-1"])
def test_a_spread_that_cannot_be_one_is_refused(spread: str) -> None:
    code, text = called("power", "--policy", "smoke", "--rule", "step_time", "--spread", spread)
    assert (code, len(text.splitlines())) == (2, 1)
    assert "--spread" in text


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("--fact", "colour=red"), "found colour, which policy smoke never looks at; expected one of algo, backend,"),
        (("--rule", "step_time", "--spread", "2"), "found 2, which is 200 %; expected a share; write one such as 0.02"),
        (("--spread", "0.02"), "--spread: found no rule, and it is for one; expected --rule NAME"),
        (("--png", "power.png"), "--png: found no rule, and it is for one; expected --rule NAME"),
        (("--runs", "3"), "--runs: found '3'; expected baseline and candidate runs"),
        (("--runs", "0+3"), "--runs: found '0+3'; expected"),
    ],
)
def test_what_would_change_nothing_or_is_in_percent_is_refused(words: tuple[str, ...], part: str) -> None:
    code, text = called("power", "--policy", "smoke", *words)
    assert (code, len(text.splitlines())) == (2, 1)
    assert part in text


def test_power_says_of_a_rule_that_it_does_not_decide() -> None:
    for rule, role, line in (
        ("grad_norm", "advisory", "grad_norm is advisory in this policy: it never blocks"),
        ("eval_loss", "ignore", "eval_loss is ignored in this policy: it never blocks and never passes"),
    ):
        asked = ("power", "--policy", "smoke", "--rule", rule, *(("--fact", "algo=ppo") if role == "ignore" else ()))
        assert line in called(*asked)[1].splitlines()
        found = called(*asked, "--json")[1]
        assert found["role"] == role
        assert {row["block"] for row in found["chances"]} == {0.0}
        assert (max(row["passed"] for row in found["chances"]) > 0.9) is (role == "advisory")
    assert "never" not in called("power", "--policy", "smoke", *GPU)[1]
    assert called("power", "--policy", "smoke", "--json", *GPU)[1]["role"] == "gate"


def test_power_counts_both_directions_where_both_are_harm() -> None:
    kl = ("--policy", "nightly", "--rule", "kl", "--spread", "0.1", "--json")
    unchanged = [row for row in called("power", *kl)[1]["chances"] if row["effect"] == 0]
    passed = {(row["baseline_runs"], row["candidate_runs"]): row["passed"] for row in unchanged}
    assert passed[3, 3] == pytest.approx(0.40, abs=0.02)
    assert passed[5, 3] == pytest.approx(0.60, abs=0.03)


def test_power_is_drawn(tmp_path: Path) -> None:
    picture = tmp_path / "power.png"
    assert called("power", "--policy", "smoke", "--rule", "step_time", "--png", str(picture))[0] == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("power.xyz", "found a file that ends in .xyz; expected a file that ends in .png"),
        ("power", "found a file without an ending; expected"),
        ("missing/power.png", "/missing; expected one that is there; make it, or name another"),
    ],
)
def test_a_picture_that_cannot_be_written_is_refused_before_anything_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, part: str
) -> None:
    monkeypatch.setattr("gates.stats.power.chances", None)
    code, text = called("power", "--policy", "smoke", "--rule", "step_time", "--png", str(tmp_path / name))
    assert (code, len(text.splitlines())) == (2, 1)
    assert part in text


def test_a_picture_that_the_place_refuses_is_one_line() -> None:
    code, text = called("power", "--policy", "smoke", "--rule", "step_time", "--png", "/proc/power.png")
    assert (code, len(text.splitlines())) == (2, 1)
    assert "--png /proc/power.png: cannot be written (No such file or directory); name another place" in text


def test_power_takes_a_metric_that_is_asked_about_for_one_that_is_recorded() -> None:
    words = ("power", "--policy", "smoke", "--fact", "backend=cpu", "--json")
    assert called(*words, "--rule", "step_cost")[1]["role"] == "gate"
    assert called(*words, "--rule", "step_time")[1]["role"] == "advisory"
    assert "the margin is smaller than here: 50 %" in called("power", "--policy", "smoke", "--rule", "peak_memory")[1]
