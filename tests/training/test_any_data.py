"""Data that `datasets` reads: files and folders of the hub's layout by column names, prompts alone, and refusals."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from canaries import tiny_model

from canary_mlflow.errors import UsageError
from canary_mlflow.training import algorithms, datasets
from canary_mlflow.training.command_line import parse
from canary_mlflow.training.compose import check, register_schemas
from canary_mlflow.training.config import CanaryConfig
from canary_mlflow.training.datasets import as_judged
from canary_mlflow.training.devices import settle
from canary_mlflow.training.errors import SetupError
from canary_mlflow.training.loading import load_tokenizer
from canary_mlflow.training.models import model_folder
from canary_mlflow.training.naming import default_model_name
from canary_mlflow.training.parts import build_parts
from canary_mlflow.training.preflight import preflight


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load_tokenizer(model_folder(tiny_model()))


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")


def composed(*words: str) -> CanaryConfig:
    register_schemas()
    return check(parse(["hardware=cpu", "tier=smoke", "tier.eval_rows=4", "data=hub", *words]))[0]


def questions(count: int = 20, start: int = 0) -> list[dict[str, Any]]:
    return [
        {"id": at, "question": f"how many is {at}?", "answer": f" {at} of them", "source": "made"}
        for at in range(start, start + count)
    ]


def parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def csv(path: Path, rows: list[dict[str, Any]]) -> Path:
    body = [list(rows[0]), *([str(value) for value in row.values()] for row in rows)]
    path.write_text("".join(",".join(f'"{cell}"' for cell in line) + "\n" for line in body))
    return path


QA = ("data.columns.prompt=question", "data.columns.completion=answer")


@pytest.mark.parametrize("write", [parquet, jsonl, csv])
def test_a_file_is_read_by_the_names_of_its_columns(write: Any, tmp_path: Path, tokenizer: Any) -> None:
    path = write(tmp_path / f"rows.{write.__name__}", questions())
    config = composed("algo=sft", f"data.path={path}", *QA)
    preflight(config)
    train, held_out, stats = datasets.load(config, tokenizer)
    assert (stats.train_rows, stats.eval_rows, stats.dropped_unusable) == (16, 4, 0)
    rows = [*train.to_list(), *held_out.to_list()]
    assert sorted(row["prompt"] for row in rows) == sorted(row["question"] for row in questions())
    assert all(row["chosen"].strip() == row["prompt"][12:-1] + " of them" for row in rows)


def test_the_rows_of_a_file_are_the_same_in_each_format(tmp_path: Path, tokenizer: Any) -> None:
    found = set()
    for write in (parquet, jsonl):
        path = write(tmp_path / f"rows.{write.__name__}", questions())
        found.add(datasets.load(composed("algo=sft", f"data.path={path}", *QA), tokenizer)[2].digest)
    assert len(found) == 1


def test_a_folder_of_the_hubs_layout_has_subsets_and_splits(tmp_path: Path, tokenizer: Any) -> None:
    folder = tmp_path / "set"
    for subset, start in (("easy", 0), ("hard", 100)):
        parquet(folder / subset / "train.parquet", questions(20, start))
        parquet(folder / subset / "test.parquet", questions(6, 1000 + start))
    configs = [
        {"config_name": name, "data_files": [{"split": s, "path": f"{name}/{s}.parquet"} for s in ("train", "test")]}
        for name in ("easy", "hard")
    ]
    (folder / "README.md").write_text(f"---\nconfigs: {json.dumps(configs)}\n---\n")
    words = ("algo=sft", f"data.path={folder}", *QA)
    train, held_out, _ = datasets.load(
        composed(*words, "data.subset=hard", "data.held_out=test", "data.split='train[:50%]'"), tokenizer
    )
    assert {row["prompt"] for row in train} == {row["question"] for row in questions(10, 100)}
    assert {row["prompt"] for row in held_out} <= {row["question"] for row in questions(6, 1100)}
    for wrong, said in (
        ((), "Config name is missing.*; data.subset=NAME says which"),
        (("data.subset=odd",), "BuilderConfig 'odd' not found"),
        (("data.subset=easy", "data.split=valid"), "Unknown split"),
    ):
        with pytest.raises(SetupError, match=said) as refused:
            datasets.load(composed(*words, *wrong), tokenizer)
        assert "\n" not in str(refused.value)


def test_the_hubs_cache_serves_without_network(tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    config = composed("algo=grpo", "data.path=somebody/questions", QA[0])
    with pytest.raises(SetupError, match="needs somebody/questions, but HF_HUB_OFFLINE forbids downloads"):
        preflight(config)
    place = tmp_path / "datasets--somebody--questions"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text("d" * 40)
    snapshot = place / "snapshots" / ("d" * 40)
    parquet(snapshot / "data" / "train-00000-of-00001.parquet", questions())
    (snapshot / "README.md").write_text("A set.\n")
    preflight(config)
    assert datasets.load(config, tokenizer)[0].column_names == ["prompt"]
    assert default_model_name(config, {"data_digest": "0123456789"}) == "grpo-tiny-neox-questions-smoke-01234567"


@pytest.mark.parametrize("algo", ["ppo", "grpo", "rloo"])
def test_prompts_alone_are_enough_where_answers_are_drawn(algo: str, tmp_path: Path, tokenizer: Any) -> None:
    path = jsonl(tmp_path / "prompts.jsonl", [{"prompt": f"p {at}"} for at in range(10)])
    for source in ("hub", "jsonl"):
        config = composed(f"algo={algo}", f"data={source}", f"data.path={path}")
        train, _, stats = datasets.load(config, tokenizer)
        assert (train.column_names, stats.train_rows + stats.eval_rows) == (["prompt"], 10)
    with pytest.raises(SetupError, match="no column 'chosen'; found prompt; expected prompt, chosen, rejected"):
        datasets.load(composed("algo=dpo", f"data.path={path}"), tokenizer)


def test_a_judged_answer_is_good_or_bad(tmp_path: Path, tokenizer: Any) -> None:
    rows = [{"prompt": f"p {at}", "completion": f" c {at}", "label": at % 2 == 0} for at in range(20)]
    path = jsonl(tmp_path / "judged.jsonl", rows)
    for source in ("hub", "jsonl"):
        train, held_out, _ = datasets.load(composed("algo=kto", f"data={source}", f"data.path={path}"), tokenizer)
        judged = [*as_judged(train, seed=1), *as_judged(held_out, seed=1)]
        key = ("prompt", "completion", "label")
        assert sorted([row[name] for name in key] for row in judged) == sorted(
            [row[name] for name in key] for row in rows
        )
    rows[3]["label"] = "bad"
    with pytest.raises(
        SetupError, match="line 4: label is 'bad'; expected true for a good answer, false for a bad one"
    ):
        datasets.check(composed("algo=kto", "data=jsonl", f"data.path={jsonl(path, rows)}"))


@pytest.mark.parametrize(
    ("label", "said"), [(True, "only good answers in .* expected bad"), (False, "only bad answers in")]
)
def test_answers_that_are_all_good_or_all_bad_are_refused(
    tmp_path: Path, tokenizer: Any, label: bool, said: str
) -> None:
    rows = [{"prompt": f"p {at}", "completion": f" c {at}", "label": label} for at in range(20)]
    path = jsonl(tmp_path / "judged.jsonl", rows)
    with pytest.raises(SetupError, match=said):
        datasets.load(composed("algo=kto", "data=jsonl", f"data.path={path}"), tokenizer)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["data=preferences", "data.path=rows.jsonl"], "data=preferences; expected data=hh-rlhf or data=jsonl or"),
        (["data=jsonl", "data.path=rows.jsonl", "data.split=test"], "data=jsonl; expected data=hh-rlhf or data=hub"),
        (["data=hub", "data.path=rows.jsonl", "data.label_noise=0.1"], "data=hub; expected data=preferences beside"),
    ],
)
def test_a_setting_that_the_data_would_not_read_is_refused(words: list[str], said: str) -> None:
    with pytest.raises(SetupError, match="^" + re.escape(f"{words[-1]} has no effect with {said}")):
        datasets.check(composed("algo=grpo", *words))


def test_a_file_with_other_names_says_how_to_map_them(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "rows.jsonl", [{"question": "q"}, {"question": "r"}])
    with pytest.raises(SetupError, match=re.escape("found question;") + ".*data=hub, data.columns.prompt=COLUMN"):
        datasets.check(composed("algo=grpo", "data=jsonl", f"data.path={path}"))
    datasets.check(composed("algo=grpo", f"data.path={path}", "data.columns.prompt=question"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["data.columns.prompt=query"], "has no such column; it has answer, id, question, source"),
        ([], "no column 'prompt'; found answer, id, question, source; expected prompt, chosen, rejected; or prompt, "),
        (["data.columns.prompt=id", "data.columns.completion=answer"], ": prompt is a number; expected a string"),
    ],
)
def test_columns_that_do_not_fit_are_refused_in_one_line(
    words: list[str], said: str, tmp_path: Path, tokenizer: Any
) -> None:
    path = parquet(tmp_path / "rows.parquet", questions(1) * 5)
    with pytest.raises(SetupError, match=re.escape(said)) as refused:
        datasets.load(composed("algo=sft", f"data.path={path}", *words), tokenizer)
    assert "\n" not in str(refused.value)


def test_a_few_rows_without_text_are_left_out_and_counted(tmp_path: Path, tokenizer: Any) -> None:
    rows = questions()
    rows[3]["answer"], rows[7]["question"] = "", None
    path = parquet(tmp_path / "rows.parquet", rows)
    assert datasets.load(composed("algo=sft", f"data.path={path}", *QA), tokenizer)[2].dropped_unusable == 2


def test_a_column_of_several_kinds_is_refused_where_a_function_may_read_it(tmp_path: Path, tokenizer: Any) -> None:
    rows = [{"prompt": f"p {at}", "hint": at if at % 2 else [str(at)]} for at in range(10)]
    words = ("algo=grpo", "data=jsonl", f"data.path={jsonl(tmp_path / 'rows.jsonl', rows)}")
    datasets.load(composed(*words), tokenizer)
    with pytest.raises(SetupError, match="the data's column 'hint' holds values of several kinds") as refused:
        datasets.load(composed(*words, "algo.reward.kind=function", "algo.reward.path=any_module:f"), tokenizer)
    assert "\n" not in str(refused.value)


def test_what_is_no_data_is_refused(tmp_path: Path, tokenizer: Any) -> None:
    (tmp_path / "rows.xlsx").write_text("x")
    (tmp_path / "broken.parquet").write_text("no parquet")
    (tmp_path / "empty").mkdir()
    for path, said in (
        ("null", "names nothing; expected data.path=OWNER/NAME, a folder or a file"),
        (tmp_path / "rows.xlsx", r"ends in '\.xlsx'; expected \.parquet, "),
        (tmp_path / "nowhere", "does not exist; expected a folder, a file or a repository OWNER/NAME"),
    ):
        with pytest.raises(SetupError, match=said):
            preflight(composed("algo=sft", f"data.path={path}"))
    for name in ("broken.parquet", "empty"):
        with pytest.raises(SetupError, match="cannot be read: ") as refused:
            datasets.load(composed("algo=sft", f"data.path={tmp_path / name}"), tokenizer)
        assert "\n" not in str(refused.value)
    with pytest.raises(UsageError, match=r"unknown key 'data\.columns\.query'; expected one of chosen, "):
        composed("algo=sft", "data.columns.query=q")


def test_answers_to_prompts_alone_are_paid_by_another_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "answer_rewards.py").write_text(
        "def like_the_answer(completions, answer, id):\n"
        "    assert all(isinstance(one, int) for one in id)\n"
        "    return [float(len(set(a) & set(b))) for a, b in zip(completions, answer, strict=True)]\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    path = parquet(tmp_path / "rows.parquet", questions())
    own = ("algo.reward.kind=function", "algo.reward.path=answer_rewards:like_the_answer")
    few = ("train.max_steps=2", "train.batch_size=8", "algo.num_generations=4")
    config = composed("algo=grpo", f"data.path={path}", QA[0], *own, *few)
    device = settle(config.hardware)
    trainer = algorithms.build(config, build_parts(config, device), device, tmp_path / "out", [])
    trainer.train()
    assert trainer.state.log_history[0]["rewards/like_the_answer/mean"] > 0
    assert trainer.evaluate()["eval_reward"] > 0
