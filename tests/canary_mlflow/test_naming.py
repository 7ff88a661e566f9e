"""A session is named by what was changed, and its headline says what that did."""

from __future__ import annotations

import pytest
from golden_scenes import decided, version

from canary_mlflow.policies import load_policy
from canary_mlflow.reports import naming

GIT = {"git_commit": "a" * 40, "git_dirty": "false", "git_log": "a", "git_title": "longer prompts"}
PACKAGES = {"trl": "1.15.0", "torch": "2.13.0"}
SETTINGS = {"train.learning_rate": "0.03", "data.name": "preferences"}


def made(name: str, *, settings: dict[str, str] | None = None, factor: dict[str, float] | None = None, **env: str):
    return version(name, configuration=SETTINGS | (settings or {}), environment=GIT | PACKAGES | env, factor=factor)


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"settings": {"train.learning_rate": "0.3"}}, "lr 0.03 → 0.3"),
        ({"trl": "1.16.0"}, "trl 1.15 → 1.16"),
        ({"git_commit": "b" * 40, "git_log": "b a", "git_title": "shorter prompts"}, "commit bbbbbbb: shorter prompts"),
        ({"settings": {"train.learning_rate": "3e-1"}, "trl": "1.16.0", "torch": "2.14.0"}, "lr 0.03 → 3e-1 +2"),
        ({"settings": {"fault.name": "nan_batch", "fault.step": "20"}}, "fault nan_batch"),
        ({"git_dirty": "true", "git_diff": "c" * 16}, "uncommitted edits"),
    ],
)
def test_the_change_that_explains_most_is_the_name(changed: dict, name: str) -> None:
    verdict = decided(load_policy("smoke"), made("1"), made("2", **changed)).verdict
    assert naming.name(verdict) == name


def test_what_nobody_recorded_is_not_called_unchanged() -> None:
    assert naming.name(decided(load_policy("smoke"), version("1"), version("2")).verdict) == ""
    assert naming.name(decided(load_policy("smoke"), made("1"), made("2")).verdict) == naming.UNRECORDED
    assert naming.name(decided(load_policy("smoke"), None, made("2")).verdict) == ""


def test_harm_that_is_not_sure_is_not_called_open() -> None:
    old, new = version("1", count=3), version("2", count=1, factor={"eval_loss": 3.0})
    found = decided(load_policy("smoke"), old, new)
    assert found.word == "INCONCLUSIVE"
    assert naming.headline(found) == "v2: the evaluation loss is 199 % worse, but that is not sure yet"
