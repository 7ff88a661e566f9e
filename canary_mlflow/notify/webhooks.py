"""The file of webhooks that CANARY_WEBHOOKS names: who is told what, where, in which format, and with which secret."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from canary_mlflow.errors import UsageError, one_line
from canary_mlflow.files.documents import read_yaml

FILE = "CANARY_WEBHOOKS"
"""The environment variable. Of a server, the server's: no client can change it."""


class Kind(StrEnum):
    """The kinds of events."""

    VERDICT = "canary.verdict"
    PROMOTION = "canary.promotion"
    ROLLBACK = "canary.rollback"
    AUDIT_FAILED = "canary.audit_failed"
    CRITICAL = "canary.watch_critical"
    STOP = "canary.watch_stop"
    TEST = "canary.test"


EVENTS = tuple(str(kind) for kind in Kind if kind is not Kind.TEST)
FORMATS = ("json", "slack")
KEYS = ("name", "url", "url_env", "events", "models", "secret_env", "format")


@dataclass(frozen=True, kw_only=True)
class Webhook:
    """`models`: a pattern of model names. `secret`: signs the body; '' for no signature."""

    name: str
    url: str
    events: tuple[str, ...]
    models: str = "*"
    secret: str = ""
    format: str = "json"

    def wants(self, kind: str, model: str) -> bool:
        """Whether it is told events of this kind about this model; `model` '' matches every pattern."""
        return kind in self.events and (not model or fnmatchcase(model, self.models))

    @property
    def place(self) -> str:
        """The address without its path, which for Slack is the secret."""
        return place_of(self.url)


def place_of(url: str) -> str:
    """An address without its path and without a password."""
    found = urlsplit(url)
    return f"{found.scheme}://{found.hostname or ''}{f':{found.port}' if found.port else ''}/…"


def read_webhooks(path: Path, environment: Mapping[str, str] = os.environ) -> tuple[Webhook, ...]:
    """The webhooks of a file. Raises UsageError, one line."""
    try:
        found = read_yaml(path)
    except (OSError, ValueError, yaml.YAMLError) as error:
        said = "no such file" if isinstance(error, FileNotFoundError) else one_line(error)
        raise UsageError(f"{path}: {said}; expected a YAML file of webhooks") from error
    listed = found.get("webhooks") if isinstance(found, Mapping) and set(found) <= {"webhooks"} else None
    if not isinstance(listed, list):
        raise UsageError(f"{path}: expected one key, webhooks, with a list; see docs/webhooks.md")
    made = tuple(webhook_of(f"{path}: webhook {number}", one, environment) for number, one in enumerate(listed, 1))
    names = [one.name for one in made]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"{path}: two webhooks are called {twice!r}; expected different names; rename one")
    return made


def webhook_of(where: str, body: Any, environment: Mapping[str, str]) -> Webhook:
    """The webhook of one entry. Raises UsageError."""
    if not isinstance(body, Mapping):
        raise UsageError(f"{where}: {type(body).__name__}; expected keys {', '.join(KEYS)}")
    if odd := [str(key) for key in body if key not in KEYS]:
        raise UsageError(f"{where}: unknown key {odd[0]!r}; valid: {', '.join(KEYS)}")
    texts = {key: str(body[key]) for key in KEYS if key != "events" and body.get(key) is not None}
    url = texts.get("url") or secret_of(where, "url_env", texts, environment)
    if not texts.get("name"):
        raise UsageError(f"{where}: no name; expected one to call it by")
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        raise UsageError(f"{where}: no address; expected url: https://…, or url_env: a variable that holds it")
    events = body.get("events", list(EVENTS))
    if not isinstance(events, list) or not events or (odd := [str(one) for one in events if one not in EVENTS]):
        raise UsageError(f"{where}: events: found {str(events)[:60]!r}; expected a list of {', '.join(EVENTS)}")
    if texts.get("format", "json") not in FORMATS:
        raise UsageError(f"{where}: format: found {texts['format']!r}; expected {' or '.join(FORMATS)}")
    return Webhook(
        name=texts["name"],
        url=url,
        events=tuple(events),
        models=texts.get("models", "*"),
        secret=secret_of(where, "secret_env", texts, environment),
        format=texts.get("format", "json"),
    )


def secret_of(where: str, key: str, texts: Mapping[str, str], environment: Mapping[str, str]) -> str:
    """The value of the variable that an entry names; '' if it names none. Raises UsageError if it is not set: a message
    without the signature that was asked for is not sent."""
    name = texts.get(key)
    if not name:
        return ""
    if not name.isidentifier():  # an address put there by mistake is a secret and must not be repeated
        raise UsageError(f"{where}: {key}: no name of a variable; expected one, such as CANARY_HOOK, that holds it")
    if not environment.get(name):
        raise UsageError(f"{where}: {key}: the variable {name} is not set; expected it in this process's environment")
    return environment[name]
