"""The pages of a store as a server in this process gives them, and runs to be shown there."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import unescape
from typing import Any

import pytest

from canary_mlflow.pages.blueprint import add_pages
from canary_mlflow.pages.requests import Readers


def site(uri: str, patch: pytest.MonkeyPatch, readers: Readers | None = None) -> Any:
    from flask import Flask

    patch.setenv("_MLFLOW_SERVER_FILE_STORE", uri)
    patch.setenv("_MLFLOW_SERVER_REGISTRY_STORE", f"canary+{uri}")
    app = Flask("server")
    add_pages(app, readers)
    return app.test_client()


def a_run(
    store: Any,
    values: Mapping[str, Sequence[float]],
    *,
    end: str = "",
    tags: Mapping[str, str] | None = None,
    name: str = "a run",
) -> str:
    """A run with these series at steps 1, 2, 3 …"""
    from mlflow.entities import Metric

    own = {"canary.role": "run", "canary.seed": "7", "canary.algo": "ppo", **(tags or {})}
    run_id: str = store.client.create_run(store.experiment, tags=own, run_name=name).info.run_id
    rows = [(key, step, float(one)) for key, series in values.items() for step, one in enumerate(series, 1)]
    if rows:
        metrics = [Metric(key, value, 1_700_000_000_000 + step, step) for key, step, value in rows]
        store.client.log_batch(run_id, metrics=metrics)
    if end:
        store.client.set_terminated(run_id, end)
    return run_id


def text_of(answer: Any, code: int = 200) -> str:
    assert answer.status_code == code, answer.text[:500]
    return " ".join(unescape(answer.text).split())


def last_row(web: Any, model: str) -> int:
    """The ledger's newest row about a model."""
    page = web.get("/canary/model", query_string={"name": model}).text
    return int(re.search(r"verdict\?row=(\d+)", page.split('id="rows"')[1])[1])  # type: ignore[index]
