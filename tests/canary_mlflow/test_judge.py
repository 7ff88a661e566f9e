"""`canary judge` on plain files: the gate's verdicts and exit codes, without MLflow, and what bad input leads to."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from canary_mlflow.cli import canary

ROOT = Path(__file__).resolve().parents[2]
STEPS = 100
Rows = Mapping[str, Any]
Save = Callable[..., Path]


def rows(number: int, *, slow: float = 1.0, steps: int = STEPS) -> dict[str, Any]:
    """The columns of a healthy run; its wobble follows from its number."""
    rng = np.random.default_rng(number)
    return {
        "step": np.arange(1, steps + 1),
        "step_time": 0.1 * slow * np.exp(rng.normal(0, 0.01) + rng.normal(0, 0.04, steps)),
        "loss": np.linspace(0.69, 0.55, steps) * np.exp(rng.normal(0, 0.01, steps)),
    }


@pytest.fixture
def save(tmp_path: Path) -> Save:
    def write(name: str, columns: Rows, beside: Mapping[str, Any] | None = None) -> Path:
        path = tmp_path / name
        table = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        with path.open("w", newline="") as file:
            if path.suffix == ".csv":
                writer = csv.DictWriter(file, list(columns))
                writer.writeheader()
                writer.writerows(table)
            else:
                file.writelines(json.dumps({key: plain(value) for key, value in row.items()}) + "\n" for row in table)
        if beside is not None:
            path.with_suffix(".json").write_text(json.dumps(beside))
        return path

    return write


def plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def side(save: Save, name: str, first: int, count: int = 3, beside: Any = None, **changes: Any) -> list[Path]:
    return [save(f"{name}{i}.jsonl", rows(first + i, **changes), beside) for i in range(count)]


def judged(baseline: Sequence[Path], candidate: Sequence[Path], policy: str = "smoke") -> tuple[int, dict[str, Any]]:
    words = ["judge", "--baseline", *map(str, baseline), "--candidate", *map(str, candidate), "--policy", policy]
    result = CliRunner().invoke(canary, [*words, "--json"], catch_exceptions=False)
    return result.exit_code, json.loads(result.stdout)["verdict"] if result.stdout else {"error": result.stderr}


def check(verdict: Mapping[str, Any], name: str) -> Any:
    return next(item for item in verdict["checks"] if item["metric"] == name)


def test_unchanged_passes_and_a_slowdown_blocks(save: Save) -> None:
    baseline = side(save, "a", 0, 5)
    code, verdict = judged(baseline, side(save, "b", 10))
    assert (code, verdict["outcome"]) == (0, "PASS")
    code, verdict = judged(baseline, side(save, "c", 20, slow=1.225))
    assert (code, verdict["outcome"]) == (1, "BLOCK")
    assert verdict["reason"].startswith("Step time 100.")


def test_what_neither_side_has_is_listed_and_decides_nothing_but_step_time_does(save: Save) -> None:
    code, verdict = judged(side(save, "a", 0), side(save, "b", 10))
    assert code == 0
    assert {"peak_memory", "eval_loss"} <= {c["metric"] for c in verdict["checks"] if c["outcome"] == "NOT_JUDGED"}
    assert check(verdict, "loss")["role"] == "gate", "without an evaluation the loss decides"
    bare = [{key: value for key, value in rows(i).items() if key != "step_time"} for i in range(6)]
    files = [save(f"bare{i}.jsonl", columns) for i, columns in enumerate(bare)]
    code, verdict = judged(files[:3], files[3:])
    assert (code, verdict["reason_code"]) == (3, "missing-data")
    assert "step time was not recorded" in verdict["reason"].lower()


def test_csv_common_names_and_scalars_beside(save: Save) -> None:
    def file(name: str, number: int, evaluation: float) -> Path:
        columns = rows(number)
        times = columns.pop("step_time") * 1000
        beside = {"eval_loss": evaluation, "peak_memory_mb": 900.0, "seed": number, "hardware": {"backend": "cpu"}}
        return save(name, {**columns, "step_time_ms": times}, {**beside, "colour": "red"})

    baseline = [file(f"a{i}.csv", i, 0.5) for i in range(3)]
    code, verdict = judged(baseline, [file(f"b{i}.csv", 10 + i, 0.5) for i in range(3)])
    assert code == 0
    assert check(verdict, "step_time")["evidence"]["baseline"] == pytest.approx(0.1, rel=0.05)
    assert check(verdict, "step_time")["role"] == "gate", "CPU facts alone do not take the step time's place"
    assert {check(verdict, name)["outcome"] for name in ("eval_loss", "peak_memory")} == {"PASS"}
    assert any("nothing reads: colour" in note for note in verdict["notes"])
    code, verdict = judged(baseline, [file(f"c{i}.csv", 20 + i, 0.6) for i in range(3)])
    assert (code, check(verdict, "eval_loss")["outcome"]) == (1, "BLOCK")


def test_one_run_a_side_says_what_it_rests_on_and_never_blocks(save: Save) -> None:
    baseline = side(save, "a", 0, 1)
    code, verdict = judged(baseline, side(save, "b", 10, 1))
    assert code == 0
    assert [note for note in verdict["notes"] if "prior-based" in note and "step_time" in note]
    code, verdict = judged(baseline, side(save, "c", 20, 1, slow=1.5))
    assert (code, verdict["reason_code"], verdict["more_runs"]) == (3, "too-few-runs", 3)  # the mean of all steps


def test_hard_gates_need_no_clean_baseline(save: Save) -> None:
    baseline = side(save, "a", 0)
    for beside, words in (({"failure": "oom"}, "ran out of memory"), ({"completed": False}, "crashed")):
        code, verdict = judged(baseline, [*side(save, "b", 10, 2), save("bad.jsonl", rows(30), beside)])
        assert (code, verdict["reason_code"]) == (1, "hard-gate")
        assert words in verdict["reason"]
    code, verdict = judged(baseline, [*side(save, "b", 10, 2), save("cut.jsonl", rows(30), {"failure": "interrupted"})])
    assert code == 0
    assert any("cut.jsonl: it was interrupted" in note for note in verdict["notes"])


def test_the_watch_goes_over_files_too(save: Save) -> None:
    """A reward that is lost on the way, though it is back at the end; too few rows show nothing."""
    rng = np.random.default_rng(7)

    def learning(number: int, lost: bool = False) -> dict[str, Any]:
        reward = np.linspace(1, 4, STEPS) + rng.normal(0, 0.1, STEPS)
        reward[50:75] -= 3 * lost
        return {**rows(number), "reward_mean": reward, "kl": np.linspace(0.1, 6, STEPS)}

    baseline = [save(f"a{i}.jsonl", learning(i)) for i in range(3)]
    code, verdict = judged(baseline, [save(f"b{i}.jsonl", learning(10 + i)) for i in range(3)])
    assert (code, check(verdict, "watch")["outcome"]) == (0, "PASS")
    code, verdict = judged(baseline, [save(f"c{i}.jsonl", learning(20 + i, lost=True)) for i in range(3)])
    assert (code, check(verdict, "watch")["outcome"]) == (1, "BLOCK")
    assert "reward_fall" in check(verdict, "watch")["reason"]
    short = [save(f"d{i}.jsonl", rows(i, steps=10)) for i in range(6)]
    _, verdict = judged(short[:3], short[3:])
    assert not [item for item in verdict["checks"] if item["metric"] == "watch"], "nobody could tell"


# The cases of docs/policy.md, "Flawed data".


def test_nan_inside(save: Save) -> None:
    baseline = side(save, "a", 0)
    broken = rows(30)
    broken["loss"][20] = np.nan
    code, verdict = judged(baseline, [*side(save, "b", 10, 2), save("nan.jsonl", broken)])
    assert (code, check(verdict, "nonfinite")["outcome"]) == (1, "BLOCK")
    late = rows(31)
    late["step_time"][20] = np.nan
    code, verdict = judged(baseline, [*side(save, "b", 10, 2), save("late.jsonl", late)])
    assert code == 0
    assert [note for note in verdict["notes"] if note.startswith("1 non-finite value left out (step_time")]


def test_one_run_without_a_metric(save: Save) -> None:
    without = {key: value for key, value in rows(30).items() if key != "loss"}
    code, verdict = judged(side(save, "a", 0), [*side(save, "b", 10, 2), save("less.jsonl", without)])
    assert (code, verdict["reason_code"]) == (3, "missing-data"), "what one run hides does not pass"
    assert "1 candidate run without enough data left out (loss)" in verdict["notes"]
    code, verdict = judged(side(save, "a", 0), [save(f"less{i}.jsonl", {**without}) for i in range(3)])
    assert (code, check(verdict, "loss")["outcome"]) == (3, "INCONCLUSIVE"), "what vanished does not pass"


@pytest.mark.parametrize("more", [{"eval_loss": 5.0}, {"kl": 1.0}])
def test_what_the_candidate_alone_records_does_not_take_the_loss_out_of_the_verdict(save: Save, more: Any) -> None:
    before = side(save, "a", 0)
    now = [save(f"b{i}.jsonl", {**rows(i), "loss": 1.4 * rows(i)["loss"]}, more if i == 0 else None) for i in range(3)]
    code, verdict = judged(before, now)
    assert (code, check(verdict, "loss")["outcome"]) == (1, "BLOCK")


@pytest.mark.parametrize("steps", [60, 5])
def test_a_run_that_ended_early_is_not_as_good_as_one_that_went_on(save: Save, steps: int) -> None:
    code, verdict = judged(side(save, "a", 0, 5), [*side(save, "b", 10, 4), save("short.jsonl", rows(20, steps=steps))])
    assert (code, verdict["reason_code"]) == (3, "not-comparable")


def test_a_training_that_broke_off_without_numbers_became_unstable(tmp_path: Path) -> None:
    def state(name: str, last: int, end: float, at: int = 0, **other: float) -> Path:
        path = tmp_path / name / "trainer_state.json"
        path.parent.mkdir()
        losses = [*(3 * 0.98**step for step in range(1, last)), end]
        history = [{"step": step, "loss": loss} for step, loss in enumerate(losses, start=1)]
        history[at - 1] |= other
        path.write_text(json.dumps({"max_steps": STEPS, "log_history": history}))
        return path

    sound = [state(f"a{i}", STEPS, 0.4 + i / 100) for i in range(3)]
    good = [state(f"b{i}", STEPS, 0.41 + i / 100) for i in range(2)]
    code, verdict = judged(sound, [*good, state("b2", 40, np.nan)])
    assert (code, check(verdict, "completed")["outcome"]) == (1, "BLOCK")
    said = check(verdict, "completed")["reason"]
    assert "became unstable after step 40 (loss is nan from step 40 to the end)" in said
    assert verdict["reason"].startswith("Nonfinite: 1 of 3 runs: non-finite steps, first at step 40 (loss)")
    for number, other in enumerate(({"entropy": np.nan}, {"reward_mean": np.nan}, {"eval_loss": np.nan, "at": 10})):
        code, verdict = judged(sound, [*good, state(f"c{number}", 40, 1.3, **other)])
        assert verdict["reason_code"] == "broken-off", other
    code, verdict = judged(sound, [*good, state("d", 2, 1.3, grad_norm=np.inf, at=1)])
    assert verdict["reason_code"] == "broken-off", "fp16 was looking for its loss scale"


def test_all_values_equal(save: Save) -> None:
    def flat(name: str, time: float) -> list[Path]:
        columns = {**rows(0), "step_time": np.full(STEPS, time), "loss": np.full(STEPS, 0.5)}
        return [save(f"{name}{i}.jsonl", columns) for i in range(3)]

    assert judged(flat("a", 0.1), flat("b", 0.1))[0] == 0
    assert judged(flat("a", 0.1), flat("c", 0.2))[0] == 1


def test_zero_and_negative_on_a_log_scale(save: Save) -> None:
    zero = [save(f"z{i}.jsonl", {**rows(i), "step_time": np.zeros(STEPS)}) for i in range(3)]
    code, verdict = judged(side(save, "a", 0), zero)
    assert (code, verdict["reason_code"]) == (3, "missing-data")
    assert "no relative change" in check(verdict, "step_time")["reason"]

    def signed(name: str, first: int) -> list[Path]:
        return [save(f"{name}{i}.jsonl", {**rows(i), "loss": rows(first + i)["loss"] - 1.0}) for i in range(3)]

    assert check(judged(signed("m", 0), signed("n", 10))[1], "loss")["evidence"]["relative"] is False


def test_unequal_lengths(save: Save) -> None:
    code, verdict = judged(side(save, "a", 0), side(save, "b", 10, steps=60))
    assert (code, verdict["reason_code"]) == (3, "not-comparable")
    assert "end at different steps (60 and 100)" in verdict["reason"]
    assert check(verdict, "step_time")["outcome"] == "PASS"


def test_the_same_run_twice_is_one(save: Save) -> None:
    once = save("once.jsonl", rows(10))
    code, verdict = judged(side(save, "a", 0), [once, save("copy.jsonl", rows(10)), once])
    assert verdict["candidate_runs"] == [str(once.with_name("copy.jsonl"))]
    assert any("once.jsonl: it is run" in note and "again" in note for note in verdict["notes"])
    assert any("once.jsonl: it was given 2 times" in note for note in verdict["notes"])
    spelt = once.parent / ".." / once.parent.name / once.name
    assert judged(side(save, "a", 0), [once, spelt])[1]["candidate_runs"] == [str(once)]
    code, verdict = judged([once], [save("again.jsonl", rows(10))])
    assert (code, verdict["reason_code"]) == (3, "missing-data")


@pytest.mark.parametrize("name", ["a_copy.jsonl", "z_copy.jsonl"])
@pytest.mark.parametrize(
    ("facts", "answer"),
    [
        ({"completed": False, "failure": "oom"}, (1, "hard-gate")),
        ({"hardware": {"device": "H100"}}, (3, "not-comparable")),
        (None, (0, "pass")),
    ],
)
def test_what_a_copy_of_a_run_says_does_not_depend_on_its_name(
    save: Save, name: str, facts: Any, answer: tuple[int, str]
) -> None:
    known = {"hardware": {"device": "H200"}, "eval_loss": 0.5}
    candidate = [save("m.jsonl", rows(10), known), *side(save, "b", 20, 2, known), save(name, rows(10), facts)]
    code, verdict = judged(side(save, "h", 0, 3, known), candidate)
    assert (code, verdict["reason_code"]) == answer


def test_what_stands_beside_a_file_hides_nothing_that_its_steps_say(save: Save) -> None:
    broken = {**rows(30), "loss": np.where(np.arange(STEPS) > 50, np.nan, 0.6)}
    code, verdict = judged(side(save, "a", 0), [save("nan.jsonl", broken, {"loss": 0.55}), *side(save, "b", 10, 2)])
    assert (code, check(verdict, "nonfinite")["outcome"]) == (1, "BLOCK")
    assert any("gives loss, which the steps have too: the steps count" in note for note in verdict["notes"])


@pytest.mark.parametrize(("factor", "where"), [(10.0, 0), (0.1, 2)])
def test_a_baseline_run_with_a_slip_of_ten_is_named(save: Save, factor: float, where: int) -> None:
    baseline = side(save, "a", 0, 4)
    baseline.insert(where, save("slip.jsonl", rows(30, slow=factor)))
    for slow in (1.0, 1.5):
        code, verdict = judged(baseline, side(save, "b", 10, slow=slow))
        assert (code, verdict["reason_code"]) == (3, "suspect-data")
        assert "slip.jsonl" in verdict["reason"]


def test_clocks_of_one_side_that_are_far_apart_are_a_machine_in_trouble(save: Save) -> None:
    """Unchanged code on a busy machine: 17 to 330 ms a step; the candidate's runs were all made in the busy hours."""
    quiet = [save(f"q{i}.jsonl", rows(i, slow=slow)) for i, slow in enumerate((0.16, 0.17, 0.3, 1.5, 3.3))]
    code, verdict = judged(
        quiet, [save(f"b{i}.jsonl", rows(10 + i, slow=slow)) for i, slow in enumerate((3.2, 3.4, 3.6))]
    )
    assert (code, verdict["reason_code"]) == (3, "suspect-data")


def test_losses_near_zero_that_differ_by_nature_blame_no_run(save: Save) -> None:
    """Data with one answer: every run knows it, and which of them ends at 6e-6 is luck. Ten times beyond all others is
    not."""

    def learnt(name: str, losses: Sequence[float]) -> list[Path]:
        return [
            save(
                f"{name}{i}.jsonl",
                {**rows(10 * i + ord(name)), "loss": np.geomspace(2, loss, STEPS)},
                {"eval_loss": loss},
            )
            for i, loss in enumerate(losses)
        ]

    before = learnt("a", [1.1e-5, 3.4e-5, 8.9e-5])
    code, verdict = judged(before, learnt("b", [2.0e-5, 6.1e-6, 4.7e-5]))
    assert (code, verdict["reason_code"]) == (3, "too-noisy"), verdict["reason"]
    code, verdict = judged(before, learnt("c", [2.0e-5, 6.1e-6, 9.4e-4]))
    assert (code, verdict["reason_code"]) == (3, "suspect-data")
    assert "c2.jsonl is 0.0009, 34.8 times off the median of all runs (2.70e-05)" in verdict["reason"]


def test_a_training_that_ignores_its_seed_is_said_to_be_one_run(save: Save) -> None:
    same = rows(50)["loss"]

    def side_of(name: str, first: int, losses: Mapping[str, Any]) -> list[Path]:
        return [save(f"{name}{i}.jsonl", {**rows(first + i), **losses}, {"seed": first + i}) for i in range(3)]

    _, verdict = judged(side_of("a", 0, {}), side_of("b", 10, {"loss": same}))
    (said,) = [note for note in verdict["notes"] if "same loss at every step" in note]
    assert said.startswith("3 candidate runs have the same loss at every step")
    assert said.endswith("in what they learned they are one run; see that the training uses its seed")


def test_a_whole_baseline_a_hundred_times_off_is_no_pass(save: Save) -> None:
    code, verdict = judged(side(save, "a", 0, slow=100.0), side(save, "b", 10))
    assert (code, verdict["reason_code"]) == (3, "suspect-data")
    assert "too good to be believed" in verdict["reason"]
    assert judged(side(save, "c", 0, slow=0.1), side(save, "d", 10))[0] == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"seed": "one"}', "seed: found 'one'; expected a whole number"),
        ('{"failure": "sad"}', "failure: found 'sad'; valid: instability"),
        ('{"eval_loss": "low"}', "eval_loss: found 'low'; expected a number"),
        ('{"completed": 1}', "completed: found 1; expected true or false"),
        ('{"hardware": "H200"}', "hardware: found 'H200'; expected an object"),
        ("[1]", "found list; expected an object"),
        ("{", "no readable JSON"),
    ],
)
def test_a_sidecar_that_cannot_be_meant_is_wrong_use(save: Save, text: str, words: str) -> None:
    files = side(save, "a", 0)
    files[0].with_suffix(".json").write_text(text)
    code, verdict = judged(files, side(save, "b", 10))
    assert code == 2
    assert words in verdict["error"]
    assert len(verdict["error"].splitlines()) == 1


def test_wrong_use(save: Save) -> None:
    files = side(save, "a", 0)
    assert judged([files[0].with_name("none.jsonl")], files)[0] == 2
    assert judged(files, side(save, "b", 10), policy="weekly")[0] == 2
    assert CliRunner().invoke(canary, ["judge", "--baseline", str(files[0]), "--policy", "smoke"]).exit_code == 2


def test_neither_mlflow_nor_torch_is_loaded(save: Save) -> None:
    words = ["judge", "--baseline", *map(str, side(save, "a", 0)), "--candidate", *map(str, side(save, "b", 10))]
    code = (
        "import sys\nfrom canary_mlflow.cli import canary\n"
        f"try:\n    canary({[*words, '--policy', 'smoke']!r})\n"
        "except SystemExit as end:\n"
        "    print(end.code, sorted({'mlflow', 'torch', 'transformers', 'sqlalchemy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 []"


def test_what_is_noted_of_each_of_several_files_is_said_once_and_last(save: Save) -> None:
    odd = {"step": np.arange(1, STEPS + 1), "my_loss": np.ones(STEPS)}
    sides = [
        [save(f"{name}{i}.csv", {**rows(first + i), "my_loss": odd["my_loss"]}) for i in range(3)]
        for name, first in (("a", 0), ("b", 10))
    ]
    files = ["--baseline", *map(str, sides[0]), "--candidate", *map(str, sides[1]), str(sides[1][0])]
    found = json.loads(CliRunner().invoke(canary, ["judge", *files, "--policy", "perf", "--json"]).stdout)
    notes = found["verdict"]["notes"]
    assert [note.partition("/a0.csv")[2] for note in notes[-2:-1]] == [
        " and 2 more files: nothing is read from my_loss; a metric is read by our name: step_time (seconds), loss, …"
    ]
    assert any("it was given 2 times" in note for note in notes[:-2])


@pytest.mark.parametrize(("policy", "said"), [("nightly", 1), ("smoke", 0)])
def test_a_policy_that_asks_for_fresh_runs_says_that_files_have_none(save: Save, policy: str, said: int) -> None:
    notes = judged(side(save, "a", 0, 5), side(save, "b", 10), policy)[1]["notes"]
    assert sum("fresh runs of the baseline, which files do not have" in note for note in notes) == said


def test_a_trainer_state_that_ends_early_is_no_finished_run(tmp_path: Path) -> None:
    def state(name: str, last: int) -> Path:
        history = [{"step": step, "loss": 2.0 - 0.01 * step, "step_time": 0.1} for step in range(1, last + 1)]
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps({"max_steps": 120, "log_history": history}))
        return path

    baseline = [state(f"a{number}", 120) for number in range(3)]
    code, verdict = judged(baseline, [state("b0", 60)])
    assert (code, verdict["reason_code"]) == (3, "broken-off")
    assert "failed (the history ends at step 60 of 120)" in verdict["reason"]
    early = state("b1", 90)
    body = json.loads(early.read_text())
    body["log_history"].append({"step": 90, "train_runtime": 12.0})
    early.write_text(json.dumps(body))
    assert judged(baseline, [early])[1]["reason_code"] != "broken-off", "stopped early, as it was told to"


def test_columns_that_nearly_name_a_metric_are_read_or_named(save: Save) -> None:
    def written(number: int, time: str) -> dict[str, Any]:
        found = rows(number)
        return {"Step": found["step"], "Loss": found["loss"], time: found["step_time"], "train_runtime": found["step"]}

    read = [save(f"a{number}.csv", written(number, "Step Time")) for number in range(3)]
    code, verdict = judged(read, [save(f"b{number}.csv", written(10 + number, "Step Time")) for number in range(3)])
    assert (code, verdict["outcome"]) == (0, "PASS")
    odd = [save(f"c{number}.csv", written(20 + number, "time/iter")) for number in range(3)]
    code, verdict = judged(read, odd)
    assert code == 3
    assert verdict["reason"] == "Step time was not recorded (in the candidate); also step_time_drift, run_time."
    (note,) = [note for note in verdict["notes"] if "nothing is read from" in note]
    assert "nothing is read from time/iter; a metric is read by our name: step_time (seconds)" in note


def test_a_warning_is_part_of_what_a_pass_says(save: Save) -> None:
    def with_norm(number: int, factor: float) -> dict[str, Any]:
        return {**rows(number), "grad_norm": factor * np.exp(np.random.default_rng(number).normal(0, 0.02, STEPS))}

    baseline = [save(f"a{number}.csv", with_norm(number, 1.0)) for number in range(3)]
    code, verdict = judged(baseline, [save(f"b{number}.csv", with_norm(10 + number, 3.0)) for number in range(3)])
    assert code == 0
    assert re.search(r"Beyond a limit that only warns: grad_norm \(\+(19|20)\d(\.\d)? %\)\.$", verdict["reason"])


def test_a_cpu_that_nobody_names_is_noted_where_it_would_matter(save: Save) -> None:
    def of(name: str, first: int, beside: Any = None) -> list[Path]:
        made = [{**rows(first + number), "step_cost": rows(first + number)["step_time"]} for number in range(3)]
        return [save(f"{name}{number}.jsonl", columns, beside) for number, columns in enumerate(made)]

    note = "overlay 'cpu' is left out: these runs do not say their hardware.backend, such as cpu"
    assert note in judged(of("a", 0), of("b", 10))[1]["notes"]
    said = {"hardware": {"backend": "cpu"}}
    assert note not in judged(of("c", 0, said), of("d", 10, said))[1]["notes"]


def test_a_history_says_what_runs_differ_by(save: Save, tmp_path: Path) -> None:
    """Speed by benchmark files, one a day: days differ by a tenth, which the shipped 2 % takes for harm."""
    days = np.random.default_rng(8).normal(0, 0.1, 24)
    made = [save(f"day{i}.jsonl", rows(i, slow=float(np.exp(day)))) for i, day in enumerate(days)]
    slow = side(save, "slow", 40, 3, slow=1.28)
    plain_words = ["judge", "--policy", "smoke", "--json", "--baseline", *map(str, side(save, "before", 30, 5))]
    words = [*plain_words, "--candidate", *map(str, slow)]
    alone = CliRunner().invoke(canary, words)
    learnt = CliRunner().invoke(canary, [*words, "--history", *map(str, made)])
    assert (alone.exit_code, learnt.exit_code) == (1, 1), "three runs that agree so well are no chance"
    found = [
        next(check for check in json.loads(run.stdout)["verdict"]["checks"] if check["metric"] == "step_time")
        for run in (alone, learnt)
    ]
    assert [each["evidence"]["prior"] for each in found] == ["shipped", "learnt"]
    assert found[1]["evidence"]["prior_sd"] == pytest.approx(0.1, rel=0.35)
    assert found[1]["evidence"]["p_harm"] > found[0]["evidence"]["p_harm"]
    few = CliRunner().invoke(canary, [*words, "--history", *map(str, made[:4])])
    assert few.exit_code == 2
    assert "found 4 files; expected at least 10, the oldest first" in few.output


def test_a_learning_rate_that_stops_early_never_passes_and_a_meant_one_is_a_setting(save: Save) -> None:
    """Its course follows from no seed, so files of other seeds tell; only a configuration says what was meant."""
    usual = np.linspace(4e-4, 4e-6, STEPS)

    def files(name: str, first: int, rate: Any, settings: Any) -> list[Path]:
        beside = {"seed": first, "configuration": settings, "eval_loss": 0.54} if settings else {"eval_loss": 0.54}
        return [
            save(f"{name}{i}.csv", {**rows(first + i), "learning_rate": rate}, {**beside, "seed": first + i})
            for i in range(3)
        ]

    stopped, told = np.where(np.arange(STEPS) < 24, usual, 0.0), {"learning_rate": "4e-4", "max_steps": "100"}
    named = "0.000304 → 0 at step 25, another course from step 25 on"
    code, verdict = judged(files("a", 0, usual, None), files("b", 10, stopped, None))
    assert (code, verdict["reason_code"]) == (3, "facts-differ")
    assert f"Learning rate {named}, and no configuration says whether that was set" in verdict["reason"]
    code, verdict = judged(files("c", 0, usual, told), files("d", 10, stopped, told))
    assert (code, verdict["reason_code"]) == (1, "hard-gate")
    assert f"learning rate {named}" in verdict["reason"]
    code, verdict = judged(files("c", 0, usual, told), files("e", 10, 2 * usual, {**told, "learning_rate": "8e-4"}))
    assert (code, verdict["reason_code"]) == (0, "pass")
    code, verdict = judged(files("c", 0, usual, told), files("f", 10, usual, told))
    assert (code, verdict["reason_code"]) == (0, "pass")


LOGS = Path(__file__).resolve().parents[1] / "data" / "logs"


def logs(form: str) -> list[Path]:
    return [LOGS / form.format(number) for number in range(3)]


@pytest.mark.parametrize(
    ("form", "metric"),
    [("rate-{}{{}}.jsonl", "step_time"), ("iter-{}{{}}.log", "step_time"), ("spaced-{}{{}}.log", "tokens_per_second")],
)
def test_a_rate_that_halves_blocks_where_speed_decides_and_is_said_where_it_does_not(form: str, metric: str) -> None:
    """ms-swift's, mlx-lm's and torchtitan's: the step time was said to be missing."""
    baseline, slow = logs(form.format("")), logs(form.format("slow-"))
    code, verdict = judged(baseline, slow, "perf")
    assert (code, check(verdict, metric)["outcome"]) == (1, "BLOCK")
    assert judged(baseline[:2], baseline[2:], "perf")[0] == 0
    code, verdict = judged(baseline, slow, "files")
    warned = re.search(rf"Beyond a limit that only warns: .*{metric} \(([+-]\d+)", verdict["reason"])
    assert (code, warned is not None and (float(warned[1]) > 80 or float(warned[1]) < -45)) == (0, True)


def test_samples_per_second_decide_where_a_log_tells_no_other_speed(tmp_path: Path) -> None:
    def log(name: str, rate: float) -> Path:
        rng = np.random.default_rng(len(name) + int(rate * 10))
        said = (
            f"step {at} | loss: {2 + rng.normal(0, 0.02):.4f} | samples/s: {rate * rng.normal(1, 0.01):.3f}\n"
            for at in range(80)
        )
        path = tmp_path / f"{name}.log"
        path.write_text("begins\n" + "".join(said))
        return path

    baseline = [log("a" * count, 8.0) for count in (1, 2, 3)]
    code, verdict = judged(baseline, [log("b" * count, 4.0) for count in (1, 2, 3)], "perf")
    assert (code, check(verdict, "samples_per_second")["outcome"]) == (1, "BLOCK")
    assert judged(baseline, [log("c" * count, 8.0) for count in (4, 5, 6)], "perf")[0] == 0


def test_a_loss_that_becomes_nan_in_printed_lines_blocks() -> None:
    code, verdict = judged(logs("spaced-{}.log"), logs("spaced-nan-{}.log"), "files")
    assert (code, check(verdict, "nonfinite")["outcome"]) == (1, "BLOCK")
    assert judged(logs("spaced-{}.log")[:2], logs("spaced-{}.log")[2:], "files")[0] == 0


def test_a_gain_beyond_the_limit_without_any_change_is_too_good_to_pass(save: Save) -> None:
    def files(name: str, first: int, level: float, settings: Any) -> list[Path]:
        noise = np.random.default_rng(first).normal(0, 0.005, 3)
        beside = {"configuration": settings} if settings else {}
        return [
            save(f"{name}{i}.csv", rows(first + i), {**beside, "seed": first + i, "eval_loss": level * (1 + noise[i])})
            for i in range(3)
        ]

    told, other = {"learning_rate": "4e-4"}, {"learning_rate": "8e-4"}
    baseline = files("a", 0, 0.54, told)
    code, verdict = judged(baseline, files("b", 10, 0.45, told))
    assert (code, verdict["reason_code"]) == (3, "suspect-data")
    assert "too good for no change, and nothing that is recorded was changed" in verdict["reason"]
    untold = files("g", 0, 0.54, None)
    for name, before, level, settings in (
        ("c", baseline, 0.45, other), ("d", untold, 0.45, None), ("e", baseline, 0.52, told),
    ):  # fmt: skip
        code, verdict = judged(before, files(name, 20, level, settings))
        assert (code, verdict["reason_code"]) == (0, "pass"), name
    code, verdict = judged(baseline, files("f", 30, 0.63, told))
    assert (code, check(verdict, "eval_loss")["outcome"]) == (1, "BLOCK")


@pytest.mark.parametrize(("policy", "code"), [("files", 3), ("nightly", 1)])
def test_a_loss_of_a_third_of_what_dpo_learns_does_not_pass(save: Save, policy: str, code: int) -> None:
    """Its loss begins at ln 2, so that 6 % of where it ends is a quarter of what was gained."""

    def files(name: str, first: int, level: float) -> list[Path]:
        noise = np.random.default_rng(first).normal(0, 0.004, 3)
        columns = [{**rows(first + i), "loss": np.linspace(np.log(2), 0.5, STEPS)} for i in range(3)]
        beside = [
            {"seed": first + i, "eval_loss": level * (1 + noise[i]), "workload": {"algo": "dpo"}} for i in range(3)
        ]
        return [save(f"{name}{i}.csv", columns[i], beside[i]) for i in range(3)]

    found, verdict = judged(files("a", 0, 0.542), files("b", 10, 0.579), policy)
    assert found == code
    assert check(verdict, "eval_loss")["outcome"] == ("BLOCK" if code == 1 else "INCONCLUSIVE")
    if policy == "files":
        assert "limit +6.9 % by what training gained" in check(verdict, "eval_loss")["reason"]
