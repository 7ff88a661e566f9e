"""Turns a record of any data into a row: which columns it has, what they hold, and what the algorithm reads."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from canary_mlflow.training.config import CanaryConfig
from canary_mlflow.training.datasets.chats import as_json
from canary_mlflow.training.datasets.rows import Row
from canary_mlflow.training.errors import SetupError
from canary_mlflow.training.reward_config import reads_columns

PAIR, COMPLETION, JUDGED, MESSAGES, PROMPT = (
    ("prompt", "chosen", "rejected"),
    ("prompt", "completion"),
    ("prompt", "completion", "label"),
    ("messages",),
    ("prompt",),
)
COLUMNS = ("prompt", "chosen", "rejected", "completion", "label", "messages")
READS = {
    "pair": (PAIR,),
    "judged": (JUDGED, PAIR, COMPLETION),
    "answer": (PAIR, COMPLETION, MESSAGES),
    "prompt": (PAIR, COMPLETION, MESSAGES, PROMPT),
}
"""The columns that an algorithm can read, by its `reads`; the first combination that the data have is used."""


@dataclass(frozen=True, kw_only=True)
class Reader:
    """Makes rows from records that all have the same columns."""

    columns: tuple[str, ...]  # one of those above
    algo: str
    reads: str
    keeps: bool  # whether to keep the other columns, for a reward function

    def row(self, record: Mapping[str, Any], where: str) -> Row:
        """The row of a record. Raises SetupError, with a message that begins with `where`."""
        prompt, chosen, rejected = self._texts(record, where)
        chat = not isinstance(prompt, str)
        for name, value in (("chosen", chosen), ("rejected", rejected)):
            if value and isinstance(value, str) == chat:
                raise SetupError(
                    f"{where}: {name} is no {'chat' if chat else 'text'}, but prompt is; expected one kind"
                )
        others = {key: value for key, value in record.items() if key not in COLUMNS and value is not None}
        kept = others if self.keeps else {key: others[key] for key in ("tools",) if key in others and self._has_tools}
        if not isinstance(kept.get("tools", ""), str):
            kept = {**kept, "tools": json.dumps(kept["tools"])}  # a table would give each tool the keys of all tools
        first, good, bad = (as_json(one) if chat and one else one or "" for one in (prompt, chosen, rejected))
        return Row(first, good, bad, chat=chat, others=as_json(kept) if kept else "")

    @property
    def _has_tools(self) -> bool:
        """Whether the algorithm's trainer shows tools to the template: TRL's trainers do, unless they draw answers."""
        return self.reads != "prompt"

    def _texts(self, record: Mapping[str, Any], where: str) -> tuple[Any, Any, Any]:
        """Prompt and answers, each a text or a list of messages; a missing answer is ""."""
        if self.columns == MESSAGES:
            return _split(self._messages(record, where), self.reads, where)
        given = [self._value(record, name, where) for name in self.columns if name != "label"]
        if self.columns == PAIR:
            return _pair(given[0], given[1], given[2], where)
        prompt = _as_prompt(given[0], given[-1])
        if self.columns == PROMPT:
            return prompt, "", ""
        answer = _as_answer(given[1], prompt)
        if self.columns == JUDGED and not self._label(record, where):
            return prompt, "", answer
        return prompt, answer, ""

    def _value(self, record: Mapping[str, Any], name: str, where: str) -> Any:
        if name == "prompt" and record.get(name) is None and _is_chat(record.get("chosen")):
            return ""  # the chats of a pair begin with it
        if name not in record:
            raise SetupError(f"{where}: no column {name!r}; found {named(record)}; expected {wanted(self.reads)}")
        value = record[name]
        if _is_chat(value):
            return _checked(value, name, where)
        if not isinstance(value, str):
            raise SetupError(f"{where}: {name} is {kind_of(value)}; expected a string, or a list of messages")
        if not value.strip():
            raise SetupError(f"{where}: {name} is empty; expected some text")
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise SetupError(f"{where}: {name} holds half a surrogate pair; expected whole characters") from error
        return value

    def _messages(self, record: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
        value: Any = record.get("messages")
        if not _is_chat(value):
            raise SetupError(f"{where}: messages is {kind_of(value)}; expected a list of messages")
        return _checked(value, "messages", where)

    def _label(self, record: Mapping[str, Any], where: str) -> bool:
        label = record.get("label")
        if not isinstance(label, (bool, int)) or label not in (0, 1):
            raise SetupError(f"{where}: label is {label!r}; expected true for a good answer, false for a bad one")
        return bool(label)


def reader_of(config: CanaryConfig, columns: Iterable[str], where: str) -> Reader:
    """The reader of records with these columns, for the algorithm. Raises SetupError if there is nothing it can
    read."""
    found, reads = set(columns), config.algo.reads
    algo = config.algo.name
    keeps = reads_columns(config.algo.scored_by())
    for wanted_columns in READS[reads]:
        needed = set(wanted_columns) - ({"prompt"} if wanted_columns == PAIR else set())
        if needed <= found:
            return Reader(columns=wanted_columns, algo=algo, reads=reads, keeps=keeps)
    if reads == "pair" and {"completion", "messages"} & found:
        has = "completion" if "completion" in found else "chat"
        raise SetupError(
            f"{where}: a {has} without a rejected answer, but algo={algo} compares two; expected columns prompt, "
            "chosen, rejected; or use algo=sft or algo=ppo"
        )
    absent = next((name for name in PAIR if name not in found), "prompt")
    raise SetupError(
        f"{where}: no column {absent!r}; found {named(found)}; expected {wanted(reads)}; with data=hub, "
        "data.columns.prompt=COLUMN and the like say which is which"
    )


def wanted(reads: str = "answer") -> str:
    """The columns that would do, in words."""
    return "; or ".join(", ".join(columns) for columns in READS[reads])


def named(columns: Iterable[Any]) -> str:
    """The existing columns, in words."""
    return ", ".join(sorted(map(str, columns))) or "none"


def kind_of(value: object) -> str:
    """What a JSON value is, in words that follow "is"."""
    if value == []:
        return "an empty list"
    names = {list: "a list", dict: "an object", bool: "a boolean", int: "a number", float: "a number"}
    return "null" if value is None else names.get(type(value), "a string")


def _pair(prompt: Any, chosen: Any, rejected: Any, where: str) -> tuple[Any, Any, Any]:
    """Prompt and answers of a pair. If the answers are whole chats, the prompt is their common beginning, whatever the
    prompt column says."""
    if _is_chat(chosen) and _is_chat(rejected) and chosen[0]["role"] != "assistant":
        shared = 0
        while shared < min(len(chosen), len(rejected)) and chosen[shared] == rejected[shared]:
            shared += 1
        if not 0 < shared < min(len(chosen), len(rejected)):
            raise SetupError(
                f"{where}: chosen and rejected share no prompt, or all; expected chats with two last answers"
            )
        return chosen[:shared], chosen[shared:], rejected[shared:]
    if not prompt:
        raise SetupError(f"{where}: no column 'prompt', and chosen begins with an answer; expected the chat before it")
    prompt = _as_prompt(prompt, chosen)
    return prompt, _as_answer(chosen, prompt), _as_answer(rejected, prompt)


def _split(messages: list[dict[str, Any]], reads: str, where: str) -> tuple[Any, Any, Any]:
    """A chat's last answer, and the messages before it."""
    answers = [at for at, one in enumerate(messages) if one["role"] == "assistant"]
    if reads == "prompt" and (not answers or answers[-1] < len(messages) - 1):
        return messages, "", ""
    if not answers or answers[-1] == 0:
        raise SetupError(f"{where}: messages have no assistant's answer to a prompt; expected one")
    return messages[: answers[-1]], messages[answers[-1] : answers[-1] + 1], ""


def _as_prompt(prompt: Any, answer: Any) -> Any:
    """The prompt in the form that fits the answer: a text before an answer of messages becomes a user's message."""
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) and _is_chat(answer) else prompt


def _as_answer(answer: Any, prompt: Any) -> Any:
    return [{"role": "assistant", "content": answer}] if isinstance(answer, str) and _is_chat(prompt) else answer


def _is_chat(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and bool(value) and isinstance(value[0], Mapping)


def _checked(messages: Sequence[Any], name: str, where: str) -> list[dict[str, Any]]:
    """The messages, without the keys that a table filled with None; everything else, such as tool calls, stays."""
    found = []
    for number, message in enumerate(messages, start=1):
        here = f"{where}: {name}, message {number}"
        said = (
            {key: value for key, value in message.items() if value is not None} if isinstance(message, Mapping) else {}
        )
        if "role" not in said or not set(said) - {"role", "name"}:  # tool calls and the like need no content
            keys = named(said) if isinstance(message, Mapping) else kind_of(message)
            raise SetupError(f"{here} has {keys}; expected role and content")
        if not isinstance(said["role"], str):
            raise SetupError(f"{here}: role is {kind_of(said['role'])}; expected a string")
        if not isinstance(said.get("content", ""), (str, list)):
            raise SetupError(f"{here}: content is {kind_of(said['content'])}; expected a string")
        found.append(said)
    return found
