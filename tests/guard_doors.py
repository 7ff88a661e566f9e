"""The ways in which MLflow lets a client move a champion, with one set of verbs, and their answers."""

from __future__ import annotations

import base64
import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException


class Refused(Exception):
    """A door that says no: its HTTP status where there is one, and its sentence."""

    def __init__(self, status: int | None, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def request(
    uri: str,
    method: str,
    body: Any = None,
    user: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Any:
    """What curl does. Raises Refused for anything but 2xx; returns the answer's JSON, or its text."""
    sent = {"Content-Type": "application/json", **(headers or {})}
    known = user if user is not None else os.environ
    if "MLFLOW_TRACKING_USERNAME" in known:
        pair = f"{known['MLFLOW_TRACKING_USERNAME']}:{known['MLFLOW_TRACKING_PASSWORD']}"
        sent["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
    data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(
            urllib.request.Request(uri, data=data, method=method, headers=sent), timeout=60
        ) as answer:
            text = answer.read().decode()
    except urllib.error.HTTPError as error:
        text = error.read().decode()
        raise Refused(error.code, said(text)) from error
    return json.loads(text) if text.startswith(("{", "[")) else text


def said(text: str) -> str:
    """The sentence in an answer."""
    try:
        found = json.loads(text)
    except ValueError:
        return text
    return str(found.get("message", text)) if isinstance(found, dict) else text


class Http:
    """REST as it is written down, or the paths that MLflow's own pages use."""

    def __init__(self, base: str) -> None:
        self.base = base

    def ask(self, method: str, path: str, **body: Any) -> Any:
        return request(f"{self.base}/mlflow/{path}", method, body)

    def alias(self, model: str, alias: str, version: str) -> Any:
        return self.ask("POST", "registered-models/alias", name=model, alias=alias, version=version)

    def unalias(self, model: str, alias: str) -> Any:
        return self.ask("DELETE", "registered-models/alias", name=model, alias=alias)

    def rename(self, model: str, name: str) -> Any:
        return self.ask("POST", "registered-models/rename", name=model, new_name=name)

    def delete_model(self, model: str) -> Any:
        return self.ask("DELETE", "registered-models/delete", name=model)

    def delete_version(self, model: str, version: str) -> Any:
        return self.ask("DELETE", "model-versions/delete", name=model, version=version)

    def stage(self, model: str, version: str, stage: str) -> Any:
        body = {"stage": stage, "archive_existing_versions": False}
        return self.ask("POST", "model-versions/transition-stage", name=model, version=version, **body)

    def tag(self, model: str, version: str, key: str, value: str) -> Any:
        return self.ask("POST", "model-versions/set-tag", name=model, version=version, key=key, value=value)

    def untag(self, model: str, version: str, key: str) -> Any:
        return self.ask("DELETE", "model-versions/delete-tag", name=model, version=version, key=key)

    def tag_model(self, model: str, key: str, value: str) -> Any:
        return self.ask("POST", "registered-models/set-tag", name=model, key=key, value=value)

    def create_model(self, model: str, tags: Mapping[str, str]) -> Any:
        return self.ask("POST", "registered-models/create", name=model, tags=pairs(tags))

    def create_version(self, model: str, source: str, run_id: str, tags: Mapping[str, str]) -> Any:
        body = {"source": source, "run_id": run_id, "tags": pairs(tags)}
        return self.ask("POST", "model-versions/create", name=model, **body)


def pairs(tags: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in tags.items()]


class Python:
    """MlflowClient; its errors with the status that a server would have given them."""

    def __init__(self, client: MlflowClient) -> None:
        self.client = client

    def alias(self, model: str, alias: str, version: str) -> Any:
        return asked(lambda: self.client.set_registered_model_alias(model, alias, version))

    def unalias(self, model: str, alias: str) -> Any:
        return asked(lambda: self.client.delete_registered_model_alias(model, alias))

    def rename(self, model: str, name: str) -> Any:
        return asked(lambda: self.client.rename_registered_model(model, name))

    def delete_model(self, model: str) -> Any:
        return asked(lambda: self.client.delete_registered_model(model))

    def delete_version(self, model: str, version: str) -> Any:
        return asked(lambda: self.client.delete_model_version(model, version))

    def stage(self, model: str, version: str, stage: str) -> Any:
        return asked(lambda: self.client.transition_model_version_stage(model, version, stage))

    def tag(self, model: str, version: str, key: str, value: str) -> Any:
        return asked(lambda: self.client.set_model_version_tag(model, version, key, value))

    def untag(self, model: str, version: str, key: str) -> Any:
        return asked(lambda: self.client.delete_model_version_tag(model, version, key))

    def tag_model(self, model: str, key: str, value: str) -> Any:
        return asked(lambda: self.client.set_registered_model_tag(model, key, value))

    def create_model(self, model: str, tags: Mapping[str, str]) -> Any:
        return asked(lambda: self.client.create_registered_model(model, dict(tags)))

    def create_version(self, model: str, source: str, run_id: str, tags: Mapping[str, str]) -> Any:
        return asked(lambda: self.client.create_model_version(model, source, run_id or None, dict(tags)))

    def copy(self, model: str, version: str, name: str) -> Any:
        return asked(lambda: self.client.copy_model_version(f"models:/{model}/{version}", name))


def asked(call: Callable[[], Any]) -> Any:
    """A call of MLflow's Python functions. Raises Refused."""
    try:
        return call()
    except MlflowException as error:
        raise Refused(int(error.get_http_status_code()), str(error.message)) from error


@dataclass(frozen=True)
class Sql:
    """Statements in one transaction, as somebody who is connected to the database."""

    engine: sa.Engine

    def run(self, *statements: str) -> None:
        try:
            with self.engine.begin() as connection:
                for statement in statements:
                    connection.execute(sa.text(statement))
        except sa.exc.DBAPIError as error:
            raise Refused(None, str(error.orig).splitlines()[0]) from error


def command(*words: str) -> str:
    """MLflow's own command line, in this process. Raises Refused."""
    from click.testing import CliRunner
    from mlflow.cli import cli

    done = CliRunner().invoke(cli, words)
    if done.exit_code:
        raise Refused(None, f"exit code {done.exit_code}: {done.output.strip() or done.exception}")
    return str(done.output)


NOISE = (
    (r"^\d{4}/\d\d/\d\d \d\d:\d\d:\d\d ", ""),
    (r"/\S+/attacked\d+/", "…/"),
    (r"\s*\[SQL: .*", " …"),  # SQLAlchemy's own appendix
    (r"\(raised as a result of Query-invoked autoflush;[^)]*\) ", ""),
    (r" CONTEXT: PL/pgSQL function .*", ""),
    (r"^[A-Z_]+: (?=canary guard|Invalid)", ""),  # MLflow's client repeats the code before the message
    (r"\b[0-9a-f]{32}\b", "RUN"),
    (r"\b[0-9a-f]{64}\b", "…"),
    (r"\b[0-9a-f]{16}\b", "KEY"),
    (r"^version \d+ of 'm': its", "version N of 'm': its"),
)


def plain(text: str) -> str:
    """An answer in one line, without what differs from one time to the next."""
    text = " ".join(text.split())
    for pattern, instead in NOISE:
        text = re.sub(pattern, instead, text)
    return text[:400]
