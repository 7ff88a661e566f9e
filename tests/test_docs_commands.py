"""Each command of each page: it is one, with options that it has, and is run by a test or has a reason why not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from documented import EXAMPLES, READ, Shown, fault, overrides, shown
from test_docs import unknown_tests

from canary_mlflow.training.command_line import expand, parse
from canary_mlflow.training.compose import check, register_schemas

FOLLOWED = "docs/tutorial.md"  # by test_tutorial.py


def test_each_command_is_one_and_has_its_options() -> None:
    every = list(shown())
    assert len(every) > 200
    assert [f"{one.page}: {one.text}: {found}" for one in every if (found := fault(one))] == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("canary nope", "no command nope"),
        ("canary gate m 1 --polciy x", "No such option"),
        ("canary gate", "model is missing"),
        ("canary audit nope", "no command nope"),
        ("A=1 make nope", "no target nope"),
        ("mlflow run . -P nope=1", "no parameter nope"),
        ("python benchmarks/nope.py", "no nope.py"),
        ("python benchmarks/size.py --nope", "no option --nope"),
        ("canary gate MODEL 2 --top-up", ""),
        ("canary … --json", ""),
    ],
)
def test_what_is_none_is_found(text: str, found: str) -> None:
    assert fault(Shown("page.md", text, alone=True)).startswith(found)
    assert bool(fault(Shown("page.md", text, alone=True))) is bool(found)


def test_each_is_run_by_a_test_or_has_a_reason(tmp_path: Path) -> None:
    ways = (*READ, *EXAMPLES)
    left = [
        one
        for one in shown()
        if one.alone and one.page != FOLLOWED and not any(re.match(rf"{way}\b", " ".join(one.words)) for way in ways)
    ]
    assert left == []
    used = [way for way in ways if any(" ".join(one.words).startswith(way) for one in shown())]
    assert sorted(used) == sorted(ways)
    (tmp_path / "reasons.md").write_text("\n".join(EXAMPLES.values()))
    assert list(unknown_tests(tmp_path / "reasons.md")) == []


def test_the_settings_that_are_shown_compose() -> None:
    register_schemas()
    every = {tuple(words) for one in shown() if (words := overrides(one))}
    assert len(every) > 5
    for words in every:
        check(parse(expand(words)))
