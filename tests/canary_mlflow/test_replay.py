"""`canary replay` as its user meets it: verdicts, JSON alone on stdout, exit codes, bad files among good ones."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
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
        "warned": written(
            tmp_path,
            "warned.jsonl",
            [{"loss": 2.0 - at / 60, "grad_norm": 1.0 + 5 * (at >= 40)} for at in range(60)],
        ),
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


def test_a_reward_that_rose_in_its_first_rows_is_not_said_to_have_gained_nothing(tmp_path: Path) -> None:
    rewards = [0.395, 0.578, 2.23, *[2.25] * 37]  # GRPO with a learning rate that is far too high
    rows = [
        {"reward": one, "frac_reward_zero_std": float(at > 2), "completions/clipped_ratio": 1.0}
        for at, one in enumerate(rewards)
    ]
    shown = replay(written(tmp_path, "rose.jsonl", rows)).stdout
    assert "zero_spread_share" in shown
    assert "truncated_share" in shown
    assert shown.count("no reward has risen since the first") == 2


def levels(path: Path, *arguments: str) -> dict[str, set[str]]:
    """Rule → levels that `canary replay` says of the file."""
    (found,) = json.loads(replay(path, *arguments, "--json").stdout)
    said: dict[str, set[str]] = {}
    for one in found["warnings"]:
        said.setdefault(f"{one['rule']} {one['stream']}", set()).add(one["level"])
    return said


def test_memory_that_grows_over_the_whole_run_is_warned_of(tmp_path: Path) -> None:
    """verl's log: the device from 48 to 78 GB, the host from 120 to 520, while the answers are as long as before."""

    def log(name: str, **taken: Callable[[int], float]) -> Path:
        rows = [
            {
                "critic/score/mean": row / 100 + 0.05 * math.sin(2.4 * row),
                "response_length/mean": 400 + 20 * math.sin(1.7 * row),
                "perf/max_memory_allocated_gb": 48 + 0.4 * math.sin(2.1 * row),
                "perf/cpu_memory_used_gb": 120 + 2 * math.sin(1.3 * row),
                "timing_s/step": 60 + math.sin(1.1 * row),
            }
            | {key.replace("__", "/"): of(row) for key, of in taken.items()}
            for row in range(120)
        ]
        return written(tmp_path, f"{name}.jsonl", rows)

    device, host = "perf__max_memory_allocated_gb", "perf__cpu_memory_used_gb"
    leak = log("leak", **{device: lambda row: 48 + row / 4, host: lambda row: 120 + 3 * row})
    assert levels(leak) == {"resource_growth peak_memory": {"WARN"}, "resource_growth host_memory": {"WARN"}}
    assert replay(leak).exit_code == 0
    slow = log("slow", timing_s__step=lambda row: 60 + 1.5 * row)
    assert levels(slow) == {"resource_growth step_time": {"WARN"}}
    quiet = {
        "flat": {},
        "a busy second": {"timing_s__step": lambda row: 0.002 + 0.008 * (row >= 60)},
        "stairs": {device: lambda row: 48 + 10 * (row // 40)},
        "caches": {name: lambda row: 500 - 380 * math.exp(-row / 25) for name in (device, host)},
        "checkpoints": {name: lambda row: 60 + 600 * (row % 20 == 0) for name in (device, "timing_s__step")},
        "longer": {
            "response_length__mean": lambda row: 400 + 10 * row,
            "timing_s__step": lambda row: 60 + 1.5 * row,
            device: lambda row: 48 + row / 4,
        },
    }  # fmt: skip
    for name, taken in quiet.items():
        assert levels(log(name, **taken)) == {}, name


def test_judge_reads_the_hosts_memory(tmp_path: Path) -> None:
    def logs(name: str, grows: float) -> list[str]:
        rows = [{"critic/score/mean": row / 100, "perf/cpu_memory_used_gb": 120 + grows * row} for row in range(60)]
        return [str(written(tmp_path, f"{name}{run}.jsonl", rows)) for run in range(3)]

    flat, leak = logs("flat", 0.0), logs("leak", 6.0)
    words = ["judge", "--policy", "files", "--baseline", *flat, "--candidate"]
    said = [
        CliRunner().invoke(cli.canary, [*words, *side], catch_exceptions=False, prog_name="canary").stdout
        for side in (logs("same", 0.0), leak)
    ]
    beyond = ["beyond the limit: host_memory" in text for text in said]
    assert beyond == [False, True]


def test_an_evaluation_that_climbs_while_the_training_loss_falls_is_overfitting(tmp_path: Path) -> None:
    def state(name: str, evaluated: Callable[[int], float], loss: Callable[[int], float]) -> Path:
        rows = []
        for row in range(1, 61):
            rows.append({"step": 10 * row, "loss": loss(row)})
            if row % 5 == 0:
                rows.append({"step": 10 * row, "eval_loss": evaluated(row)})
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps({"log_history": rows, "max_steps": 600, "global_step": 600}))
        return path

    def falls(row: int) -> float:
        return 1.9 * math.exp(-row / 20) + 0.02 * math.sin(2.4 * row)

    def climbs(row: int) -> float:
        return 1.4 - row / 60 if row <= 20 else 1.1 + (row - 20) / 20

    assert levels(state("overfits", climbs, falls)) == {"overfitting eval_loss": {"WARN"}}
    assert levels(state("by half", lambda row: 0.32 + 0.004 * row, falls)) == {"overfitting eval_loss": {"WARN"}}
    assert levels(state("a little", lambda row: 1.1 + 0.003 * row, falls)) == {}
    assert levels(state("one bad", lambda row: 3.0 if row == 30 else 2.0 - row / 60, falls)) == {}
    both = levels(state("diverges", climbs, lambda row: climbs(row) + 0.02 * math.sin(2.4 * row)))
    assert "overfitting eval_loss" not in both, "the training loss rises too"


def test_a_first_loss_of_several_ln_2_where_rewards_are_0_is_warned_of(tmp_path: Path) -> None:
    def dpo(name: str, first: float, times: float = 1.0, chosen: float = 0.0) -> Path:
        rows = [
            {
                "loss": times * (first - 0.003 * row + (0.03 * math.sin(2.4 * row) if row else 0.0)),
                "rewards/chosen": chosen + 0.004 * row,
                "rewards/margins": 0.008 * row,
            }
            for row in range(60)
        ]
        return written(tmp_path, f"{name}.jsonl", rows)

    ln2 = round(math.log(2), 4)
    assert levels(dpo("summed", ln2, times=4)) == {"first_value loss": {"WARN"}}
    assert "2.77, 4.00 times the ln 2" in replay(dpo("summed", ln2, times=4)).stdout
    assert levels(dpo("too low", 0.3)) == {"first_value loss": {"WARN"}}
    for name, path in {
        "sigmoid": dpo("sigmoid", ln2),
        "kto": dpo("kto", 0.5),
        "hinge": dpo("hinge", 1.0),
        "ipo": dpo("ipo", 25.0),
        "ipo of 0.3": dpo("ipo3", round(1 / (4 * 0.3**2), 4)),
        "no reference": dpo("simpo", ln2, times=4, chosen=-1.2),
    }.items():
        assert levels(path) == {}, name


def test_the_rest_of_a_run_is_not_asked_whether_it_learned(tmp_path: Path) -> None:
    """Steps begin again after a resume, or go on from where the file begins."""

    def rest(row: int) -> float:
        return 1.0 + 0.03 * math.sin(2.4 * row)

    first = [(row, 3.0 - row / 20 + 0.03 * math.sin(2.4 * row)) for row in range(1, 41)]
    for name, rows in {
        "again": [*first, *[(row, rest(row)) for row in range(1, 41)]],
        "later": [(1000 + row, rest(row)) for row in range(40)],
    }.items():
        path = tmp_path / f"{name}.csv"
        path.write_text("step,loss\n" + "".join(f"{step},{loss:.4f}\n" for step, loss in rows))
        assert levels(path) == {}, name
    alone = tmp_path / "alone.csv"
    alone.write_text("step,loss\n" + "".join(f"{row},{rest(row):.4f}\n" for row in range(1, 41)))
    assert levels(alone) == {"no_learning loss": {"WARN"}}
    twice = tmp_path / "twice.csv"  # two trainings that learn nothing
    twice.write_text("step,loss\n" + "".join(f"{row},{rest(row):.4f}\n" for row in [*range(1, 41)] * 2))
    assert levels(twice) == {"no_learning loss": {"WARN"}}


def test_thirty_times_the_first_loss_within_ten_rows_is_failed_and_not_unknown(tmp_path: Path) -> None:
    rising = [0.99, 4.3, 8.8, 13.5, 15.6, 15.0, 18.8, 20.8, 25.6, 29.6]
    rows = [{"step": 10 * at, "loss": loss} for at, loss in enumerate(rising, 1)]
    path = tmp_path / "trainer_state.json"
    path.write_text(json.dumps({"log_history": rows, "max_steps": 100, "global_step": 100}))
    assert (replay(path).stdout.split()[0], replay(path).exit_code) == ("failed", 1)
    assert levels(path) == {"loss_rise loss": {"STOP"}}


def short_state(folder: Path, name: str, level: float) -> Path:
    """A trainer_state.json of Transformers' default: 300 steps, of which every fiftieth was logged."""
    rows = [{"step": 50 * n, "loss": level - 0.01 * n, "grad_norm": 1.0} for n in range(1, 7)]
    path = folder / name / "trainer_state.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"log_history": rows, "max_steps": 300, "global_step": 300}))
    return path


def test_a_run_of_few_rows_is_unknown_and_not_healthy(tmp_path: Path, runs: dict[str, Path]) -> None:
    """Six rows of a training whose learning rate was 500 times too high, logged as Transformers does it by default."""
    high = short_state(tmp_path, "high", 7.9)
    result = replay(high)
    assert result.stdout.split()[0] == "unknown"
    assert "too few rows to judge: 6, and the watch needs 12" in result.stdout
    assert result.exit_code == 3
    assert replay(high, runs["healthy"]).exit_code == 3
    assert replay(high, runs["failed"]).exit_code == 1, "what is lost is known"
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "loss": NaN}\n')
    assert replay(broken).stdout.split()[0] == "failed", "a NaN is one in the second row too"


def test_rows_of_evaluations_do_not_make_a_run_of_few_rows_long(tmp_path: Path) -> None:
    rows: Rows = [{"eval_loss": 3.0 + row % 2} for row in range(20)]
    for row in range(0, 20, 4):
        rows[row]["loss"] = 2.0 - row / 20
    result = replay(written(tmp_path, "few.jsonl", rows))
    assert (result.stdout.split()[0], result.exit_code) == ("unknown", 3)
    assert "too few rows to judge: 5 of 20 rows with a loss or a reward, and the watch needs 12" in result.stdout


def test_where_a_reward_is_logged_the_loss_may_rise(tmp_path: Path) -> None:
    for reward, loss in (("train/reward", "Train/Loss"), ("avg_reward", "value_loss")):
        rows: Rows = [{reward: row / 9 + row % 3, loss: 0.1 + row / 30} for row in range(90)]
        (found,) = json.loads(replay(written(tmp_path, "rl.jsonl", rows), "--json").stdout)
        assert found["verdict"] == "healthy"
        (fell,) = json.loads(replay(written(tmp_path, "fell.jsonl", [*rows, *rows[:9] * 3]), "--json").stdout)
        assert {one["stream"] for one in fell["warnings"]} == {"reward_mean"}


def test_files_without_a_clock_are_judged_by_what_was_learned(tmp_path: Path) -> None:
    """Where smoke asks for a step time, `files` judges the loss; of six rows it says that they are too few."""

    def judge(policy: str, baseline: list[Path], candidate: list[Path]) -> Result:
        words = ["judge", "--policy", policy, "--baseline", *map(str, baseline), "--candidate", *map(str, candidate)]
        return CliRunner().invoke(cli.canary, words, catch_exceptions=False, prog_name="canary")

    good, high = ([short_state(tmp_path, f"{level}-{n}", level + n / 100) for n in range(3)] for level in (2.0, 7.9))
    few = judge("files", good, high)
    assert few.exit_code == 3
    assert "Too few rows to judge: loss has 5 values after warm-up" in few.stdout
    assert "step_time" not in few.stdout
    rows = {name: [{"loss": 4.0 - (4.0 - end) * x / 59 + (x % 3) / 99} for x in range(60)] for name, end in
            (("a", 2.0), ("b", 2.01), ("c", 2.02), ("x", 3.2), ("y", 3.1), ("z", 3.3))}  # fmt: skip
    paths = {name: written(tmp_path, f"{name}.jsonl", some) for name, some in rows.items()}
    long = judge("files", [paths[name] for name in "abc"], [paths[name] for name in "xyz"])
    assert (long.exit_code, long.stdout.split()[0]) == (1, "BLOCK")
    assert judge("smoke", [paths[name] for name in "ab"], [paths["c"]]).exit_code == 3


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
    for planned, verdict in ((600, "healthy"), (61, "healthy"), (60, "warned")):
        path = tmp_path / f"{planned}.json"
        path.write_text(json.dumps({"max_steps": planned, "log_history": log}))
        (found,) = json.loads(replay(path, "--json").stdout)
        assert found["verdict"] == verdict


def test_a_policy_of_ones_own(tmp_path: Path, runs: dict[str, Path]) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("base: default\nname: mine\ndrift: {alone: []}\n")
    assert replay(runs["warned"], "--policy", mine).stdout.split()[0] == "healthy"
    mine.write_text("base: default\npatterns: {clip: 0.8}\n")
    result = replay(runs["warned"], "--policy", mine)
    assert result.exit_code == 2
    assert result.stderr.startswith(
        f"canary: policy '{mine}': watch.patterns: unknown key 'clip'; valid: displaced_nats"
    )
    assert replay(runs["warned"], "--policy", "strict").exit_code == 2
    assert replay().exit_code == 2


def test_the_algorithm_can_be_said(tmp_path: Path) -> None:
    """A loss that stays 0 is lost in supervised training, and GRPO's beginning where no reward is logged."""
    zeros = written(tmp_path, "zeros.jsonl", [{"loss": 0.0}] * 30)
    assert replay(zeros).exit_code == 1
    named = replay(zeros, "--algo", "grpo")
    assert named.exit_code == 0
    assert "note: no reward found: whether the policy gets better is not known" in named.stdout
    result = replay(zeros, "--algo", "gpro")
    assert result.exit_code == 2
    assert result.stderr.startswith("canary: algo is 'gpro'; expected sft, dpo")
    assert len(result.stderr.splitlines()) == 1


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
        rows += [{"reward_mean": 1.0, "kl": 1.0, "value_loss": 1.0, "eval_loss": 1.0}] * (60 + 60 * turn)
        rows += [{"reward_mean": 1.0, "kl": 30.0, "value_loss": 60.0, "eval_loss": math.nan}] * 4
    path = written(tmp_path, "many.jsonl", rows)
    (found,) = json.loads(replay(path, "--json").stdout)
    shown = replay(path).stdout
    assert len(found["warnings"]) > 12
    assert f"and {len(found['warnings']) - 12} more; --json has them all" in shown


HUGE, LONGER = "1" * 401, "1" * 5000  # no float; no integer that Python reads


def test_a_number_that_is_none_stops_neither_the_file_nor_the_rest(tmp_path: Path, runs: dict[str, Path]) -> None:
    line = '{{"step": 2, "loss": {}}}\n'
    huge, longer, whole = (tmp_path / name for name in ("huge.jsonl", "longer.jsonl", "state.json"))
    huge.write_text('{"step": 1, "loss": 2.0}\n' + line.format(HUGE))
    longer.write_text('{"step": 1, "loss": 2.0}\n' + line.format(LONGER))
    whole.write_text(f'{{"log_history": [{line.format(LONGER)}]}}')
    result = replay(huge, longer, whole, runs["healthy"], "--json")
    found = json.loads(result.stdout)
    assert [one["verdict"] for one in found] == ["failed", None, None, "healthy"]
    assert len(result.stderr.splitlines()) == 2


def test_what_nobody_saw_is_not_called_healthy(tmp_path: Path) -> None:
    other = written(tmp_path, "other.jsonl", [{"tokens_per_minute": 3.0}] * 50)
    result = replay(other)
    assert result.exit_code == 2
    assert "nothing that the watch looks at; found trl/tokens_per_minute" in result.stderr
    blind = written(tmp_path, "blind.jsonl", [{"grad_norm": 1.0, "my_loss": 2.0, "accuracy": 0.5}] * 50)
    result = replay(blind)
    assert (result.stdout.split()[0], result.exit_code) == ("unknown", 3)
    assert "neither loss nor reward found: only grad_norm, reward_accuracy could be watched" in result.stdout
    assert "nothing is read from my_loss" in result.stdout
    half = written(tmp_path, "half.jsonl", [*sft(1)[:100], *({"learning_rate": 1e-4} for _ in range(100))])
    assert "note: no loss after step 100, of 200" in replay(half).stdout


def test_an_accuracy_beside_rewards_makes_no_loss_of_theirs(tmp_path: Path) -> None:
    """The evaluation before the first step has an accuracy alone; the loss of a policy rises and falls."""
    rows: Rows = [{"accuracy": 0.9}, *({"accuracy": 0.9, "mean_reward": 0.5, "loss": 0.1 + at} for at in range(30))]
    (found,) = json.loads(replay(written(tmp_path, "rl.jsonl", rows), "--json").stdout)
    assert [one["rule"] for one in found["warnings"] if one["stream"] == "loss"] == []


def test_a_nan_is_not_hidden_by_a_column_of_the_same_name(tmp_path: Path) -> None:
    rows = [row | {"train/loss": math.nan} for row in sft(1)]
    result = replay(written(tmp_path, "two.jsonl", rows))
    assert result.stdout.startswith("failed")
    assert "note: several columns for one metric, one of them read: loss" in result.stdout
    table = tmp_path / "two.csv"
    table.write_text("step,loss,loss\n" + "".join(f"{step},nan,2.0\n" for step in range(1, 30)))
    assert "the header has loss more than once" in replay(table).stderr


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("rows: {window: 1000000}", "watch.rows.window: found 1000000; expected at most watch.rows.burn_in (30)"),
        (f"gain: {{noise: {HUGE}}}", "watch.gain.noise: found 1111"),
        (f"gain: {{noise: {LONGER}}}", "cannot be read as YAML"),
    ],
)
def test_a_policy_that_could_never_speak_is_refused(
    tmp_path: Path, runs: dict[str, Path], body: str, said: str
) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text(f"base: default\n{body}\n")
    result = replay(runs["healthy"], "--policy", mine)
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
    assert said in result.stderr


LOGS = ROOT / "tests" / "data" / "logs"


@pytest.mark.parametrize(
    ("file", "code", "says"),
    [
        ("spaced-nan-0.log", 1, r"^failed .*\(40 rows to step 400\)(.|\n)*STOP +step 280 +loss: is nan \[nonfinite\]"),
        ("spaced-0.log", 0, r"^healthy .*\(40 rows to step 400\)\n(  note: .*\n)+$"),
        ("ranks-diverge.log", 1, r"^failed .*\(60 rows to step 60\)\n  note: each row was printed by 4 ranks"),
        ("ranks-prefix.log", 0, r"^healthy .*\(40 rows to step 40\)\n  note: printed by 4 ranks"),
        ("resumed.csv", 0, r"^healthy .*\(90 rows to step 890\)\n  note: steps begin again at row 62.*\n$"),
    ],
)
def test_logs_as_trainings_print_them(file: str, code: int, says: str) -> None:
    result = replay(LOGS / file)
    assert result.exit_code == code
    assert re.search(says, result.stdout), result.stdout


def test_a_part_of_a_log_is_not_healthy(tmp_path: Path) -> None:
    """Rows whose loss is no number, or is missing from some step on."""
    text = (LOGS / "spaced-nan-0.log").read_text()
    (odd := tmp_path / "odd.log").write_text(text.replace("     nan", "     ***"))
    result = replay(odd)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "odd.log: rows could not be read, the first of them '[rank0]:[titan]" in result.stderr
    assert "step: 280" in result.stderr
    rows = [f"{at},{3 - at / 40 if at < 20 else ''},1.2\n" for at in range(40)]
    (cut := tmp_path / "cut.csv").write_text("step,loss,grad_norm\n" + "".join(rows))
    result = replay(cut)
    assert result.exit_code == 3
    assert re.match(r"unknown .*\n  note: no loss after step 19, of 39: what came then is not known\n$", result.stdout)
    ended = {"null": {"loss": None}, "empty": {"loss": ""}, "absent": {}}
    for name, row in ended.items():  # with nothing beside it in these rows, they were not rows
        rows = [json.dumps({"step": at, **({"loss": 3 - at / 60} if at < 60 else row)}) + "\n" for at in range(80)]
        (cut := tmp_path / f"{name}.jsonl").write_text("".join(rows))
        assert (replay(cut).exit_code, "no loss after step 59, of 79" in replay(cut).stdout) == (3, True), name
    rows = [f"{at},{at / 60 if at < 60 else ''},0.1\n" for at in range(80)]
    (cut := tmp_path / "policy.csv").write_text("step,reward,kl\n" + "".join(rows))
    assert "no reward_mean after step 59, of 79" in replay(cut).stdout
    steep = [f"{at},{2 - at / 60 if at < 60 else ''},{1 + 5 * (at >= 40)}\n" for at in range(80)]
    (warned := tmp_path / "warned.csv").write_text("step,loss,grad_norm\n" + "".join(steep))
    assert replay(warned).exit_code == 3
    assert re.match(r"unknown (.|\n)*no loss after step 59(.|\n)*WARN .*grad_norm", replay(warned).stdout)


def test_a_coloured_log_is_read_with_its_memory(tmp_path: Path) -> None:
    """torchtitan's in a terminal: no step was found in it, and memory with its unit was passed over."""
    line = "\x1b[36m[titan] INFO - \x1b[31mstep: {0}  \x1b[32mloss: {1:.3f}  \x1b[33mmemory: {2:.2f}GiB(82%)\x1b[39m\n"
    for name, grows in (("even", 0.0), ("grows", 0.4)):
        rows = [line.format(at, 3 - at / 60 + math.sin(at) / 50, 48 + grows * at) for at in range(1, 81)]
        (log := tmp_path / f"{name}.log").write_text("".join(rows))
        result = replay(log)
        assert result.stdout.startswith("warned" if grows else "healthy"), result.output
        assert ("peak_memory: rose from" in result.stdout) == bool(grows), result.stdout
