"""What reports say, word for word: `pytest tests/canary_mlflow/test_golden.py --write-golden` writes it anew."""

from __future__ import annotations

from pathlib import Path

import pytest
from golden_scenes import FORMS, scenes

from canary_mlflow.reports.decision import Decision

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
SCENES = dict(scenes())


@pytest.mark.parametrize("scene", SCENES)
def test_a_report_says_what_it_said(scene: str, request: pytest.FixtureRequest) -> None:
    decision: Decision = SCENES[scene]
    for suffix, write in FORMS.items():
        file, text = GOLDEN / f"{scene}.{suffix}", write(decision).rstrip() + "\n"
        if request.config.getoption("--write-golden"):
            GOLDEN.mkdir(exist_ok=True)
            file.write_text(text, encoding="utf-8")
        assert file.read_text(encoding="utf-8") == text, file.name


def test_nothing_else_is_kept() -> None:
    names = {f"{scene}.{suffix}" for scene in SCENES for suffix in FORMS}
    assert {file.name for file in GOLDEN.iterdir()} == names
