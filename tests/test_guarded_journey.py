"""The README's job behind a guard with everything on: a server with logins, PostgreSQL, split roles."""

from __future__ import annotations

from pathlib import Path

import pytest
from guard_modes import PASSWORD, Mode, opened
from mlflow import MlflowClient
from workplace import Workplace

from canary_mlflow.ledger.chain import Kind

# `test_guard_people.py` and `test_guard_attacks.py` ask the same server every day, without training.
pytestmark = [pytest.mark.full, pytest.mark.timeout(1200)]

MODEL = "dpo-tiny-neox-preferences-smoke"
SHORT = ["train.max_steps=40", "repeats=2"]


def trainer(mode: Mode) -> dict[str, str]:
    """All that somebody sets who trains there: the server, and who he is. Nobody has granted him anything."""
    from mlflow.server.auth.client import AuthServiceClient

    AuthServiceClient(mode.front).create_user("trainer", PASSWORD)
    return {
        "MLFLOW_TRACKING_URI": mode.front,
        "MLFLOW_TRACKING_USERNAME": "trainer",
        "MLFLOW_TRACKING_PASSWORD": PASSWORD,
    }


def test_the_job_needs_the_servers_address_and_a_user_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    with opened("split roles", tmp_path) as mode:
        who, place = trainer(mode), Workplace(folder=folder)
        first = place.train(*SHORT, **who)
        assert first.returncode == 0, first.stderr
        assert first.stdout.startswith("BOOTSTRAP "), first.stdout
        second = place.train(*SHORT, **who)
        assert second.returncode in (0, 1, 3), second.stderr
        assert "no row in the ledger" not in first.stderr + second.stderr
        rows = mode.guard().rows(MODEL)
        assert {row.facts["actor"] for row in rows} == {"trainer"}
        assert [row.kind for row in rows if row.version == 2] == [Kind.SEAL, Kind.VERDICT]
        assert str(MlflowClient().get_model_version_by_alias(MODEL, "champion").version) == str(
            2 if second.returncode == 0 else 1
        )
        broken = place.train(*SHORT, "repeats=1", "fault=nan_batch", "fault.step=10", **who)
        assert broken.returncode == 1, broken.stderr
        held = place.canary("audit", "verify", "--artifacts", mode.artifacts, "--tracking-uri", mode.owner)
        assert held.returncode == 0, held.stdout + held.stderr
        assert not list(folder.glob("mlflow.db*")), "nothing is kept where the job runs"
