"""All --json output that a test makes a command print is checked against the command's schema, to the last key."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

from click.testing import CliRunner, Result

from canary_mlflow.schemas import PRINTED, read, urn


def listen() -> None:
    """Check the outputs of every command that a test invokes from now on."""
    invoke = CliRunner.invoke

    def checked(self: CliRunner, cli: Any, args: Any = None, *rest: Any, **options: Any) -> Result:
        result = invoke(self, cli, args, *rest, **options)
        if isinstance(args, list | tuple) and "--json" in args and result.stdout.startswith(("{", "[")):
            check(command_of(args), json.loads(result.stdout))
        return result

    CliRunner.invoke = checked  # type: ignore[method-assign]


def command_of(words: Sequence[object]) -> str:
    """The command's name; of a group with the command below."""
    first, second = [*map(str, words), ""][:2]
    return f"{first} {second}" if any(f"{first} {second}" in by for _, by in PRINTED.values()) else first


def check(command: str, value: Any) -> None:
    """Raise AssertionError for an output that is not what the command's schema says, or has a key more."""
    named = [name for name, (_, by) in PRINTED.items() if command in by]
    own = value.get("schema") if isinstance(value, dict) else None
    names = [name for name in named if own in (None, urn(name))]
    assert names, f"canary {command} --json says schema {own!r}; known for it: {named}"
    problems = faults(names[0], value)
    assert not problems, f"canary {command} --json is not as {names[0]}: {problems[:3]}"


def faults(name: str, value: Any) -> list[str]:
    """What is wrong, in words; none where nothing is."""
    found = validator(name).iter_errors(value)
    return [f"{'/'.join(map(str, one.absolute_path))}: {one.message[:300]}" for one in found]


@cache
def validator(name: str) -> Any:
    """Readers leave out keys that they do not know; a test does not."""
    from jsonschema import Draft202012Validator

    schema = read(name)
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(strict(schema))


def strict(schema: Any) -> Any:
    """The same with no key but those that it names."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {"additionalProperties": False} if "properties" in schema and "required" in schema else {}
    return {**closed, **{key: strict(one) for key, one in schema.items()}}
