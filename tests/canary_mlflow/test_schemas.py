"""`canary schema`: every command with --json has one, the files are self-contained, and wrong output is found.

That real outputs are as they say is checked by every test that has a command print some (tests/schemas.py).
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import schemas
from reported import canary

from canary_mlflow.cli import canary as commands
from canary_mlflow.schemas import FOLDER, PRINTED, read, urn

JUDGED = Path(__file__).resolve().parents[1] / "data" / "verdicts" / "block_learned.json"


def printing(group: click.Group, above: str = "") -> Iterator[str]:
    """The commands that take --json."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from printing(command, f"{above}{name} ")
        elif any("--json" in option.opts for option in command.params):
            yield f"{above}{name}"


def test_every_command_that_prints_json_has_a_schema() -> None:
    known = {command for _, by in PRINTED.values() for command in by}
    assert set(printing(commands)) == known


def test_all_are_listed_and_each_is_printed_whole() -> None:
    listed = canary("schema").stdout.splitlines()
    assert [line.split()[0] for line in listed] == [f"{name}/{version}" for name, (version, _) in PRINTED.items()]
    assert {file.stem for file in FOLDER.glob("*.json")} >= {f"{name}-{PRINTED[name][0]}" for name in PRINTED}
    for name in PRINTED:
        found = json.loads(canary("schema", name).stdout)
        assert found["$id"] == urn(name)
        references = [one for one in strings(found) if one.startswith("#/$defs/")]
        assert {one.removeprefix("#/$defs/") for one in references} == set(found.get("$defs", {})), name
        schemas.validator(name)  # is a schema


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from strings(one)
    elif isinstance(value, str):
        yield value


def test_a_command_and_a_version_name_a_schema_too() -> None:
    assert read("gate") == read("decision") == read("decision/1") == read("canary compare")


@pytest.mark.parametrize("name", ["nosuch", "decision/7", "decision/", "../doctor", ""])
def test_another_name_is_refused_in_a_line(name: str) -> None:
    result = canary("schema", name)
    assert result.exit_code == 2
    assert "expected" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_an_output_that_is_not_as_its_schema_says_is_found() -> None:
    from dataclasses import replace

    from canary_mlflow.reports.decision import decision_from_dict
    from canary_mlflow.reports.study import verdict_json

    made = replace(decision_from_dict(json.loads(JUDGED.read_text(encoding="utf-8"))), store="sqlite:///x.db")
    plain = json.loads(verdict_json(made))
    schemas.check("gate", plain)
    for path, wrong in ((("exit_code",), 2), (("verdict", "outcome"), "MAYBE"), (("card", "rows", 0, "limit"), 0.1),
                        (("more",), 1), (("verdict", "checks", 0, "more"), 1), (("schema",), "other")):  # fmt: skip
        other = copy.deepcopy(plain)
        place = other
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = wrong
        with pytest.raises(AssertionError):
            schemas.check("gate", other)
    del plain["card"]
    with pytest.raises(AssertionError, match="card"):
        schemas.check("gate", plain)
