"""Reads untrusted JSON and YAML: small, and not nested deeply, because parsers, printing and comparing recurse once per
level."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from canary_mlflow.files.source import MAX_DEPTH, MAX_DOCUMENT, MAX_NODES, TooMuch, read_bytes

DEEP = f"is nested more than {MAX_DEPTH} deep; expected at most that"


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text. Raises ValueError, which TooMuch is."""
    try:
        found = json.loads(text)
    except RecursionError:
        raise TooMuch(DEEP) from None
    refuse_deep(found)
    return found


def read_json(path: Path, most: int = MAX_DOCUMENT, within: Path | None = None) -> Any:
    """The value of a JSON file, with a byte order mark or without. Raises OSError and ValueError."""
    return parse_json(read_bytes(path, most, within).decode("utf-8-sig"))


def parse_yaml(text: str, loader: type[yaml.SafeLoader] = yaml.SafeLoader) -> Any:
    """The value of a YAML text. Raises ValueError and YAMLError."""
    refuse_alias_bombs(yaml.parse(text, Loader=loader))
    return yaml.load(text, Loader=loader)


def read_yaml(path: Path) -> Any:
    """The value of a YAML file. Raises OSError, ValueError and YAMLError."""
    return parse_yaml(read_bytes(path).decode("utf-8"))


def refuse_deep(value: Any) -> None:
    """Raise TooMuch for a value that is nested more than MAX_DEPTH deep; does not recurse."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        inner = [one for one in level if isinstance(one, dict | list)]
        if not inner:
            return
        level = [item for one in inner for item in (one.values() if isinstance(one, dict) else one)]
    raise TooMuch(DEEP)


def refuse_alias_bombs(events: Iterable[yaml.Event]) -> None:
    """Raise TooMuch before anything is made of a text that is nested deeply or, with every alias written out, has more
    than MAX_NODES values: ten aliases of ten aliases … are a few lines of text."""
    known: dict[str, tuple[int, int]] = {}  # anchor → values, levels
    opened: list[tuple[str | None, int, int]] = [(None, 0, 0)]
    for event in events:
        if isinstance(event, yaml.CollectionStartEvent):
            opened.append((event.anchor, 1, 1))
            refuse_heavy(0, len(opened) - 1)
            continue
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, values, levels = opened.pop()
        elif isinstance(event, yaml.ScalarEvent):
            anchor, values, levels = event.anchor, 1, 0
        elif isinstance(event, yaml.AliasEvent):
            anchor, (values, levels) = None, known.get(str(event.anchor), (0, 0))
            if any(name == event.anchor for name, _, _ in opened):
                raise TooMuch(f"has *{event.anchor} within &{event.anchor}; expected values without end to be none")
        else:
            continue
        if anchor is not None:
            known[anchor] = values, levels
        name, before, height = opened[-1]
        opened[-1] = name, before + values, max(height, levels + (len(opened) > 1))
        refuse_heavy(before + values, len(opened) - 1 + levels)


def refuse_heavy(values: int, levels: int) -> None:
    """Raise TooMuch for too many of either."""
    if levels > MAX_DEPTH:
        raise TooMuch(DEEP)
    if values > MAX_NODES:
        raise TooMuch(f"has more than {MAX_NODES:,} values with its aliases written out; expected at most that")
