"""Which files are a run's own, and which may stand for a version."""

from __future__ import annotations

from pathlib import Path

import pytest

from canary_mlflow.errors import UsageError
from canary_mlflow.registry.guard.binding import file_digests
from canary_mlflow.registry.guard.origin import is_within
from canary_mlflow.tracking.stores.places import without_password


@pytest.mark.parametrize(
    ("place", "inside"),
    [
        ("file:///store/1/a/artifacts/model", True),
        ("/store/1/a/artifacts", True),
        ("/store/1/a/artifacts/../../b/artifacts/model", False),
        ("/store/1/a/artifacts/%2e%2e/%2E%2e/b/artifacts/model", False),
        ("/store/1/a/artifacts/%252e%252e/%252e%252e/b/artifacts/model", False),
        ("/store/1/a/artifacts/x%252fy%252fz/../../../b/artifacts/model", False),
        ("/store/1/a/artifacts-of-another", False),
    ],
)
def test_only_what_lies_below_a_runs_artifacts_is_its_own(place: str, inside: bool) -> None:
    """MLflow decodes a source when it loads the files."""
    assert is_within(place, "/store/1/a/artifacts") is inside


def test_a_link_to_outside_is_refused_because_files_may_change_behind_it(tmp_path: Path) -> None:
    model, elsewhere = tmp_path / "model", tmp_path / "elsewhere"
    for folder in (model, elsewhere):
        folder.mkdir()
        (folder / "weights").write_text("good")
    before = file_digests(model)
    for target in (elsewhere, elsewhere / "weights"):
        (model / "more").symlink_to(target)
        with pytest.raises(UsageError, match="more: a link to outside; expected files of the version"):
            file_digests(model)
        (model / "more").unlink()
    assert file_digests(model) == before


@pytest.mark.parametrize("password", ["secret", "pa#ss", "pa/ss", "p[w", "a?b"])
def test_no_password_is_shown_whatever_it_is_made_of(password: str) -> None:
    shown = without_password(f"postgresql+psycopg2://mlflow:{password}@db:5432/mlflow")
    assert shown == "postgresql+psycopg2://mlflow:***@db:5432/mlflow"
    assert without_password(f"postgresql://db/x?user=u&password={password}").endswith("password=***")


@pytest.mark.parametrize("uri", ["sqlite:////tmp/a:b@c/x.db", "http://host:5000/#/models/m@champion", "mlruns"])
def test_other_addresses_stay(uri: str) -> None:
    assert without_password(uri) == uri
