"""`canary calibrate` and `canary power`: spreads measured, stored where policies find them, and said in the verdict."""

from __future__ import annotations

import json
import math
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from canary_mlflow.cli import canary
from canary_mlflow.commands.calibrate import calibrated
from canary_mlflow.errors import UsageError
from canary_mlflow.files.runs import read_side
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


def test_a_better_spread_that_is_written_over_is_said(runs: list[str]) -> None:
    called("calibrate", "--files", *runs, "--write")
    gone = "written over spreads of the same facts that had more degrees of freedom: step_time 7 -> 2"
    assert gone in called("calibrate", "--files", *runs[:3], "--write")[1]
    code, found = called("calibrate", "--files", *runs, "--write", "--json")
    assert (code, found["lost"]) == (0, "")


def test_a_table_for_people_and_nothing_stored_unasked(runs: list[str]) -> None:
    code, text = called("calibrate", "--files", *runs[:3])
    assert code == 0
    assert "step_time" in text
    assert "No group has four runs" in text
    assert not Path(PRIORS_FILE).exists()
    row = next(
        line.split() for line in called("calibrate", "--files", *runs, "--policy", "nightly")[1].splitlines()[3:]
    )
    assert (row[0], row[6:10]) == ("step_time", ["2.00", "%", "5.00", "%"]), "as the policy states them"
    assert row[10:] == ["smoke,", "perf,", "nightly"]


def test_tails_and_drifts_are_shares_as_in_a_verdict(runs: list[str]) -> None:
    rows = {line.split()[0]: line.split() for line in called("calibrate", "--files", *runs)[1].splitlines() if line}
    assert rows["step_time_tail"][4:6] == ["0.0100", "0.0300"], "no seconds"
    assert rows["step_time_drift"][4:6] == ["0.0150", "0.0500"]


def test_few_runs_leave_the_spread_uncertain(runs: list[str]) -> None:
    found = called("calibrate", "--files", *runs[:2], "--json")[1]
    time, loss = found["metrics"]["step_time"], found["metrics"]["loss"]
    assert time["spread_upper"] / time["spread"] == pytest.approx(math.sqrt(1 / 0.0157908), rel=1e-4), (
        "chi-square, 10 %"
    )
    assert (time["resolved_by"], time["perhaps_resolved_by"]) == (["smoke", "perf"], ["nightly"])
    assert (loss["spread_upper"], loss["resolved_by"]) == (None, []), "equal runs say nothing about a spread"
    assert found["notes"][0].startswith("2 runs leave a spread uncertain: the true one may be 8.0 times as large")
    text = called("calibrate", "--files", *runs[:2])[1]
    assert "  smoke, perf; perhaps nightly\n" in text
    assert "Note: 2 runs leave a spread uncertain" in text
    many = called("calibrate", "--files", *runs, "--json")[1]["metrics"]["step_time"]
    assert (many["spread_upper"] < 2 * many["spread"], many["perhaps_resolved_by"]) == (True, [])


def test_a_slip_is_said_and_never_stored(runs: list[str]) -> None:
    """A spread of a thousand would keep every later run from a verdict, and none contradicts one that is too large."""
    rows = [json.loads(line) for line in Path(runs[0]).read_text().splitlines()]
    Path(runs[0]).write_text("".join(json.dumps({**row, "step_time": 1000 * row["step_time"]}) + "\n" for row in rows))
    assert any("a slip in its file" in note for note in called("calibrate", "--files", *runs, "--json")[1]["notes"])
    code, text = called("calibrate", "--files", *runs, "--write")
    assert (code, len(text.splitlines())) == (2, 1)
    assert "expected unchanged runs alone; nothing was stored" in text
    assert not Path("canary-priors.yaml").exists()


def test_runs_of_one_seed_are_named_as_a_poor_standard(runs: list[str]) -> None:
    assert called("calibrate", "--files", *runs, "--json")[1]["notes"] == []
    for number, name in enumerate(runs):
        Path(name).with_suffix(".json").write_text(json.dumps({"seed": number % 4, "workload": {"algo": "sft"}}))
    assert called("calibrate", "--files", *runs[:4], "--json")[1]["notes"] == []
    assert (
        "several runs of a group have seeds 0, 1, 2, 3"
        in called("calibrate", "--files", *runs, "--json")[1]["notes"][0]
    )
    assert "calibrate with runs of different seeds" in called("calibrate", "--files", *runs)[1]


def test_runs_that_do_not_say_where_they_were_made_are_named_so(runs: list[str]) -> None:
    for name in runs:
        Path(name).with_suffix(".json").unlink()
    [note] = called("calibrate", "--files", *runs, "--json")[1]["notes"]
    assert note == (
        "the runs name neither hardware nor algorithm: stored, their spread is taken for any run's in that folder"
    )


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ((), "expected sessions or versions, or --files"),
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


@pytest.mark.parametrize("text", ["", "[1, 2]", "priors: [1, 2]", "priors: abc", "priors: null", "prios: {}"])
def test_another_file_in_the_place_of_the_priors_is_refused_in_one_line(runs: list[str], text: str) -> None:
    Path(PRIORS_FILE).write_text(text)
    judge = ("judge", "--baseline", *runs[:5], "--candidate", *runs[5:], "--policy", "smoke")
    for words in (judge, ("calibrate", "--files", *runs, "--write")):
        code, said = called(*words)
        assert (code, len(said.splitlines())) == (2, 1)
        assert f"{PRIORS_FILE}: " in said
    assert Path(PRIORS_FILE).read_text() == text


def test_what_is_written_again_stands_last(runs: list[str]) -> None:
    for device in ("H200", "A100", "H200"):
        for path in Path().glob("r*.json"):
            path.write_text(json.dumps({"hardware": {"device": device}}))
        called("calibrate", "--files", *runs, "--write")
    assert [known.when["device"] for known in load_policy("perf").priors] == [("A100",), ("H200",)]


def test_a_run_given_again_and_a_copy_of_one_count_once(runs: list[str]) -> None:
    shutil.copy("r0.jsonl", "copy.jsonl")
    code, found = called("calibrate", "--files", *runs[:4], "--files", *runs[:1] * 5, "copy.jsonl", "--json")
    assert code == 0
    assert found["metrics"] == called("calibrate", "--files", *runs[:4], "--json")[1]["metrics"]
    assert found["notes"] == [
        "run copy.jsonl: it is run r0.jsonl again",
        "run r0.jsonl: it was given 6 times, it counts once",
    ]
    assert "Note: run copy.jsonl: it is run r0.jsonl again." in called("calibrate", "--files", *runs, "copy.jsonl")[1]
    code, text = called("calibrate", "--files", "r0.jsonl", "r0.jsonl", "copy.jsonl", "--write")
    assert (code, len(text.splitlines()), Path(PRIORS_FILE).exists()) == (2, 1, False)
    assert "found 1 finished runs (run copy.jsonl: it is run r0.jsonl again" in text


@pytest.mark.parametrize(
    ("facts", "part"),
    [
        ({"workload": {"algo": "sft"}}, "(algo: absent | sft, backend: absent | cuda, device: H200 | absent)"),
        ({"hardware": {"backend": "cuda", "device": "A100"}}, "(device: A100 | H200)"),
    ],
)
def test_mixed_work_and_mixed_hardware_are_refused(runs: list[str], facts: dict[str, Any], part: str) -> None:
    for name in runs[4:]:
        Path(name).with_suffix(".json").write_text(json.dumps(facts))
    code, text = called("calibrate", "--files", *runs, "--write")
    assert (code, len(text.splitlines()), Path(PRIORS_FILE).exists()) == (2, 1, False)
    assert part in text


def test_groups_of_unlike_work_are_refused(runs: list[str]) -> None:
    for name in runs[4:]:
        Path(name).with_suffix(".json").write_text('{"hardware": {"backend": "cuda", "device": "A100"}}')
    groups = [read_side([Path(name) for name in part])[0].runs for part in (runs[:4], runs[4:])]
    assert calibrated("smoke", groups[:1]).when["device"] == "H200"
    with pytest.raises(UsageError, match=r"\(device: A100 \| H200\); expected unchanged runs of one"):
        calibrated("smoke", groups)


def test_a_run_far_off_its_group_is_named_with_the_rule(runs: list[str]) -> None:
    rows = [json.loads(line) for line in Path("r7.jsonl").read_text().splitlines()]
    Path("r7.jsonl").write_text("".join(json.dumps(row | {"step_time": 10 * row["step_time"]}) + "\n" for row in rows))
    notes = called("calibrate", "--files", *runs, "--json")[1]["notes"]
    assert len(notes) == 1
    assert notes[0].startswith("step_time: step time of run r7.jsonl is ")


def test_equal_numbers_have_no_spread_at_all(runs: list[str]) -> None:
    for name in runs:
        Path(name).with_suffix(".json").write_text('{"peak_memory": 900.1, "eval_loss": 0.58}')
    code, found = called("calibrate", "--files", *runs[:7], "--write", "--json")
    assert code == 0
    for metric in ("peak_memory", "eval_loss", "loss"):
        assert (found["metrics"][metric]["spread"], found["metrics"][metric]["prior"]) == (0.0, None)
    assert set(load_policy("smoke").priors[0].rules) == {"step_time", "step_time_tail", "step_time_drift"}


def test_sessions_of_the_store_count_their_runs_once(recorded: Any, usual_session: str) -> None:
    def found(*names: str) -> Any:
        code, found = called("calibrate", *names, "--tracking-uri", recorded.uri, "--json")
        assert code == 0
        return found

    other, run = recorded.session(), recorded.children(usual_session)[0]
    two = found(usual_session, other)
    assert (two["when"]["backend"], two["when"]["algo"]) == ("cpu", "dpo")
    assert (two["metrics"]["step_cost"]["groups"], two["metrics"]["step_cost"]["runs"]) == (2, 6)
    again = found(run, usual_session, other, usual_session)
    assert again["metrics"] == two["metrics"], "a session keeps the run that is named beside it"
    assert again["notes"][:2] == [
        f"session {usual_session}: it was given 2 times, it counts once",
        f"run {run}: it was given 2 times, it counts once",
    ]


def test_runs_that_were_asked_for_a_fault_are_no_unchanged_ones(recorded: Any, usual_session: str) -> None:
    struck = recorded.session()
    for run_id in recorded.children(struck):
        recorded.client.set_tag(run_id, "canary.fault", "slow_step")
    words = ("calibrate", usual_session, struck, "--tracking-uri", recorded.uri, "--json")
    found = called(*words)[1]
    assert found["metrics"]["step_cost"]["runs"] == 3
    assert sum("left out, it was made with fault=slow_step" in note for note in found["notes"]) == 3


@pytest.mark.parametrize(
    ("words", "role"),
    [
        (("reward_mean", "--fact", "algo=grpo"), "gate"),
        (("loss",), "gate"),
        (("step_cost",), "advisory"),
        (("step_cost", "--fact", "backend=cpu"), "gate"),
        (("step_time",), "gate"),
    ],
)
def test_power_is_that_of_a_rule_where_it_decides(words: tuple[str, ...], role: str) -> None:
    found = called("power", "--policy", "perf", "--json", "--rule", *words)[1]
    assert found["role"] == role
    assert max(row["block"] for row in found["chances"]) > (0.9 if role == "gate" else -1)
    assert found["notes"] == ([] if role == "gate" else ["step_cost decides with --fact backend=cpu"])


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


def test_power_says_whose_spread_it_is_and_which_facts_choose_a_stored_one(runs: list[str]) -> None:
    def head(*words: str) -> list[str]:
        return called("power", "--policy", "perf", *words)[1].splitlines()[:3]

    assert head()[0].startswith("perf, step_time: spread 2.00 % (shipped with the policy), margin 8.00 %; ")
    given, meaning, _ = head("--rule", "step_time_tail", "--spread", "0.01")
    assert given.startswith("perf, step_time_tail: spread 0.0100 (given with --spread), margin 0.0300; ")
    assert meaning.endswith("(a fraction of the step time: 0.02 is 2 %)")
    assert head("--rule", "eval_accuracy")[1].endswith("(in units of the evaluation accuracy)")
    for path in Path().glob("r*.json"):
        path.write_text('{"hardware": {"backend": "cuda", "device": "H200 NVL"}}')
    called("calibrate", "--files", *runs[:3], "--write")
    note = head("--fact", "backend=cuda")[2]
    assert note.startswith(
        "Note: canary-priors.yaml has spreads of step_time for other facts: smoke cuda H200 NVL (--fact "
    )
    options = shlex.split(note.partition("(")[2].rpartition(")")[0])
    chosen = head(*options)
    assert "(calibrated here)" in chosen[0]
    assert "stored as 'smoke cuda H200 NVL'" in chosen[1]
    assert not chosen[2].startswith("Note")
    found = called("power", "--policy", "perf", "--json")[1]
    assert (found["spread_entry"], found["scale"], len(found["notes"])) == (None, "log", 1)
    assert "canary-priors.yaml has no spread of loss" in head("--rule", "loss")[2]


@pytest.mark.parametrize("spread", ["nan", "inf", "1e-300", "1e300", "0", "-1"])
def test_a_spread_that_cannot_be_one_is_refused(spread: str) -> None:
    code, text = called("power", "--policy", "smoke", "--spread", spread)
    assert (code, len(text.splitlines())) == (2, 1)
    assert "--spread" in text


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
    assert "never" not in called("power", "--policy", "smoke")[1]
    assert called("power", "--policy", "smoke", "--json")[1]["role"] == "gate"


def test_power_counts_both_directions_where_both_are_harm() -> None:
    kl = ("--policy", "nightly", "--rule", "kl", "--fact", "algo=ppo", "--spread", "0.1", "--json")
    unchanged = [row for row in called("power", *kl)[1]["chances"] if row["effect"] == 0]
    passed = {(row["baseline_runs"], row["candidate_runs"]): row["passed"] for row in unchanged}
    assert passed[3, 3] == pytest.approx(0.48, abs=0.02)
    assert passed[5, 3] == pytest.approx(0.72, abs=0.03)


def test_power_is_drawn(tmp_path: Path) -> None:
    picture = tmp_path / "power.png"
    assert called("power", "--policy", "smoke", "--png", str(picture))[0] == 0
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
    monkeypatch.setattr("gates.power.power", None)
    code, text = called("power", "--policy", "smoke", "--png", str(tmp_path / name))
    assert (code, len(text.splitlines())) == (2, 1)
    assert part in text


def test_a_picture_that_the_place_refuses_is_one_line() -> None:
    code, text = called("power", "--policy", "smoke", "--png", "/proc/power.png")
    assert (code, len(text.splitlines())) == (2, 1)
    assert "--png /proc/power.png: cannot be written (No such file or directory); name another place" in text


def test_measured_spreads_are_not_committed_by_accident() -> None:
    ignored = Path(__file__).parents[2].joinpath(".gitignore").read_text().splitlines()
    assert f"/{PRIORS_FILE}" in ignored, "they hold for one machine"


def seeded(runs: list[str], levels: dict[int, float]) -> list[str]:
    for name, (seed, level) in zip(runs, levels.items(), strict=False):
        Path(name).with_suffix(".json").write_text(json.dumps({"seed": seed, "eval_loss": level}))
    return runs[: len(levels)]


def test_sessions_of_the_same_seeds_say_one_thing_of_what_follows_from_the_seed(runs: list[str]) -> None:
    """Losses of equal code are bit-equal in each session: more sessions make their spread no surer."""
    levels = {0: 0.5, 1: 0.52, 2: 0.53}
    sessions = [[*read_side([Path(name) for name in part])[0].runs] for part in (seeded(runs[:3], levels),)]
    again = [*read_side([Path(name) for name in seeded(runs[3:6], levels)])[0].runs]
    one, two = calibrated("smoke", sessions), calibrated("smoke", [*sessions, again])
    (alone,), (both,) = ([s for s in found.spreads if s.rule.name == "eval_loss"] for found in (one, two))
    assert (both.runs, both.sd, both.upper) == (alone.runs, alone.sd, alone.upper) == (3, alone.sd, alone.upper)
    assert next(s.runs for s in two.spreads if s.rule.name == "step_time") == 6


def test_runs_that_a_hard_check_blocks_are_no_standard(runs: list[str]) -> None:
    rows = Path(runs[0]).read_text().splitlines()
    Path(runs[0]).write_text("\n".join([*rows[:50], '{"step": 51, "step_time": 0.1, "loss": NaN}', *rows[51:]]) + "\n")
    found = called("calibrate", "--files", *runs, "--json")[1]
    assert found["metrics"]["step_time"]["runs"] == 7
    assert any("r0.jsonl: nonfinite" in note and "no standard" in note for note in found["notes"])


def test_tiers_are_said_to_resolve_by_the_margin_that_the_judge_would_take(runs: list[str]) -> None:
    """Of 80 GB, 1000 MiB are 1.2 %, whatever the policy's 20 % say."""
    for name, peak in zip(runs, np.linspace(79_000, 82_000, 8), strict=True):
        Path(name).with_suffix(".json").write_text(json.dumps({"peak_memory": peak}))
    memory = called("calibrate", "--files", *runs, "--json")[1]["metrics"]["peak_memory"]
    assert memory["margin"] < 0.013 < memory["spread_upper"]
    assert memory["resolved_by"] == []


def test_power_takes_a_metric_that_is_asked_about_for_one_that_is_recorded() -> None:
    words = ("power", "--policy", "smoke", "--fact", "backend=cpu", "--json")
    assert called(*words, "--rule", "step_cost")[1]["role"] == "gate"
    assert called(*words, "--rule", "step_time")[1]["role"] == "advisory"
    assert "never more than 1000 MiB" in called("power", "--policy", "smoke", "--rule", "peak_memory")[1]
