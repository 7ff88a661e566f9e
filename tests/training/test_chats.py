"""Chats: lists of messages as data of every algorithm, through the tokenizer's own template."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from canaries import a_config
from transformers import PrinterCallback, set_seed

from canary_mlflow.training import algorithms, datasets
from canary_mlflow.training.assets.tiny import tiny_model_folder
from canary_mlflow.training.command_line import parse
from canary_mlflow.training.compose import check, register_schemas
from canary_mlflow.training.config import CanaryConfig
from canary_mlflow.training.datasets import jsonl
from canary_mlflow.training.datasets.chats import fit_chat, ids_of
from canary_mlflow.training.datasets.rows import Row
from canary_mlflow.training.devices import settle
from canary_mlflow.training.errors import SetupError
from canary_mlflow.training.loading import load_tokenizer
from canary_mlflow.training.parts import build_parts, prepare_inputs
from canary_mlflow.training.preflight import preflight
from canary_mlflow.training.workload import describe

TEMPLATE = (
    "{% if tools %}T{{ tools | length }} {% endif %}"
    "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}{{ eos_token if m.role == 'assistant' }}\n{% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}"
)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def chats(path: Path, count: int = 24) -> Path:
    """Whole chats of pairs, as preference data on the hub have them."""
    rows = [
        {"chosen": [user(f"why {at}"), assistant(f"thus {at}")], "rejected": [user(f"why {at}"), assistant("no")]}
        for at in range(count)
    ]
    return lines(path, *rows)


def lines(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def talking(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded model with a chat template."""
    folder = tmp_path_factory.mktemp("talking") / "model"
    shutil.copytree(tiny_model_folder(), folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture(scope="module")
def tokenizer(talking: Path) -> Any:
    return load_tokenizer(talking)


def config_of(algo: str, data: Path, model: Path, *words: str) -> CanaryConfig:
    register_schemas()
    few = ["hardware=cpu", "tier=smoke", "train.max_steps=2", "tier.eval_rows=4", "train.warmup_steps=0"]
    given = [f"algo={algo}", "data=jsonl", f"data.path={data}", "model=local", f"model.path={model}"]
    return check(parse([*given, "model.learning_rate={sft: 1e-3, dpo: 1e-3, ppo: 1e-3}", *few, *words]))[0]


@pytest.mark.parametrize("algo", ["sft", "dpo", "kto", "reward", "grpo", "rloo", "ppo"])
def test_every_algorithm_trains_on_chats(algo: str, talking: Path, tmp_path: Path) -> None:
    groups = {"grpo": ["train.batch_size=4", "algo.num_generations=2"], "ppo": ["train.batch_size=4"]}
    config = config_of(
        algo, chats(tmp_path / "chats.jsonl"), talking, *groups.get("grpo" if algo == "rloo" else algo, [])
    )
    set_seed(1)
    device = settle(config.hardware)
    parts = build_parts(config, device)
    trainer = algorithms.build(config, parts, device, tmp_path / "out", [])
    trainer.remove_callback(PrinterCallback)
    shown = seen_by(trainer, parts)
    trainer.train()
    assert any("loss" in row for row in trainer.state.log_history)
    assert f"u:{parts.train_dataset[0]['prompt'][0]['content']}\na:" in shown, shown


def seen_by(trainer: Any, parts: Any) -> str:
    """A text of the data as the trainer gives it to the model."""
    decode = parts.tokenizer.decode
    if hasattr(trainer, "train_prompts"):
        return str(decode(trainer.train_prompts.rows[0]))
    if hasattr(trainer, "reward_funcs"):
        ids, *_ = trainer._tokenize_prompts([parts.train_dataset[0]["prompt"]])
        return str(decode(ids[0]))
    row = trainer.train_dataset[0]
    name = next(key for key in ("input_ids", "prompt_ids", "chosen_ids", "prompt_input_ids") if key in row)
    texts = [str(decode(one[name])) for one in trainer.train_dataset]
    wanted = parts.train_dataset[0]["prompt"][0]["content"]
    return next((text for text in texts if f"{wanted}\n" in text), texts[0])


def test_a_tokenizer_without_a_template_says_so(tmp_path: Path) -> None:
    config = a_config("jsonl", chats(tmp_path / "chats.jsonl"))
    datasets.check(config)
    with pytest.raises(SetupError, match="has no chat template; expected a model that has one") as refused:
        prepare_inputs(config)
    assert "\n" not in str(refused.value)


def test_a_template_of_ones_own_stands_in_and_is_part_of_the_work(tmp_path: Path) -> None:
    data, template = chats(tmp_path / "chats.jsonl"), tmp_path / "own.jinja"
    config = a_config("jsonl", data)
    config = replace(config, model=replace(config.model, chat_template=str(template)))
    with pytest.raises(SetupError, match=r"own\.jinja cannot be read .*; expected a Jinja file"):
        preflight(config)
    device = settle(config.hardware)
    works = []
    for text in (TEMPLATE, TEMPLATE + " "):
        template.write_text(text)
        preflight(config)
        inputs = prepare_inputs(config)
        assert inputs.tokenizer.chat_template == text
        works.append(describe(config, inputs, device))
    assert {key for key in works[0] if works[0][key] != works[1][key]} == {"chat_template"}
    assert "chat_template" not in describe(a_config("jsonl", data), inputs, device)


def read(path: Path, algo: str = "dpo") -> list[Row]:
    return list(jsonl.read_rows(a_config("jsonl", path, algo=algo)))


def said(text: str) -> Any:
    return json.loads(text) if text else text


def test_a_chat_is_read_in_each_way_it_is_written(tmp_path: Path) -> None:
    pair = read(chats(tmp_path / "a.jsonl", 1))[0]
    assert [said(text) for text in pair[:3]] == [[user("why 0")], [assistant("thus 0")], [assistant("no")]]
    explicit = {"prompt": [user("why 0")], "chosen": [assistant("thus 0")], "rejected": "no"}
    assert read(lines(tmp_path / "b.jsonl", explicit))[0] == pair
    with_text = {"prompt": "why 0", "chosen": [assistant("thus 0")], "rejected": [assistant("no")]}
    assert read(lines(tmp_path / "c.jsonl", with_text))[0] == pair
    messages = {"messages": [{**user("a"), "name": None}, assistant("b"), user("c"), assistant("d"), user("e")]}
    row = read(lines(tmp_path / "d.jsonl", messages), "sft")[0]
    assert (said(row.prompt), said(row.chosen)) == ([user("a"), assistant("b"), user("c")], [assistant("d")])
    row = read(tmp_path / "d.jsonl", "ppo")[0]
    assert (said(row.prompt)[-1], row.chosen) == (user("e"), "")


@pytest.mark.parametrize(
    ("row", "algo", "expected"),
    [
        ({"messages": [user("a"), assistant("b")]}, "dpo", "a chat without a rejected answer, but algo=dpo compares"),
        ({"messages": [user("a")]}, "sft", "messages have no assistant's answer to a prompt; expected one"),
        (
            {"messages": [{"from": "human", "value": "a"}]},
            "sft",
            "message 1 has from, value; expected role and content",
        ),
        ({"messages": "a"}, "sft", "messages is a string; expected a list of messages"),
        ({"messages": []}, "sft", "messages is an empty list; expected a list of messages"),
        ({"chosen": [user("a"), assistant("b")], "rejected": [user("c"), assistant("d")]}, "dpo", "share no prompt"),
        (
            {"chosen": [assistant("b")], "rejected": [assistant("d")]},
            "dpo",
            "chosen begins with an answer; expected the",
        ),
        ({"messages": [{**user("a"), "content": 5}]}, "ppo", "content is a number; expected a string"),
        ({"messages": [{**user("a"), "content": {"text": "a"}}]}, "ppo", "content is an object; expected a string"),
        ({"messages": [{**user("a"), "role": 5}]}, "ppo", "message 1: role is a number; expected a string"),
        ({"messages": [user("a"), {"role": "user", "content": None}]}, "ppo", "message 2 has role; expected role and"),
    ],
)
def test_a_chat_that_does_not_fit_is_refused_in_one_line(row: Any, algo: str, expected: str, tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=expected) as refused:
        read(lines(tmp_path / "a.jsonl", row), algo)
    assert "\n" not in str(refused.value)
    assert "line 1: " in str(refused.value)


def test_texts_and_chats_do_not_stand_in_one_file(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", {"prompt": "a"}, {"prompt": [user("b")]})
    with pytest.raises(SetupError, match="line 2: messages, unlike the lines before; expected one kind"):
        read(path, "ppo")


def chat_row(*prompt: Any, chosen: str = "", others: str = "") -> Row:
    answer = json.dumps([assistant(chosen)]) if chosen else ""
    return Row(json.dumps(list(prompt)), answer, "", chat=True, others=others)


def test_a_long_chat_loses_its_first_turns_and_keeps_what_the_system_says(tokenizer: Any) -> None:
    system = {"role": "system", "content": "be kind"}
    turns = [message for at in range(20) for message in (user(f"question {at}"), assistant(f"answer {at}"))]
    row = chat_row(system, *turns, user("the last"), chosen="word " * 200)
    fitted = fit_chat(row, tokenizer, max_prompt=64, max_length=96)
    assert fitted is not None
    prompt = said(fitted.prompt)
    assert (prompt[0], prompt[1]["role"], prompt[-1]) == (system, "user", user("the last"))
    assert 1 < len(prompt) < 20
    whole = tokenizer.apply_chat_template([*prompt, *said(fitted.chosen)], return_dict=False)
    assert 80 < len(whole) <= 96


def test_the_last_message_loses_its_beginning_and_without_room_the_chat_is_left_out(tokenizer: Any) -> None:
    row = chat_row(user("one two three four five six seven eight nine ten eleven twelve thirteen"))
    fitted = fit_chat(row, tokenizer, max_prompt=24, max_length=64)
    assert fitted is not None
    assert said(fitted.prompt)[0]["content"].endswith("thirteen")
    assert len(ids_of([said(fitted.prompt)], tokenizer)[0]) <= 24
    assert fit_chat(row, tokenizer, max_prompt=3, max_length=64) is None


def test_chats_of_which_none_fits_are_refused(tokenizer: Any, tmp_path: Path) -> None:
    config = a_config("jsonl", chats(tmp_path / "a.jsonl"), algo="ppo")
    config = replace(config, algo=replace(config.algo, max_prompt_length=3))
    with pytest.raises(
        SetupError, match=r"dropping 24 chats whose last message does not .*; raise algo\.max_prompt_length"
    ):
        datasets.load(config, tokenizer)


def test_tools_reach_the_template_and_are_left_alone(tokenizer: Any, tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "add", "arguments": {"a": 1}}}]}
    talk = [user("1 + 1"), call, {"role": "tool", "content": "2"}, assistant("two")]
    path = lines(tmp_path / "a.jsonl", *[{"messages": talk, "tools": tools}] * 6)
    train, _, _ = datasets.load(a_config("jsonl", path, algo="sft"), tokenizer)
    assert train[0]["prompt"][1]["tool_calls"] == call["tool_calls"]
    assert json.loads(train[0]["tools"]) == tools


def test_a_template_that_refuses_a_chat_is_named(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer, "chat_template", "{{ raise_exception('roles must take turns') }}")
    with pytest.raises(SetupError, match="chat template refuses a chat of user, user: roles must take turns"):
        fit_chat(chat_row(user("a"), user("b")), tokenizer, 64, 64)


def test_a_function_is_given_messages_as_trl_gives_them(
    talking: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "chat_rewards.py").write_text(
        "def polite(prompts, completions, chosen):\n"
        "    assert prompts[0][-1]['role'] == 'user' and chosen[0][0]['role'] == 'assistant'\n"
        "    return [float(len(answer[0]['content'])) for answer in completions]\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    own = ["algo.reward.kind=function", "algo.reward.path=chat_rewards:polite"]
    for algo, more in (("grpo", ["algo.num_generations=2"]), ("ppo", [])):
        config = config_of(algo, chats(tmp_path / "a.jsonl"), talking, "train.batch_size=4", *own, *more)
        device = settle(config.hardware)
        trainer = algorithms.build(config, build_parts(config, device), device, tmp_path / algo, [])
        trainer.remove_callback(PrinterCallback)
        trainer.train()
        assert trainer.evaluate()["eval_reward"] >= 0
