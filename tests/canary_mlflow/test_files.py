"""Histories as files: each kind is read into canonical series, oddities are noted, bad files are one clear line."""

from __future__ import annotations

import gzip
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from history_files import lines, values, write

from canary_mlflow.errors import UsageError
from canary_mlflow.files import source
from canary_mlflow.files.reading import read_history
from canary_mlflow.files.replaying import replay_file
from canary_mlflow.files.runs import read_run
from canary_mlflow.policies import load_watch

ROOT = Path(__file__).resolve().parents[2]
ROWS = [{"step": step, "loss": 3.0 / step, "grad_norm": 1.5, "epoch": 0.1} for step in range(1, 6)]


def test_every_kind_reads_to_the_same_series(tmp_path: Path) -> None:
    state = {"max_steps": 50, "global_step": 5, "log_history": ROWS}
    table = "Step;Training Loss;grad_norm;epoch\n" + "".join(
        ";".join(str(value) for value in row.values()) + "\n" for row in ROWS
    )
    files = {
        "trainer_state": write(tmp_path, "trainer_state.json", json.dumps(state, indent=2)),
        "jsonl": write(tmp_path, "stability.jsonl", lines(ROWS)),
        "json": write(tmp_path, "rows.json", json.dumps(ROWS)),
        "csv": write(tmp_path, "table.csv", table),
    }
    for kind, path in files.items():
        for file in (path, write(tmp_path, f"{path.name}.gz", gzip.compress(path.read_bytes()))):
            history = read_history(file)
            assert (history.kind, history.notes) == (kind, ())
            assert sorted(history.series) == ["grad_norm", "loss", "trl/epoch"]
            assert history.series["loss"].steps.tolist() == [1, 2, 3, 4, 5]
            assert values(history, "loss") == [row["loss"] for row in ROWS]
            assert history.last_step == 5
    assert read_history(files["trainer_state"]).max_steps == 50
    assert read_history(files["jsonl"]).max_steps is None


def test_names_of_every_source_become_canonical(tmp_path: Path) -> None:
    row = {
        "train/global_step": 1,
        "_step": 7,
        "train/loss": 2.0,
        "eval/loss": 2.5,
        "kl_target_err": 0.1,
        "ppo_clip_fraction": 0.2,
        "completion_length": 80,
        "rewards/margins": 0.3,
        "completions/clipped_ratio": 0.4,
        "stability/entropy": 1.0,
        "run": "first",
    }
    history = read_history(write(tmp_path, "a.jsonl", lines([row])))
    assert {name: series.values[0] for name, series in history.series.items()} == {
        "trl/_step": 7.0,
        "loss": 2.0,
        "eval_loss": 2.5,
        "kl_target_error": 0.1,
        "clip_fraction": 0.2,
        "response_length": 80.0,
        "reward_margin": 0.3,
        "truncated_share": 0.4,
        "entropy": 1.0,
    }
    assert history.series["loss"].steps.tolist() == [1]


# As each of them writes a row: LLaMA-Factory's trainer_log.jsonl, ms-swift's logging.jsonl, OpenRLHF and NeMo-RL as
# their loggers name things; axolotl and Unsloth write Transformers' trainer_state.json with TRL's names.
OTHERS: dict[str, tuple[list[dict[str, object]], dict[str, list[float]], int | None]] = {
    "LLaMA-Factory": (
        [{"current_steps": at, "total_steps": 40, "loss": 2.0 / at, "accuracy": 0.5, "lr": 1e-4, "epoch": 0.1,
          "percentage": 2.5 * at, "elapsed_time": "0:00:10", "remaining_time": "0:01:00"} for at in (10, 20)],
        {"loss": [0.2, 0.1], "learning_rate": [1e-4, 1e-4], "reward_accuracy": [0.5, 0.5]}, 40,
    ),
    "ms-swift": (
        [{"loss": 0.1, "reward": "0.7", "frac_reward_zero_std": 0.6, "completions/mean_length": 330, "kl": 0.001,
          "global_step/max_steps": f"{at}/2622", "train_speed(s/it)": 24.3, "elapsed_time": "1m 2s"} for at in (1, 2)],
        {"reward_mean": [0.7, 0.7], "zero_spread_share": [0.6, 0.6], "response_length": [330, 330]}, 2622,
    ),
    "OpenRLHF": (
        [{"train/global_step": at, "train/policy_loss": 0.1, "train/critic_loss": 0.3, "train/reward": 1.0,
          "train/actor_lr": 1e-6, "train/response_length": 200, "train/kl": 0.01} for at in (1, 2)],
        {"policy_loss": [0.1, 0.1], "value_loss": [0.3, 0.3], "reward_mean": [1.0, 1.0], "learning_rate": [1e-6, 1e-6]},
        None,
    ),
    "NeMo-RL": (
        [{"_step": at, "train/reward": 0.4, "train/mean_gen_tokens_per_sample": 1024, "train/approx_entropy": 0.3,
          "train/lr": 1e-6, "validation/accuracy": 0.2} for at in (1, 2)],
        {"reward_mean": [0.4, 0.4], "response_length": [1024, 1024], "entropy": [0.3, 0.3], "eval_accuracy": [0.2] * 2},
        None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("trainer", OTHERS)
def test_the_logs_of_other_trainers_are_read(tmp_path: Path, trainer: str) -> None:
    rows, expected, planned = OTHERS[trainer]
    history = read_history(write(tmp_path, "log.jsonl", lines(rows)))
    assert {name: values(history, name) for name in expected} == expected
    assert history.max_steps == planned


@pytest.mark.parametrize("indent", [None, 1])
def test_a_row_per_epoch_is_a_history(tmp_path: Path, indent: int | None) -> None:
    rows = [{"epoch": at, "loss": loss} for at, loss in enumerate([2.0, 1.0, 0.5], 1)]
    history = read_history(write(tmp_path, "log.json", json.dumps(rows, indent=indent)))
    assert (values(history, "loss"), history.series["loss"].steps.tolist()) == ([2.0, 1.0, 0.5], [1, 2, 3])
    assert history.notes == ()


def test_an_epoch_is_the_step_only_where_there_is_no_other(tmp_path: Path) -> None:
    keras = write(tmp_path, "a.csv", "epoch,accuracy,loss,val_loss\n0,0.5,2.0,2.5\n1,0.6,1.0,2.0\n")
    assert read_history(keras).series["eval_loss"].steps.tolist() == [0, 1]
    later = read_history(write(tmp_path, "b.jsonl", lines([*ROWS, {"epoch": 1.0, "predict_loss": 2.0}])))
    assert later.notes == ("1 line without a step left out",)


def test_rows_of_the_steps_of_epochs_are_numbered(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"epoch": epoch, "batch": batch, "loss": 3.0 - epoch - batch / 10} for epoch in (0, 1) for batch in range(4)
    ]
    table = "epoch,batch,loss\n" + "".join(",".join(map(str, row.values())) + "\n" for row in rows)
    for body in (table, lines(rows), json.dumps(rows), lines(rows[:4])):
        history = read_history(write(tmp_path, "a", body))
        assert history.series["loss"].steps.tolist() == list(range(1, len(history.series["loss"].steps) + 1))
        assert values(history, "loss") == [row["loss"] for row in rows][: 4 if body == lines(rows[:4]) else 8]
        assert history.notes[0].endswith("per epoch and no step: they are numbered")


def test_a_chart_that_wandb_exported_is_read_if_it_is_of_one_run(tmp_path: Path) -> None:
    head = ",".join(f'"{run} - train/loss{end}"' for run in ("a - 1", "b") for end in ("", "__MIN", "__MAX"))
    one = write(tmp_path, "one.csv", '"Step",' + head.partition(',"b')[0] + "\n1,2.0,1.9,2.1\n2,1.0,0.9,1.1\n")
    history = read_history(one)
    assert {name: values(history, name) for name in history.series} == {"loss": [2.0, 1.0]}
    assert history.notes == ("a chart of the run a - 1, exported from wandb",)
    with pytest.raises(UsageError, match=r"holds 2 runs \(a - 1, b\); expected one; export each by itself"):
        read_history(write(tmp_path, "two.csv", f'"Step",{head}\n1,2,2,2,3,3,3\n'))


def test_two_ranks_that_write_the_same_are_one(tmp_path: Path) -> None:
    """One is a row late at times, and its loss rounds otherwise."""
    steps = [step for at in range(0, 100, 4) for step in (at, at, at + 2, at + 3, at + 2, at + 3)]
    rows = [{"step": step, "loss": 2.0 + at % 2 / 1e4} for at, step in enumerate(steps)]
    history = read_history(write(tmp_path, "a.jsonl", lines(rows)))
    assert history.series["loss"].steps.tolist() == sorted(set(steps))
    assert len(history.notes) == 1
    assert "steps written twice" in history.notes[0]


def test_a_rank_that_falls_behind_is_the_other_ones_twin(tmp_path: Path) -> None:
    """LLaMA-Factory's log of two processes; a resumed run still goes back."""
    own = [step for at in range(0, 60, 10) for step in (at, at)]
    late = [step for at in range(60, 200, 10) for step in (at + 30, at)]
    rows = [{"current_steps": step, "loss": 2.0 - step / 1e3} for step in (*own, 60, 70, 80, *late)]
    rows[-1]["loss"] = 1.7
    history = read_history(write(tmp_path, "a.jsonl", lines(rows)))
    assert history.series["loss"].steps.tolist() == list(range(0, 230, 10))
    assert history.notes == ("20 steps written twice: the later value counts",)
    again = [{"current_steps": step, "loss": 1.0} for step in range(100, 240, 10)]
    assert "steps go back from 220 to 100" in read_history(write(tmp_path, "b.jsonl", lines([*rows, *again]))).notes[0]


def test_nan_infinity_and_null(tmp_path: Path) -> None:
    body = (
        '{"step": 1, "loss": NaN, "kl": "inf"}\n'
        '{"step": 2, "loss": -Infinity, "kl": null}\n'
        '{"step": 3, "loss": 1, "kl": 2}\n'
    )
    history = read_history(write(tmp_path, "a.jsonl", body))
    assert [math.isnan(value) for value in values(history, "loss")] == [True, False, False]
    assert values(history, "loss")[1:] == [-math.inf, 1.0]
    assert history.series["kl"].steps.tolist() == [1, 3]
    table = read_history(write(tmp_path, "a.csv", "step,loss,kl\n1,nan,\n2,-inf,3\n"))
    assert (table.series["loss"].steps.tolist(), table.series["kl"].steps.tolist()) == ([1, 2], [2])


def test_nan_that_fills_up_a_table_is_no_evaluation_and_one_that_diverged_is(tmp_path: Path) -> None:
    def evaluation(found: list[float], keep: list[int]) -> tuple[list[float], tuple[str, ...]]:
        rows = [
            {"step": step, "loss": 2.0, **({"eval_loss": value} if step in keep else {})}
            for step, value in enumerate(found, 1)
        ]
        history = read_history(write(tmp_path, "a.jsonl", lines(rows)))
        return values(history, "eval_loss"), history.notes

    every, nan = list(range(1, 9)), math.nan
    read, notes = evaluation([nan, nan, nan, 2.5, nan, nan, nan, 2.4], every)
    assert (read, notes) == ([2.5, 2.4], ("NaN in most rows and numbers in others, read as empty cells: eval_loss",))
    for found, keep in (([2.5, 2.4] + [nan] * 6, every), ([nan, nan, 2.5, 2.4, 2.3, nan, 2.2, 2.1], every)):
        assert sum(map(math.isnan, evaluation(found, keep)[0])) == sum(map(math.isnan, found))
    # Evaluations in rows of their own: nothing had to be filled up.
    read, notes = evaluation([nan, nan, nan, 2.5, nan, nan, nan, 2.4], [2, 3, 4])
    assert (len(read), notes) == (3, ())


def test_a_loss_that_is_missing_in_a_few_rows_is_noted(tmp_path: Path) -> None:
    """pandas writes NaN as an empty cell, and nobody would see it."""

    def notes(missing: set[int], every: int = 1) -> tuple[str, ...]:
        cells = ["" if step in missing or step % every else "2.0" for step in range(1, 101)]
        body = "".join(f"{step},0.1,{cell}\n" for step, cell in enumerate(cells, 1))
        return read_history(write(tmp_path, "a.csv", f"step,step_time,loss\n{body}")).notes

    assert notes({50, 51, 52}) == ("loss is missing in 3 rows that have the rest of the training's columns",)
    assert notes(set()) == notes(set(), every=10) == ()


def test_rows_come_in_order_with_what_was_logged_there(tmp_path: Path) -> None:
    rows = [{"step": 1, "loss": 3.0}, {"step": 2, "loss": 2.0}, {"step": 2, "eval_loss": 2.5}, {"step": 4, "kl": 0.5}]
    assert list(read_history(write(tmp_path, "a.jsonl", lines(rows))).rows()) == [
        (1, {"loss": 3.0}),
        (2, {"loss": 2.0, "eval_loss": 2.5}),
        (4, {"kl": 0.5}),
    ]


ODD = [
    (lines(ROWS) + '{"step": 6, "lo', "line 6 is cut off; read without it", 5),
    (lines([*ROWS, *ROWS[2:]]), "steps go back from 5 to 3 at line 6", 5),
    (lines([*ROWS, ROWS[-1]]), "1 step written twice", 5),
    (lines([{"step": row["step"], "loss": str(row["loss"])} for row in ROWS]), "numbers written as text", 5),
    (lines([*ROWS, {"train_runtime": 3.0}]), "1 line without a step left out", 5),
    (lines(ROWS).encode("utf-16"), "is UTF-16", 5),
]


@pytest.mark.parametrize(("body", "note", "steps"), ODD, ids=[case[1][:20] for case in ODD])
def test_what_can_be_mended_is_noted(tmp_path: Path, body: str | bytes, note: str, steps: int) -> None:
    history = read_history(write(tmp_path, "a.jsonl", body))
    assert len(history.notes) == 1
    assert note in history.notes[0]
    assert history.series["loss"].steps.tolist() == list(range(1, steps + 1))


def test_what_python_writes_for_nothing_is_an_empty_cell(tmp_path: Path) -> None:
    """Evaluations have rows of their own here, with a learning rate that no step had."""
    body = "step,loss,val_loss,learning_rate\n" + "".join(
        f"{step},{4 - step / 10},None,0.1\n{step},None,{4 - step / 10},0.0\n" for step in range(20)
    )
    history = read_history(write(tmp_path, "a.csv", body))
    assert len(values(history, "loss")) == len(values(history, "eval_loss")) == 20
    assert values(history, "learning_rate") == [0.1] * 20


def test_of_several_trainings_in_one_file_the_last_is_read(tmp_path: Path) -> None:
    """Nothing of the others stays, not even a column or an evaluation that the last does not have."""
    first = [{"step": step, "loss": 1.0, "kl": 0.1, "eval_loss": 1.0} for step in range(10, 310, 10)]
    for begins in (10, 20, 0):  # also where it does not log the very same steps
        again = [{"step": begins + step, "loss": 9.0} for step in range(0, 50, 10)]
        history = read_history(write(tmp_path, "a.jsonl", lines([*first, *again])))
        assert values(history, "loss") == [9.0] * 5
        assert list(history.series) == ["loss"]
        assert history.notes[0].startswith("the last of 2 trainings, from line 31 on")
    resumed = [{"step": step, "loss": 9.0} for step in range(100, 310, 10)]
    history = read_history(write(tmp_path, "a.jsonl", lines([*first, *resumed])))
    assert values(history, "loss") == [1.0] * 9 + [9.0] * 21
    assert "steps go back from 300 to 100" in history.notes[0]


def test_what_a_resumed_run_wrote_later_counts(tmp_path: Path) -> None:
    again = [{"step": step, "loss": 9.0} for step in (3, 4)]
    history = read_history(write(tmp_path, "a.jsonl", lines([*ROWS, *again])))
    assert values(history, "loss") == [3.0, 1.5, 9.0, 9.0]


@pytest.mark.parametrize(
    "several", [{"rank": [0, 1, 2, 3]}, {"split": ["train", "eval"]}, {"micro_step": list(range(8))}]
)
def test_a_row_for_each_of_several_parts_of_a_step_is_refused(tmp_path: Path, several: dict[str, list[object]]) -> None:
    """The last of them would stand for the step, and rank 0's memory or half of its time be gone."""
    [(key, parts)] = several.items()
    rows = [{"step": step, key: part, "loss": 2.0 + at} for step in range(20) for at, part in enumerate(parts)]
    with pytest.raises(UsageError, match="20 of 20 steps have several values of loss; expected one line per optimizer"):
        read_history(write(tmp_path, "a.jsonl", lines(rows)))


def test_the_same_row_twice_is_one_and_an_epoch_beside_an_evaluation_none(tmp_path: Path) -> None:
    history = read_history(write(tmp_path, "a.jsonl", lines([row for row in ROWS for _ in range(3)])))
    assert history.notes == ("5 steps written twice: the later value counts",)
    evaluated = [{"step": 5, "eval_loss": 2.0, "epoch": 1.0}]
    assert read_history(write(tmp_path, "b.jsonl", lines([*ROWS, *evaluated]))).notes == ()


@pytest.mark.parametrize("name", ["Loss", "LOSS", "train/loss", "Train/Loss"])
def test_a_column_is_known_in_any_case(tmp_path: Path, name: str) -> None:
    assert set(read_history(write(tmp_path, "a.csv", f"step,{name}\n1,2.0\n2,1.0\n")).series) == {"loss"}


def test_units_of_a_columns_name_are_turned_into_ours(tmp_path: Path) -> None:
    run, notes = read_run(write(tmp_path, "a.csv", "step,step_time_ms,max_mem_gb\n1,20,40\n2,30,50\n"))
    assert run.series["step_time"].values.tolist() == [0.02, 0.03]
    assert run.series["peak_memory"].values.tolist() == [40 * 1024, 50 * 1024]
    assert notes == ()


@pytest.mark.parametrize(
    "row",
    [
        "Step {0} | loss:2.{0} lr:2e-05 peak_memory_alloc:19.5 peak_memory_reserved:22.5 \n",
        "{{'loss': '2.{0}', 'memory/max_allocated (GiB)': 19.5, 'memory/device_reserved (GiB)': 22.5, 'epoch': 1}}\n",
        "{{'loss':2.{0}, 'memory/max_mem_allocated(gib)': 19.5, 'memory/device_mem_reserved(gib)':22.5, 'epoch':1}}\n",
    ],
)
def test_the_memory_that_torchtune_and_axolotl_print_is_read(tmp_path: Path, row: str) -> None:
    run, notes = read_run(write(tmp_path, "a.log", "Starting trainer...\n" + "".join(map(row.format, range(1, 9)))))
    assert run.series["peak_memory"].values.tolist() == [19.5 * 1024] * 8
    assert run.series["reserved_memory"].values.tolist() == [22.5 * 1024] * 8
    assert not any("nothing is read from" in note for note in notes)


def test_what_is_not_read_though_it_says_what_was_learned_is_named(tmp_path: Path) -> None:
    rows = [{"step": step, "loss": 1.0, "eval_wiki_loss": 2.0, "epoch": 0.5} for step in range(5)]
    _, [note] = read_run(write(tmp_path, "a.jsonl", lines(rows)))
    assert note.startswith("nothing is read from eval_wiki_loss; ")


whole_state = json.dumps({"log_history": ROWS}, indent=1)
BAD = [
    ("", "is empty"),
    (" \n\n", "is empty"),
    (b"PK\x03\x04\0\0\0\0", "holds zero bytes"),
    ("abc\xff".encode("latin-1"), "is not UTF-8 text"),
    (gzip.compress(lines(ROWS).encode())[:-12], "gzip data is cut or damaged"),
    (whole_state[: len(whole_state) // 2], "is cut off"),
    (json.dumps({"log_history": ROWS})[:-30], "is cut off"),
    ('{\n "model_type": "gpt2"\n}', "JSON without a log_history (keys model_type)"),
    ('{"log_history": []}', "holds no entry"),
    ('{\n "a": [{"step": 1, "loss": 1}], "b": [{"step": 1, "loss": 1}]\n}', "JSON without a log_history (keys a, b)"),
    ("[1, 2]", "a list with other things than objects"),
    (
        '{"loss": 1.0}\n{"loss": 2.0}\n',
        "no step in any line; found loss; expected a column named step, global_step, iteration, _step or epoch",
    ),
    ('{"step": 1}\n{"step": 2}\n', "no number besides the step"),
    ('{"step": 1, "loss": "low"}\n', "line 1: loss is 'low'; expected a number"),
    ('{"step": 1, "loss": [1.0]}\n', "line 1: loss is [1.0]; expected a number"),
    ('{"step": "one", "loss": 1}\n', "line 1: step is 'one'; expected a whole number"),
    ('{"step": 1.5, "loss": 1}\n', "line 1: step is 1.5; expected a whole number"),
    ('{"step": -3, "loss": 1}\n', "line 1: step is -3; expected a whole number from 0"),
    ('{"step": 99999999999999999999999, "loss": 1}\n', "expected a whole number from 0"),
    ('{"step": 1, "loss": 1}\n{"step": 2, "lo\n{"step": 3, "loss": 1}\n', "line 2 is not JSON"),
    ('{"step": 1, "loss": 1}\n7\n', "line 2 is int; expected one JSON object per line"),
    (lines([{"step": step % 7, "loss": 1.0} for step in range(300)]), "steps go back 42 times"),
    ("loss,kl\n1,2\n", "no step column; found loss, kl"),
    ("step,loss\n1,low\n", "row 2: loss is 'low'"),
    ("step,loss\n1,2,3\n", "row 2 has 3 cells; expected 2"),
    ("step,loss\n", "holds no row"),
    ("just a sentence\n", "neither JSON nor CSV"),
    ("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n", "run git lfs pull"),
    ("[" * 100_000, "is nested too deeply"),
]


@pytest.mark.parametrize(("body", "expected"), BAD, ids=[case[1][:30] for case in BAD])
def test_a_bad_file_is_one_line(tmp_path: Path, body: str | bytes, expected: str) -> None:
    path = write(tmp_path, "a.jsonl", body)
    with pytest.raises(UsageError) as caught:
        read_history(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert expected in message
    assert "\n" not in message
    assert message.count(";") >= 1


def test_a_missing_file_and_a_folder_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        read_history(tmp_path / "none.json")
    with pytest.raises(UsageError, match="is a folder"):
        read_history(tmp_path)


@pytest.mark.parametrize("packed", [False, True])
def test_more_rows_than_any_run_has_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bool) -> None:
    monkeypatch.setattr("canary_mlflow.files.source.MAX_ROWS", 1000)
    monkeypatch.setattr("canary_mlflow.files.rows.MAX_ROWS", 1000)
    assert source.MAX_ROWS == 1000
    for body in (
        lines([{"step": step, "loss": 1.0} for step in range(1002)]),
        "step,loss\n" + "".join(f"{step},1\n" for step in range(1002)),
    ):
        file = write(tmp_path, "a", gzip.compress(body.encode()) if packed else body)
        with pytest.raises(UsageError, match="more than 1,000 rows; expected at most one row per optimizer step"):
            read_history(file)


def test_reading_loads_neither_mlflow_nor_torch() -> None:
    probe = "import sys, canary_mlflow.files; print({'mlflow', 'torch', 'transformers'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_a_new_attempt_takes_the_evaluations_of_the_old_one_along(tmp_path: Path) -> None:
    """Begun again at step 3, it never reached the evaluation that the first attempt had at step 5."""
    first = [{"step": step, "loss": 2.0 / step} for step in range(1, 6)] + [{"step": 5, "eval_loss": 0.1}]
    path = tmp_path / "run.jsonl"
    path.write_text(lines([{"step": 1, "eval_loss": 0.9}, *first, {"step": 3, "loss": 0.7}, {"step": 4, "loss": 0.6}]))
    found = read_history(path)
    assert found.last_step == 4
    assert found.series["eval_loss"].values.tolist() == [0.9]
    apart = tmp_path / "apart.jsonl"
    apart.write_text(lines([{"step": step, "loss": 2.0} for step in range(1, 6)] + [{"step": 2, "eval_loss": 0.5}]))
    assert len(read_history(apart).series["loss"].steps) == 5, "other columns' rows below are no new attempt"


def test_an_evaluator_that_is_late_takes_nothing_of_the_training(tmp_path: Path) -> None:
    """It writes of step 3 after that of step 5: no new attempt, and the NaN stays."""
    rows = [{"step": step, "loss": math.nan if step == 4 else 1.0, "mine": 10 - step} for step in range(1, 6)]
    late = [{"step": 5, "eval_loss": 0.1}, {"step": 3, "eval_loss": 0.2}, {"step": 2, "mine": 3}]
    path = tmp_path / "run.jsonl"
    path.write_text(lines([*rows, *late]))
    found = read_history(path)
    assert found.series["loss"].steps.tolist() == [1, 2, 3, 4, 5]
    assert not found.series["loss"].finite.all()


def test_a_loss_that_is_often_below_0_is_no_likelihood(tmp_path: Path) -> None:
    """A policy gradient of which nothing else is known: it rises in half of the healthy runs."""
    file = tmp_path / "a.jsonl"
    losses = [*(-0.02 * (at % 5) for at in range(30)), *(0.1 + 0.01 * (at % 5) for at in range(30))]
    file.write_text("".join(json.dumps({"step": at, "loss": loss}) + "\n" for at, loss in enumerate(losses)))
    found = replay_file(file, load_watch())
    assert (found.verdict, found.notes[0]) == (
        "healthy",
        "no reward found: whether the policy gets better is not known",
    )
    assert replay_file(file, load_watch(), "sft").warnings
