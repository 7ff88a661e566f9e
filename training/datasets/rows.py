"""Preference rows: their order, how they are cut to the token budget, and the digest of those used."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from canary_mlflow.training.datasets.chats import fit_chat


class Row(NamedTuple):
    """One preference pair. `rejected` is "" if the data have a single completion per prompt, and both answers are "" if
    they have only prompts. For a chat, each text is its messages as JSON."""

    prompt: str
    chosen: str
    rejected: str
    chat: bool = False
    others: str = ""  # the other columns as a JSON object: those that a reward function reads, and a chat's tools


@dataclass(frozen=True, kw_only=True)
class RawData:
    """What a source offers: rows in the order in which they are taken, and the number of pairs it could not use."""

    train: Iterable[Row]
    held_out: Iterable[Row]
    unusable: int = 0


@dataclass(frozen=True, kw_only=True)
class Taken:
    """The rows that were kept, in order, with counts of what happened to the rest."""

    rows: tuple[Row, ...]
    identical: int
    shortened: int
    too_long: int = 0  # chats of which not even the last message fits


def draw(*key: object) -> int:
    """Return a 64-bit number that depends only on the key, not on machine, Python version or call order."""
    text = "\x1f".join(str(part) for part in key)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def shuffled(count: int, key: str) -> list[int]:
    """Return 0..count-1 in an order fixed by the key."""
    return sorted(range(count), key=lambda index: draw(key, index))


def split_held_out(rows: Sequence[Row], held_out: int, key: str) -> tuple[list[Row], list[Row]]:
    """Split rows at random but repeatably into training and held-out ones, at most a fifth held out."""
    order = shuffled(len(rows), key)
    count = min(held_out, max(1, len(rows) // 5))
    return [rows[i] for i in order[count:]], [rows[i] for i in order[:count]]


def take(rows: Iterable[Row], count: int, tokenizer: Any, max_prompt: int, max_length: int) -> Taken:
    """Keep the first `count` rows that fit `max_length` tokens and still differ in their two answers.

    Prompts longer than `max_prompt` tokens lose their beginning; answers lose their end beyond the remaining tokens,
    with one place kept for the end-of-text token. A pair whose answers are then equal teaches nothing: it is left out
    and counted, as is a chat that does not fit.
    """
    kept: list[Row] = []
    identical = shortened = too_long = 0
    for row in rows:
        if len(kept) == count:
            break
        fitted = (fit_chat if row.chat else fit)(row, tokenizer, max_prompt, max_length)
        if fitted is None:
            too_long += 1
            continue
        if row.chosen and fitted.chosen == fitted.rejected:
            identical += 1
            continue
        shortened += fitted != row
        kept.append(fitted)
    return Taken(rows=tuple(kept), identical=identical, shortened=shortened, too_long=too_long)


def fit(row: Row, tokenizer: Any, max_prompt: int, max_length: int) -> Row:
    """Cut a row to the token budget: the prompt from the left, the answers from the right."""
    prompt, used = _cut(row.prompt, tokenizer, max_prompt, keep_end=True)
    room = max(1, max_length - used - 1)
    chosen, rejected = (_cut(text, tokenizer, room, keep_end=False)[0] for text in (row.chosen, row.rejected))
    return row._replace(prompt=prompt, chosen=chosen, rejected=rejected)


def _cut(text: str, tokenizer: Any, limit: int, *, keep_end: bool) -> tuple[str, int]:
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=tokenizer.is_fast, verbose=False)
    ids = encoded["input_ids"]
    if len(ids) <= limit:
        return text, len(ids)
    if not tokenizer.is_fast:
        return tokenizer.decode(ids[-limit:] if keep_end else ids[:limit]), limit
    offsets = encoded["offset_mapping"]
    return (text[offsets[-limit][0] :] if keep_end else text[: offsets[limit - 1][1]]), limit


def digest(*parts: Iterable[Row]) -> str:
    """Return the sha256 of the rows in order, part by part: the same on every machine for the same data."""
    sha = hashlib.sha256()
    for line in _canonical(parts):
        sha.update(line.encode("utf-8"))
    return sha.hexdigest()


def _canonical(parts: Iterable[Iterable[Row]]) -> Iterator[str]:
    for number, rows in enumerate(parts):
        yield f"part {number}\n"
        for row in rows:
            yield (
                json.dumps(list(row if row.chat or row.others else row[:3]), ensure_ascii=False, separators=(",", ":"))
                + "\n"
            )
