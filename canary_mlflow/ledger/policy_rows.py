"""Rows that set a policy for the models of a pattern, and which of them is in force for a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from canary_mlflow.ledger.canonical import digest
from canary_mlflow.ledger.install import Guarded
from canary_mlflow.ledger.rows import Kind, Record, Row


def policy_record(
    pattern: str, content: Mapping[str, Any], reason: str, actor: str, times: Mapping[str, str], workspace: str
) -> Record:
    """What such a row says. It is about no model: a model may be called as the pattern is. `times`: of clock.stamp."""
    return Record(
        kind=Kind.POLICY, workspace=workspace, model="", version=0, version_created=0, alias="", word="policy",
        grants=False, moves=False,
        facts={
            "pattern": pattern, "policy": str(content["name"]), "policy_digest": digest(content), "content": content,
            "reason": reason, "actor": actor, **times,
        },
    )  # fmt: skip


@lru_cache(maxsize=256)
def said_by(row: Row) -> Mapping[str, Any]:
    """What the row says; nothing where its text is none. An audit asks the same few rows at every verdict."""
    try:
        found = row.facts
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def pattern_of(row: Row) -> str:
    """The models that the row is about; empty where its text says none."""
    return str(said_by(row).get("pattern", ""))


def matches(pattern: str, model: str) -> bool:
    """`*` is any text, `?` one character; case counts."""
    return Guarded(alias="", models=pattern).pattern.fullmatch(model) is not None


def in_force_row(rows: Iterable[Row], model: str) -> Row | None:
    """The row by which a model is judged: one with its exact name, else the pattern with the most characters that are
    neither `*` nor `?`; among equals the newest. None where no pattern matches."""
    matching = [row for row in rows if row.kind == Kind.POLICY and matches(pattern_of(row), model)]
    return max(matching, key=lambda row: (*specificity(pattern_of(row)), row.seq), default=None)


def specificity(pattern: str) -> tuple[bool, int]:
    """How much a pattern says: whether it is a whole name, and how many characters of one."""
    letters = sum(sign not in "*?" for sign in pattern)
    return letters == len(pattern), letters
