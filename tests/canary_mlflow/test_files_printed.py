"""What trainings and notebooks print, read as histories."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from history_files import values, write

from canary_mlflow.errors import UsageError
from canary_mlflow.files.reading import read_history
from canary_mlflow.files.replaying import replay_file
from canary_mlflow.files.runs import read_run
from canary_mlflow.policies import load_watch

PRINTED = """2026-01-01 12:00:00 INFO step, loss and more
{{'loss': {0}, 'grad_norm': {1}, 'learning_rate': {2}, 'epoch': {3}}}
  5%|▌ | 1/20 [00:01<00:20]\r{{'loss': {1}, 'grad_norm': nan, 'learning_rate': {2}, 'epoch': {4}}}
{{'eval_loss': {0}, 'eval_runtime': {1}, 'epoch': {4}}}
config {{'lr': {2}, 'name': 'a'}}
{{'loss': {5}, 'grad_norm': {1}, 'learning_rate': {2}, 'epoch': {4}}}
{{'train_runtime': {0}, 'train_loss': {1}, 'epoch': {4}}}
"""
NUMBERS = ("2.0", "1.5", "1e-05", "0.1", "0.2", "1.25")


@pytest.mark.parametrize("quoted", [False, True], ids=["numbers", "text, as from Transformers 5 on"])
def test_what_a_training_printed_is_read(tmp_path: Path, quoted: bool) -> None:
    body = "2026-01-01 12:00:00,5 - INFO - begins\n" + PRINTED.format(
        *(f"'{number}'" if quoted else number for number in NUMBERS)
    )
    history = read_history(write(tmp_path, "out.log", body))
    assert (history.kind, values(history, "loss")) == ("printed", [2.0, 1.5, 1.25])
    assert math.isnan(values(history, "grad_norm")[1])
    assert history.series["eval_loss"].steps.tolist() == [2]
    assert history.notes == ("as printed, without steps: the rows are numbered",)
    broke_off = body[: body.rindex("{'train_runtime'")]
    resumed = broke_off + "".join(f"{{'loss': 1.0, 'epoch': {epoch}}}\n" for epoch in (0.05, 0.25))
    again = read_history(write(tmp_path, "again.log", resumed))
    assert values(again, "loss") == [1.0, 1.0], "begins where its epoch is"
    assert again.notes[1].startswith("the last of 2 trainings, from row 5 on")


def test_a_dictionary_that_a_terminal_broke_is_one_row(tmp_path: Path) -> None:
    rows = [f"{{'loss': {3.5 / at}, 'rewards/chosen': -0.25, 'epoch': {at / 10}}}" for at in (1, 2)]
    broken = "".join(row[at : at + 29].rstrip() + "\n" for row in rows for at in range(0, len(row), 29))
    history = read_history(write(tmp_path, "a.log", "[INFO] begins with {'an answer\n" + broken))
    assert (values(history, "loss"), values(history, "chosen_reward")) == ([3.5, 1.75], [-0.25, -0.25])


def test_a_printed_line_without_an_end_takes_no_longer_than_its_length(tmp_path: Path) -> None:
    """It took time by the square of the length, while a value could begin within a word."""
    hostile = "step:1 - " + "a" * 1_000_000 + "\n"
    with pytest.raises(UsageError):
        read_history(write(tmp_path, "hostile.log", "[INFO] begins\n" + hostile))


def test_what_verl_printed_is_read(tmp_path: Path) -> None:
    line = (
        "\x1b[36m(TaskRunner pid=7)\x1b[0m step:{0} - actor/pg_loss:-0.{0} - critic/score/mean:np.float64(0.5) - a:b\n"
    )
    body = "[2026-01-01] starts\n" + "".join(line.format(at) + "epoch 0, step 1\n" for at in (1, 2))
    history = read_history(write(tmp_path, "verl.log", body))
    assert history.series["score_mean"].steps.tolist() == [1, 2]
    assert (values(history, "policy_loss"), values(history, "score_mean")) == ([-0.1, -0.2], [0.5, 0.5])
    assert history.notes == ()
    rounded = "".join(f"step:{at} - actor/lr:0.000 - actor/entropy:0.000 - actor/grad_norm:0.0\n" for at in (1, 2))
    history = read_history(write(tmp_path, "old.log", "starts\n" + rounded))
    assert "learning_rate" not in history.series, "1e-6 in three decimals"
    assert (values(history, "entropy"), values(history, "grad_norm")) == ([0.0, 0.0], [0.0, 0.0])


def test_lines_that_say_their_step_are_rows(tmp_path: Path) -> None:
    """What says no step is none; a rounded 0 is no value."""
    form = "INFO Epoch:[{0}/2] step {1}/600, Reward: {2}, KL: -0.0000, task loss: 9\n"
    body = "Model: 30 M\n" + "".join(form.format(1 + at // 6, at, at / 4) for at in range(12)) + "Reward: 7\n"
    history = read_history(write(tmp_path, "own.log", body))
    assert (values(history, "reward_mean"), history.series["reward_mean"].steps.tolist()) == (
        [at / 4 for at in range(12)],
        list(range(12)),
    )
    assert {"kl", "loss"}.isdisjoint(history.series)
    stuck = read_history(write(tmp_path, "stuck.log", body.replace("KL: -0.0000", "lr: 0.0")))
    assert values(stuck, "learning_rate") == [0.0] * 12, "Python's own zero"
    stepped = "".join(f"[step {at}/600] avg loss={at}.5 note=3/4\n" for at in range(12))
    assert read_history(write(tmp_path, "a.log", stepped)).series["loss"].steps.tolist() == list(range(12))
    drawn = "".join(f"Loss: {at // 3}.5: 1%|#| {at}/600 [00:01<00:09, 1.0it/s]\r" for at in range(36))
    assert read_history(write(tmp_path, "b.log", drawn)).series["loss"].steps.tolist() == list(range(0, 36, 3))
    with pytest.raises(UsageError, match=r"expected .* lines such as `step 10 \| loss: 2.31`, five or more"):
        read_history(write(tmp_path, "c.log", "starts\n" + "loss: 2.5 | lr: 1e-5\n" * 20))


def test_steps_that_begin_again_with_each_epoch_are_numbered(tmp_path: Path) -> None:
    rows = [(epoch, step) for epoch in (1, 2, 3) for step in range(10, 60, 10)]
    said = [f"Epoch {epoch}, step {step}/50: loss: {5 - epoch - step / 100}\n" for epoch, step in rows]
    history = read_history(write(tmp_path, "a.log", "starts\n" + "".join(said)))
    assert history.series["loss"].steps.tolist() == list(range(1, 16))
    assert "several lines per epoch and no step: they are numbered" in history.notes


def test_lines_may_say_now_more_and_now_less_beside_what_we_know(tmp_path: Path) -> None:
    """A script that prints only the parts of a reward that this batch had."""
    body = "".join(
        f"[step {at:04}]  step={at}  loss={3 - at / 10}  mean_reward={at}  {'e/a' if at % 2 else 'b'}=1 d{at % 3}=2\n"
        for at in range(12)
    )
    history = read_history(write(tmp_path, "a.log", "nohup: ignoring input\n" + body))
    assert (values(history, "reward_mean"), history.series["loss"].steps.tolist()) == ([*range(12)], [*range(12)])


def test_json_among_other_lines_is_read(tmp_path: Path) -> None:
    rows = [{"loss": 3.0 / at, "epoch": at / 10, "step": 10 * at, "note": "a"} for at in range(1, 9)]
    body = "".join(f"INFO {json.dumps(row)}\n" for row in rows) + '{"epoch": 1.0, "name": "none"}\n{"loss": broken}\n'
    history = read_history(write(tmp_path, "a.log", "Run of seed 42\nStep-by-step log:\n" + body))
    assert (values(history, "loss")[:2], history.series["loss"].steps.tolist()[-1]) == ([3.0, 1.5], 80)


def test_a_value_may_stand_beside_its_name_in_a_line_that_says_its_step(tmp_path: Path) -> None:
    """nanoGPT's lines; a sentence with the same words is none."""
    said = [f"iter {step}: loss {3 - step / 100:.4f}, time 31.20ms, mfu 14.5%\n" for step in range(0, 100, 10)]
    history = read_history(write(tmp_path, "a.log", "step 0: train loss 4.2874, val loss 4.2823\n" + "".join(said)))
    assert (history.series["loss"].steps.tolist(), values(history, "loss")[:2]) == (list(range(0, 100, 10)), [3.0, 2.9])
    between = "".join(
        [*said[:5], "step 45: train loss 2.6, val loss 2.6\nsaving\n", *said[5:], "step 90: val loss 2.2\n"]
    )
    evaluated = read_history(write(tmp_path, "d.log", between)).series
    assert (evaluated["eval_loss"].steps.tolist(), evaluated["eval_loss"].values.tolist()) == ([45, 90], [2.6, 2.2])
    assert evaluated["loss"].steps.tolist() == list(range(0, 100, 10))
    averages = [f"[step {step}] avg_loss=-0.0{step} acc=0.8000\n" for step in range(10, 80, 10)]
    assert values(read_history(write(tmp_path, "b.log", "".join(averages))), "loss")[0] == -0.01
    with pytest.raises(UsageError, match="neither JSON nor CSV"):
        read_history(write(tmp_path, "c.log", "it fell to a loss 3.0 again\n" * 20))


TIMED = (
    "iter {0}: loss 2.5, time {1}ms, mfu 14.5%",
    "step {0:5d} | loss: 2.5 | norm: 0.5 | dt: {1}ms | tok/sec: 9.1",
    "Epoch 1 | iter {0} step {0} | loss train: 2.500, val: n/a | iter time: {1}.00 ms (step)",
    " [2026-11-26 14:00] iteration {0:8d}/ 60 | elapsed time per iteration (ms): {1}.0 | lm loss: 2.500000E+00 |",
    "Training epoch 0, iteration {0}/7 | lr: 3e-06 | reduced_train_loss: 2.5 | train_step_timing in s: 0.0{1}",
)


@pytest.mark.parametrize("form", TIMED)
def test_a_time_with_its_unit_is_the_steps(tmp_path: Path, form: str) -> None:
    """The lines of nanoGPT, build-nanogpt, litgpt, Megatron and NeMo; without it, a slower step passed unseen."""
    lines = "".join(f"{form.format(step, 30 + step)}\n" for step in range(8))
    run, _ = read_run(write(tmp_path, "a.log", lines))
    assert run.series["step_time"].values.tolist() == [at / 1000 for at in range(30, 38)]
    assert run.series["loss"].steps.tolist() == list(range(8))


def test_a_value_that_is_missing_from_some_lines_makes_no_other_training_of_them(tmp_path: Path) -> None:
    """litgpt: n/a until the first evaluation; half of the training was left out."""
    lines = [f"iter {at} | loss train: {9 - at}.5, val: {'n/a' if at < 4 else '2.9'} | lr: 1e-3\n" for at in range(8)]
    loss = read_history(write(tmp_path, "a.log", "".join(lines))).series["loss"]
    assert (loss.steps.tolist(), loss.values.tolist()) == (list(range(8)), [9.5 - at for at in range(8)])


def test_an_evaluation_that_says_only_its_epoch_is_of_the_step_before_it(tmp_path: Path) -> None:
    lines = ["epoch -1: perplexity: 90.0 eval_loss: 4.5\n"]
    for step in range(1, 13):
        lines.append(f"11/26/2026 10:42:56 - INFO - step {step}/12 | loss: {4 - step / 10:.4f} | lr: 1e-3\n")
        if step % 6 == 0:
            lines.append(
                f"11/26/2026 10:42:56 - INFO - epoch {step // 6 - 1}: perplexity: 20.1 eval_loss: {step / 10}\n"
            )
    history = read_history(write(tmp_path, "a.log", "".join(lines)))
    assert history.series["eval_loss"].steps.tolist() == [6, 12]
    assert history.series["eval_loss"].values.tolist() == [0.6, 1.2]


def test_a_script_that_only_evaluates_is_read_from_five_lines_on(tmp_path: Path) -> None:
    """transformers' run_clm_no_trainer.py: a line per epoch, and no loss of training."""
    form = "11/26/2026 10:42:56 - INFO - __main__ - epoch {0}: perplexity: 20.1 eval_loss: {0}.5\n"
    lines = ["11/26/2026 10:42:00 - INFO - __main__ - ***** Running training *****\n", *map(form.format, range(5))]
    assert values(read_history(write(tmp_path, "a.log", "".join(lines))), "eval_loss") == [0.5, 1.5, 2.5, 3.5, 4.5]
    with pytest.raises(UsageError, match=r"lines such as `step 10 \| loss: 2.31`, five or more"):
        read_history(write(tmp_path, "b.log", "".join(lines[:4])))


def test_the_longest_of_the_trainings_that_were_printed_is_read(tmp_path: Path) -> None:
    """One script may train several models; what is measured after a training belongs to it."""

    def training(rows: int, loss: float) -> str:
        said = "".join(f"{{'loss': {loss}, 'epoch': {at / rows}}}\n" for at in range(1, rows + 1))
        return (
            said
            + f"{{'train_runtime': 9.0, 'train_loss': {loss}, 'epoch': 1.0}}\n{{'eval_loss': {loss}, 'epoch': 1.0}}\n"
        )

    history = read_history(write(tmp_path, "a.log", "INFO\n" + training(4, 3.0) + training(9, 2.0) + training(5, 1.0)))
    assert (values(history, "loss")[0], len(values(history, "loss")), values(history, "eval_loss")) == (2.0, 9, [2.0])
    assert history.notes[0] == "the longest of 3 trainings that were printed"
    alone = read_history(write(tmp_path, "b.log", "INFO\n" + training(9, 2.0)))
    assert (values(alone, "eval_loss"), "longest" in alone.notes[0]) == ([2.0], False)


def test_of_trainings_that_a_script_printed_one_after_the_other_the_last_is_read(tmp_path: Path) -> None:
    body = "".join(f"Epoch {at % 20}: DPO loss = {3 - at % 20 / 10}\n" for at in range(35))
    history = read_history(write(tmp_path, "sweep.log", "seed=1\n" + body))
    assert values(history, "loss") == [3 - at / 10 for at in range(15)]
    assert history.notes[1].startswith("the last of 2 trainings, from line 21 on")


def test_a_log_in_another_encoding_is_read_all_the_same(tmp_path: Path) -> None:
    body = "Model: 2\u00d7 wider\n" + "".join(f"epoch {at} | loss={3 - at / 10}\n" for at in range(12))
    path = tmp_path / "out.log"
    path.write_bytes(body.encode("cp1252"))
    history = read_history(path)
    assert values(history, "loss") == [3 - at / 10 for at in range(12)]
    assert history.notes[0].startswith("is not UTF-8")


def notebook(*outputs: dict[str, object]) -> str:
    return json.dumps({"cells": [{"outputs": [output]} for output in outputs], "metadata": {}, "nbformat": 4}, indent=1)


def shown(*rows: tuple[object, ...]) -> dict[str, object]:
    """The table that Transformers shows: the header first."""
    cells = ["<tr>" + "".join(f"<td> {cell}</td>\n" for cell in row) + "</tr>" for row in rows]
    bar = "<progress value='3' max='20' style='width:300px'></progress> [ 3/20]"
    return {"data": {"text/html": [f"<div>{bar}</div>", '<table border="1" class="dataframe">', *cells, "</table>"]}}


def test_a_notebook_in_which_a_model_was_trained_is_read(tmp_path: Path) -> None:
    short = shown(("Step", "Training Loss"), (1, 9.0))
    head = ("Step", "Training Loss", "Validation Loss", "rewards / chosen", "completions / clipped_ratio")
    longer = shown(head, (1, "No log", 2.5, -0.5, 0.1), (2, 1.5, 2.0, -0.25, 0.2), (3, 1.0, "nan", 0.0, 0.3))
    history = read_history(write(tmp_path, "a.ipynb", notebook(short, {"text": ["hello\n"]}, longer)))
    assert (values(history, "loss"), values(history, "chosen_reward")) == ([1.5, 1.0], [-0.5, -0.25, 0.0])
    assert values(history, "truncated_share") == [0.1, 0.2, 0.3]
    assert history.max_steps == 20, "what was trained is the beginning of it"
    assert history.notes[0] == "a table of a notebook, the fullest of 2"
    evaluated = shown(("Step", "reward", "reward_std", "kl", "entropy"), (9, 1.0, 1.0, 1.0, 1.0))
    trained = shown(("Step", "Training Loss"), *((step, 1.0) for step in range(1, 7)))
    history = read_history(write(tmp_path, "f.ipynb", notebook(trained, evaluated)))
    assert len(values(history, "loss")) == 6, "the one row of an evaluation tells less"
    printed = {"text": [f"{{'loss': {at}, 'epoch': {at}}}\n" for at in range(5)]}
    assert values(read_history(write(tmp_path, "b.ipynb", notebook(short, printed))), "loss") == [0, 1, 2, 3, 4]
    cells = [{"text": "".join(f"step {at} loss: {at / 2}\n" for at in range(of))} for of in (6, 9, 7)]
    history = read_history(write(tmp_path, "e.ipynb", notebook(*cells)))
    assert values(history, "loss") == [at / 2 for at in range(9)], "cells are trainings of their own"
    assert history.notes[0] == "the fullest of 3 trainings that its cells printed"
    excerpt = shown(("", "step", "loss", "kl"), (0, 0, 3, 1), ("...",) * 4, (99, 99, 1, 1))
    assert values(read_history(write(tmp_path, "d.ipynb", notebook(excerpt, short))), "loss") == [9.0]
    with pytest.raises(UsageError, match="a notebook without the output of a training that can be read; expected"):
        read_history(write(tmp_path, "c.ipynb", notebook(shown(("Name", "Loss"), ("a", 1)))))


def test_a_notebooks_code_tells_the_algorithm(tmp_path: Path) -> None:
    body = json.loads(notebook(shown(("Step", "Training Loss"), *((step, 0.0) for step in range(1, 20)))))
    made = {"cell_type": "code", "source": ["trainer = SFTTrainer(model)\n", "trainer = GRPOTrainer (model)"]}
    body["cells"].insert(0, made)
    file = write(tmp_path, "a.ipynb", json.dumps(body))
    assert read_history(file).algo == "grpo"
    assert replay_file(file, load_watch()).verdict == "healthy"  # GRPO's loss begins at 0
    assert replay_file(file, load_watch(), "sft").verdict == "failed"
    made["source"] = "GRPOTrainer(model); trainer = MyTrainer(model)"
    assert read_history(write(tmp_path, "b.ipynb", json.dumps(body))).algo == ""
    rewards = json.loads(notebook(shown(("Step", "Training Loss", "reward_std"), (1, 0.0, 1.0), (2, 0.0, 1.0))))
    rewards["cells"].insert(0, {"cell_type": "code", "source": "trainer = SFTTrainer(model)"})
    changed = write(tmp_path, "c.ipynb", json.dumps(rewards))
    assert read_history(changed).algo == "", "the code was changed after it had run"
