"""`canary calibrate`: spreads measured, stored where policies find them, and named in the verdict."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from unchanged_files import called

from canary_mlflow.commands.calibrate import calibrated
from canary_mlflow.errors import UsageError
from canary_mlflow.files.runs import read_side
from canary_mlflow.policies import PRIORS_FILE, load_policy


def test_spreads_are_measured_stored_and_used(runs: list[str]) -> None:
    code, found = called("calibrate", "--files", *runs, "--write", "--json")
    time = found["metrics"]["step_time"]
    assert code == 0
    assert 0.004 < time["spread"] < 0.02
    assert (time["resolved_by"], time["prior"]["kind"]) == (["smoke", "perf", "nightly"], "calibrated")
    assert found["metrics"]["loss"]["prior"] is None, "bit-equal losses say nothing about a spread"
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
    gone = "written over spreads of the same facts that had more degrees of freedom: step_time 7 → 2"
    assert gone in called("calibrate", "--files", *runs[:3], "--write")[1]
    code, found = called("calibrate", "--files", *runs, "--write", "--json")
    assert (code, found["lost"]) == (0, "")


def test_a_table_for_people_and_nothing_stored_unasked(runs: list[str]) -> None:
    code, text = called("calibrate", "--files", *runs[:3])
    assert code == 0
    assert "step_time" in text
    assert not Path(PRIORS_FILE).exists()
    row = next(
        line.split() for line in called("calibrate", "--files", *runs, "--policy", "nightly")[1].splitlines()[3:]
    )
    assert (row[0], row[6:10]) == ("step_time", ["2.00", "%", "5.00", "%"]), "as the policy states them"
    assert row[10:] == ["smoke,", "perf,", "nightly"]


def test_tails_and_drifts_are_shares_as_in_a_verdict(runs: list[str]) -> None:
    rows = {line.split()[0]: line.split() for line in called("calibrate", "--files", *runs)[1].splitlines() if line}
    assert rows["step_time_tail"][4:6] == ["0.0100", "0.0300"], "no seconds"
    assert rows["step_time_drift"][4:6] == ["0.0300", "0.100"]


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
    assert len(notes) == 3  # of the steps, their mean, and all of them together
    assert notes[0].startswith("step_time: step time of run r7.jsonl is ")


def test_equal_numbers_have_no_spread_at_all(runs: list[str]) -> None:
    for name in runs:
        Path(name).with_suffix(".json").write_text('{"peak_memory": 900.1, "eval_loss": 0.58}')
    code, found = called("calibrate", "--files", *runs[:7], "--write", "--json")
    assert code == 0
    for metric in ("peak_memory", "eval_loss", "loss"):
        assert (found["metrics"][metric]["spread"], found["metrics"][metric]["prior"]) == (0.0, None)
    assert set(load_policy("smoke").priors[0].rules) == {
        "step_time",
        "step_time_tail",
        "step_time_drift",
        "run_time",
        "total_time",
    }


def test_sessions_of_the_store_count_their_runs_once(recorded: Any, usual_session: str) -> None:
    def found(*names: str) -> Any:
        code, found = called("calibrate", *names, "--tracking-uri", recorded.uri, "--json")
        assert code == 0
        return found

    other, run = recorded.session(), recorded.children(usual_session)[0]
    seed = recorded.client.get_run(run).data.tags["canary.seed"]
    two = found(usual_session, other)
    assert (two["when"]["backend"], two["when"]["algo"]) == ("cpu", "dpo")
    assert (two["metrics"]["step_cost"]["groups"], two["metrics"]["step_cost"]["runs"]) == (2, 6)
    again = found(run, usual_session, other, usual_session)
    assert again["metrics"] == two["metrics"], "a session keeps the run that is named beside it"
    assert again["notes"][:2] == [
        f"session {usual_session}: it was given 2 times, it counts once",
        f"seed {seed}: it was given 2 times, it counts once",
    ]


def test_runs_that_were_asked_for_a_fault_are_no_unchanged_ones(recorded: Any, usual_session: str) -> None:
    struck = recorded.session()
    for run_id in recorded.children(struck):
        recorded.client.set_tag(run_id, "canary.not_promotable", "fault slow_step")
    words = ("calibrate", usual_session, struck, "--tracking-uri", recorded.uri, "--json")
    found = called(*words)[1]
    assert found["metrics"]["step_cost"]["runs"] == 3
    assert sum("left out, it was made with fault slow_step" in note for note in found["notes"]) == 3


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
    assert any("r0.jsonl: nonfinite" in note and "not healthy" in note for note in found["notes"])


def test_tiers_are_said_to_resolve_by_the_margin_that_the_judge_would_take(runs: list[str]) -> None:
    """Half of what 84,000 MiB leave is 2 %, whatever the policy's 20 % say."""
    for name, peak in zip(runs, np.linspace(79_000, 82_000, 8), strict=True):
        Path(name).with_suffix(".json").write_text(
            json.dumps({"peak_memory": peak, "environment": {"gpu_memory": "84000"}})
        )
    memory = called("calibrate", "--files", *runs, "--json")[1]["metrics"]["peak_memory"]
    assert memory["margin"] == pytest.approx(0.021, abs=0.002)
    assert memory["resolved_by"] == []
