"""Numbers, ranks and speeds in logs: what is no number is a value or an error, and never passed over."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from history_files import values, write

from canary_mlflow.errors import UsageError
from canary_mlflow.files.numbers import json_value, number, number_or_none, speed_of
from canary_mlflow.files.reading import read_history
from canary_mlflow.files.runs import read_run

LOGS = Path(__file__).resolve().parents[1] / "data" / "logs"
ROWS = 20

Form = Callable[[int, str], str]
SCRIPTS: dict[str, Form] = {
    "spaced": lambda at, loss: f"step: {at}  loss: {loss:>9}  grad_norm: 1.2",
    "equals": lambda at, loss: f"step={at} loss={loss} grad_norm={1.2} lr=1e-4",
    "commas": lambda at, loss: f"Step {at}, Loss: {loss}, Grad norm: 1.2",
    "beside": lambda at, loss: f"iter {at}: loss {loss}, time {30 + at}.20ms, mfu 14.5%",
    "words": lambda at, loss: f"iter {at} loss {loss} grad_norm 1.2 lr 1e-4",
    "pipes": lambda at, loss: f"step {at:5d} | loss {loss} | norm: 1.2 | dt: 27.40ms",
}
OTHERS: dict[str, Form] = {
    "dict": lambda at, loss: f"{{'loss': {loss}, 'grad_norm': 1.2, 'epoch': {at / 100}}}",
    "quoted": lambda at, loss: f"{{'loss': '{loss}', 'grad_norm': '1.2', 'epoch': '{at / 100}'}}",
    "tensor": lambda at, loss: (
        f"{{'loss': tensor({loss}, device='cuda:0'), 'lr': np.float64(0.1), 'epoch': {at / 100}}}"
    ),
    "json": lambda at, loss: f'INFO {{"step": {at}, "loss": {loss}, "grad_norm": 1.2}}',
    "json text": lambda at, loss: f'INFO {{"step": {at}, "loss": "{loss}", "grad_norm": 1.2}}',
}


def log(folder: Path, form: Form, last: str) -> Path:
    """Half of the rows with a loss, and half with `last`."""
    said = [form(at, last if 2 * at >= ROWS else f"{3 - at / ROWS:.4f}") for at in range(ROWS)]
    return write(folder, "a.log", "begins\n" + "\n".join(said) + "\n")


@pytest.mark.parametrize("word", ["nan", "NaN", "-nan", "inf", "Infinity", "-inf"])
@pytest.mark.parametrize("form", [*SCRIPTS, *OTHERS])
def test_what_is_no_number_is_a_value(tmp_path: Path, form: str, word: str) -> None:
    loss = values(read_history(log(tmp_path, (SCRIPTS | OTHERS)[form], word)), "loss")
    assert len(loss) == ROWS
    assert not any(map(math.isfinite, loss[ROWS // 2 :]))
    assert [math.copysign(1, value) for value in loss[-2:]] == [-1, -1] if word == "-inf" else True


@pytest.mark.parametrize("word", ["1.#QNAN", "-1.#IND00", "-nan(ind)", "nan.0"])
@pytest.mark.parametrize("form", SCRIPTS)
def test_so_it_is_as_microsofts_c_or_lightning_prints_it(tmp_path: Path, form: str, word: str) -> None:
    assert math.isnan(values(read_history(log(tmp_path, SCRIPTS[form], word)), "loss")[-1])


@pytest.mark.parametrize("word", ["***", "None"])
@pytest.mark.parametrize("form", SCRIPTS)
def test_rows_that_cannot_be_read_are_no_end_of_the_training(tmp_path: Path, form: str, word: str) -> None:
    path = log(tmp_path, SCRIPTS[form], word)
    first = SCRIPTS[form](ROWS // 2, word).strip()
    with pytest.raises(UsageError) as caught:
        read_history(path)
    assert str(caught.value).startswith(f"{path}: rows could not be read, the first of them {first!r}: ")
    assert "; expected a number, null or NaN; fix it" in str(caught.value)


@pytest.mark.parametrize("form", OTHERS)
def test_nor_are_dictionaries(tmp_path: Path, form: str) -> None:
    with pytest.raises(UsageError, match=r"rows could not be read, the first of them .*loss is no number; expected"):
        read_history(log(tmp_path, OTHERS[form], "***"))


def test_the_last_line_may_be_cut_off(tmp_path: Path) -> None:
    body = "".join(f"step {at} | loss: {3 - at / 9:.3f} | lr: 1e-5\n" for at in range(9))
    assert len(values(read_history(write(tmp_path, "a.log", body + "step 9 | loss: 1.2e-")), "loss")) == 9


def test_words_before_the_numbers_and_beside_them_are_not_refused(tmp_path: Path) -> None:
    body = "Loss: cross_entropy\n" + "".join(f"step {at} | loss: {3 - at / 9:.3f} | note: a\n" for at in range(9))
    assert len(values(read_history(write(tmp_path, "a.log", body + "loss: the last one is best\n")), "loss")) == 9


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv"])
def test_rows_of_files_have_the_same_numbers(tmp_path: Path, name: str) -> None:
    words = ("2.5", "nan", "-Infinity", "1e-3")
    body = "".join(f'{{"step": {at}, "loss": {word}}}\n' for at, word in enumerate(words))
    table = "step,loss\n" + "".join(f"{at},{word}\n" for at, word in enumerate((*words, "1.#QNAN", '"1,234.5"')))
    loss = values(read_history(write(tmp_path, name, body if name == "a.jsonl" else table)), "loss")
    assert (loss[0], math.isnan(loss[1]), loss[2], loss[3]) == (2.5, True, -math.inf, 0.001)
    assert [math.isnan(loss[4]), loss[5]] == [True, 1234.5] if name == "a.csv" else True


def test_numbers() -> None:
    assert (number("7,100"), number("1.#INF"), number("-1.#INF")) == (7100.0, math.inf, -math.inf)
    assert [number_or_none(text) for text in ("0,5", "36.1GiB", "ind", "", "1.2.3")] == [None] * 5
    assert json_value('{"a": [inf, -Inf, 1]}') == {"a": [math.inf, -math.inf, 1]}
    with pytest.raises(json.JSONDecodeError):
        json_value('{"a": nano}')


def test_a_loss_that_a_line_leaves_out_is_missing_there(tmp_path: Path) -> None:
    """Megatron does so where it is not finite; the rest of the training was left out."""
    form = (
        " iteration {0:8d}/ 90 | elapsed time per iteration (ms): 7{0:02}.5 | learning rate: 1E-06 |{1} grad norm: 1 |"
    )
    said = [form.format(at, "" if at > 12 else f" lm loss: {3 - at / 20:.6E} |") for at in range(1, 25)]
    history = read_history(write(tmp_path, "a.log", "begins\n" + "\n".join(said) + "\n"))
    assert (len(values(history, "loss")), len(values(history, "grad_norm")), history.last_step) == (12, 24, 24)
    assert history.gaps == ("no loss after step 12, of 24: what came then is not known",)


def test_rows_that_several_ranks_print_are_one_each(tmp_path: Path) -> None:
    read = read_history(LOGS / "ranks-diverge.log")
    assert len(values(read, "loss")) == 60
    assert read.notes[0] == "each row was printed by 4 ranks: it counts once"
    body = (LOGS / "ranks-diverge.log").read_text()
    ended = "".join(f"{{'train_runtime': 9.{rank}, 'train_loss': 1.5, 'epoch': 1.0}}\n" for rank in range(4))
    assert len(values(read_history(write(tmp_path, "a.log", body + ended)), "loss")) == 60
    dead = "".join(f"{{'loss': 0.0, 'learning_rate': 1e-05, 'epoch': {at // 20 / 100}}}\n" for at in range(100))
    assert len(values(read_history(write(tmp_path, "b.log", "INFO\n" + dead)), "loss")) == 100, "steps that are alike"
    policy = "".join(f"{{'loss': 0.0, 'reward': {at / 9}, 'epoch': {at / 50}}}\n" * 2 for at in range(50))
    assert len(values(read_history(write(tmp_path, "c.log", "INFO\n" + policy)), "reward_mean")) == 50


@pytest.mark.parametrize("prefix", ["[rank{0}]: ", "[default{0}]:", "[1,{0}]<stdout>:", "(pid=70{0}) ", "10.0.0.{0}: "])
def test_of_ranks_that_say_which_they_are_one_is_read(tmp_path: Path, prefix: str) -> None:
    lines = (LOGS / "ranks-prefix.log").read_text().splitlines(keepends=True)
    body = "".join(prefix.format(line[3]) + line[line.index("{") :] for line in lines[1:])
    history = read_history(write(tmp_path, "a.log", lines[0] + body))
    assert len(values(history, "loss")) == 40
    assert history.notes[0] == f"printed by 4 ranks: the lines of {prefix.format(0).rstrip(': ')} are read"
    broken = body.replace(prefix.format(2) + "{'loss': 1.", prefix.format(2) + "{'loss': nan, 'was': 1.")
    assert not all(map(math.isfinite, values(read_history(write(tmp_path, "b.log", lines[0] + broken)), "loss")))


def test_a_rank_that_alone_tells_the_loss_has_no_others(tmp_path: Path) -> None:
    body = "".join(
        f"[rank3]: step: {at}  loss: {3 - at / 9:.3f}\n[rank0]: loss scale 1\n" * (at < 9) for at in range(9)
    )
    assert len(values(read_history(write(tmp_path, "a.log", "begins\n" + body)), "loss")) == 9


def test_steps_that_begin_again_while_the_epoch_goes_on_are_counted_on(tmp_path: Path) -> None:
    history = read_history(LOGS / "resumed.csv")
    assert history.series["loss"].steps.tolist() == list(range(0, 900, 10))
    assert history.notes[0].startswith("steps begin again at row 62, where the training goes on")
    anew = (LOGS / "resumed.csv").read_text().replace("\n3,", "\n0,").replace("\n4,", "\n1,")
    assert len(values(read_history(write(tmp_path, "a.csv", anew)), "loss")) == 30, "another training"


SPEEDS = {
    "It/sec": ("step_time", 0.5),
    "train_speed(iter/s)": ("step_time", 0.5),
    "steps per second": ("step_time", 0.5),
    "it/min": ("step_time", 30.0),
    "s/it": ("step_time", 2.0),
    "ms/step": ("step_time", 0.002),
    "tps": ("tokens_per_second", 2.0),
    "Tokens/sec": ("tokens_per_second", 2.0),
    "tokens_per_second_per_gpu": ("tokens_per_second", 2.0),
    "RunningAvgSamplesPerSec": ("samples_per_second", 2.0),
    "throughput samples/s": ("samples_per_second", 2.0),
    **dict.fromkeys(("eval_samples_per_second", "gen tokens/s", "loss", "step", "tflops", "Val took_s"), None),
}


@pytest.mark.parametrize("column", SPEEDS)
def test_speeds_are_known_by_their_unit(column: str) -> None:
    unit = speed_of(column)
    assert (unit and (unit.metric, unit.ours(np.array([2.0]))[0])) == SPEEDS[column]


@pytest.mark.parametrize(
    ("said", "metric", "value"),
    [
        ("({0:.2f} sec/step)", "step_time", 2.0),
        ("speed: {0:.2f} it/s", "step_time", 0.5),
        ("speed (it/s): {0:.2f}", "step_time", 0.5),
        ("samples/s: {0:.2f}", "samples_per_second", 2.0),
        ("throughput: 9,00{0:.0f} tokens/s", "tokens_per_second", 9002.0),
        ("Time: {0:.1f}s", "step_time", 2.0),
    ],
)
def test_a_line_tells_its_speed(tmp_path: Path, said: str, metric: str, value: float) -> None:
    form = "global step {0}: loss = {1:.4f} " + said.replace("{0", "{2")
    body = "".join(form.format(at, 3 - at / 20, 2.0) + "\n" for at in range(1, 13))
    series = read_history(write(tmp_path, "a.log", "begins\n" + body)).series
    assert (len(series["loss"].values), series[metric].values.tolist()) == (12, [value] * 12)


def test_a_time_that_only_rises_is_the_trainings_so_far(tmp_path: Path) -> None:
    body = "".join(f"step {at} | loss: {3 - at / 20:.4f} | time: {1.5 * at:.1f}s\n" for at in range(10, 250, 10))
    assert read_history(write(tmp_path, "a.log", body)).series["step_time"].values.tolist() == [1.5] * 23


def test_the_bar_of_a_training_tells_it_too(tmp_path: Path) -> None:
    """Above a second, tqdm turns the rate round; it draws the same step again and again."""
    bar = "loss: {0:.4f}:  7%|###  | {1}/391 [00:38<00:13,  {2}]\r"
    body = "".join(bar.format(3 - at // 3 / 50, at // 3, f"2.{at % 3}0it/s") for at in range(60))
    series = read_history(write(tmp_path, "a.log", "begins\n" + body)).series
    assert (len(series["loss"].values), series["step_time"].values.tolist()) == (20, [0.5] * 20)


def test_rows_with_the_time_and_the_tokens_so_far_are_one_training(tmp_path: Path) -> None:
    row = "{{'loss': {0}, 'train_runtime': {0}, 'train_tokens_per_second': 9.5, 'epoch': {0}}}\n"
    read = read_history(write(tmp_path, "a.log", "INFO\n" + "".join(row.format(at / 9) for at in range(1, 9))))
    assert (len(values(read, "loss")), values(read, "tokens_per_second")) == (8, [9.5] * 8)


def test_a_summary_is_no_speed_of_steps(tmp_path: Path) -> None:
    rows = [{"step": at, "loss": 2.0} for at in range(9)] + [{"step": 9, "train_steps_per_second": 3.0}]
    run, _ = read_run(write(tmp_path, "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows)))
    assert "step_time" not in run.series
