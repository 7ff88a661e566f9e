"""Rows that set a policy for the models that match a pattern, and which row is in force for a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from canary_mlflow.ledger.chain import Kind, Record, Row, digest
from canary_mlflow.ledger.install import Guarded


def policy_record(pattern: str, content: Mapping[str, Any], reason: str, actor: str) -> Record:
    """The record of such a row. Its model column is empty, as a model may have the pattern's name."""
    facts = {
        "pattern": pattern,
        "policy": str(content["name"]),
        "policy_digest": digest(content),
        "content": content,
        "reason": reason,
        "actor": actor,
    }
    return Record(kind=Kind.POLICY, word="policy", facts=facts)


@lru_cache(maxsize=256)
def said_by(row: Row) -> Mapping[str, Any]:
    """What the row says; empty if its text cannot be read. Cached, as an audit asks the same few rows at every
    verdict."""
    try:
        found = row.facts
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def pattern_of(row: Row) -> str:
    """The pattern of the models that the row is about; empty if its text has none."""
    return str(said_by(row).get("pattern", ""))


def matches(pattern: str, model: str) -> bool:
    """Whether a pattern matches a model's name: `*` is any text, `?` one character; case counts."""
    return Guarded(alias="", models=pattern).pattern.fullmatch(model) is not None


def in_force_row(rows: Iterable[Row], model: str) -> Row | None:
    """The row by which a model is judged: one with its exact name, else the pattern with the most characters that are
    neither `*` nor `?`; among equals the newest. None if no pattern matches."""
    matching = [row for row in rows if row.kind == Kind.POLICY and matches(pattern_of(row), model)]
    return max(matching, key=lambda row: (*specificity(pattern_of(row)), row.seq), default=None)


def specificity(pattern: str) -> tuple[bool, int]:
    """How specific a pattern is: whether it is a whole name, and how many characters of a name it has."""
    letters = sum(sign not in "*?" for sign in pattern)
    return letters == len(pattern), letters
