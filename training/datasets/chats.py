"""Chats: lists of messages, written out by the tokenizer's own template, and cut to the token budget."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from canary_mlflow.training.errors import SetupError, first_line

if TYPE_CHECKING:
    from canary_mlflow.training.datasets.rows import Row

Messages = list[dict[str, Any]]
ROUNDS = 4  # of cutting: a text cut to n tokens may have one more token once it is in the template


def ids_of(prompts: Sequence[str | Messages], tokenizer: Any) -> list[list[int]]:
    """The tokens of prompts, up to where an answer begins. Raises SetupError for a chat that the template refuses."""
    if all(isinstance(one, str) for one in prompts):
        return [list(ids) for ids in tokenizer(list(prompts))["input_ids"]]
    return [_rendered(list(one), tokenizer, None, answered=False) for one in prompts]  # type: ignore[arg-type]


def fit_chat(row: Row, tokenizer: Any, max_prompt: int, max_length: int) -> Row | None:
    """Cut a chat to the token budget; None if not even its last message fits.

    The prompt loses its first turns (never the system's message), then the beginning of its last message; the answers
    lose their end. Content that is not text stays whole.
    """
    tools = json.loads(row.others or "{}").get("tools")
    tools = json.loads(tools) if isinstance(tools, str) else tools
    prompt = _fit_prompt(json.loads(row.prompt), tokenizer, max_prompt, tools)
    if prompt is None:
        return None
    used = len(_rendered(prompt, tokenizer, tools, answered=False))
    answers = [
        _fit_answer(prompt, json.loads(answer), tokenizer, tools, max_length - used) if answer else ""
        for answer in (row.chosen, row.rejected)
    ]
    if None in answers:
        return None
    return row._replace(prompt=as_json(prompt), chosen=answers[0] or "", rejected=answers[1] or "")


def _fit_prompt(prompt: Messages, tokenizer: Any, limit: int, tools: Any) -> Messages | None:
    for _ in range(len(prompt) + ROUNDS):
        over = len(_rendered(prompt, tokenizer, tools, answered=False)) - limit
        if over <= 0:
            return prompt
        said = [at for at, message in enumerate(prompt) if message["role"] != "system"]
        users = [at for at in said[1:] if prompt[at]["role"] == "user"]
        if users:  # templates expect a user's message first
            prompt = [one for at, one in enumerate(prompt) if at < said[0] or at >= users[0]]
            continue
        last = _shortened(prompt[-1], tokenizer, over, keep_end=True)
        if last is None:
            return None
        prompt = [*prompt[:-1], last]
    return None


def _fit_answer(prompt: Messages, answer: Messages, tokenizer: Any, tools: Any, room: int) -> str | None:
    for _ in range(ROUNDS):
        whole = _rendered([*prompt, *answer], tokenizer, tools, answered=True)
        over = len(whole) - len(_rendered(prompt, tokenizer, tools, answered=False)) - room
        if over <= 0:
            return as_json(answer)
        last = _shortened(answer[-1], tokenizer, over, keep_end=False)
        if last is None:
            return None
        answer = [*answer[:-1], last]
    return None


def _shortened(message: dict[str, Any], tokenizer: Any, by: int, *, keep_end: bool) -> dict[str, Any] | None:
    """The message without `by` tokens of its text; None if it has no more than those."""
    content = message.get("content")
    ids = tokenizer(content, add_special_tokens=False)["input_ids"] if isinstance(content, str) else []
    if len(ids) <= by:
        return None
    return {**message, "content": tokenizer.decode(ids[by:] if keep_end else ids[:-by])}


def _rendered(messages: Messages, tokenizer: Any, tools: Any, *, answered: bool) -> list[int]:
    if not tokenizer.chat_template:
        raise SetupError(
            "the data are chats (lists of messages), and the model's tokenizer has no chat template; expected a model "
            "that has one, such as model=qwen2.5-0.5b, model.chat_template=FILE, or data of texts"
        )
    try:
        found = tokenizer.apply_chat_template(
            messages, tools=tools or None, add_generation_prompt=not answered, tokenize=True, return_dict=False
        )
    except Exception as error:  # a template is a program by the model's author
        roles = ", ".join(message["role"] for message in messages)
        raise SetupError(f"the tokenizer's chat template refuses a chat of {roles}: {first_line(error)}") from error
    return list(found)


def as_json(value: Any) -> str:
    """How a row keeps messages and other columns."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), default=str)
