"""The webhook of one session: `notify=slack`, `notify=webhook`. Each cause is told once, by whichever of the session's
processes meets it first."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from canary_mlflow.errors import UsageError

ASKED = "CANARY_NOTIFY"
"""The variable that carries the session's webhook to the processes of its runs: JSON without address or secret."""
FOLDER = "CANARY_NOTIFY_FOLDER"
"""The folder in which a session's processes mark what they have told; its name tells sessions apart."""
ON = ("BLOCK", "INCONCLUSIVE", "CRITICAL", "STOP", "NIGHTLY")
FORMATS = ("json", "slack")


@dataclass(frozen=True, kw_only=True)
class Webhook:
    """`about`: those of ON that it is told. `secret`: signs the body; '' for no signature."""

    name: str
    url: str
    about: frozenset[str]
    secret: str = ""
    format: str = "json"

    @property
    def place(self) -> str:
        """The address without its path, which for Slack is the secret, and without a password."""
        found = urlsplit(self.url)
        return f"{found.scheme}://{found.hostname or ''}{f':{found.port}' if found.port else ''}/…"


def ask(entry: Mapping[str, Any], folder: Path, environment: dict[str, str] | os._Environ[str] = os.environ) -> None:
    """Make this process, and those that it starts, tell the webhook of an entry. Raises UsageError."""
    environment[FOLDER] = str(folder.absolute())
    environment.pop(ASKED, None)
    if entry.get("url_env"):
        environment[ASKED] = json.dumps(dict(entry))
        asked(environment)


def asked(environment: Mapping[str, str] = os.environ) -> Webhook | None:
    """The session's webhook; None if nobody asked. Raises UsageError."""
    if not environment.get(ASKED):
        return None
    entry = json.loads(environment[ASKED])
    where = f"notify={entry['name']}"
    about = frozenset(str(one).upper() for one in entry["about"])
    if not about or (odd := sorted(about - set(ON))):
        raise UsageError(f"notify.about: found {odd[0] if about else 'nothing'}; expected some of {', '.join(ON)}")
    if entry["format"] not in FORMATS:
        raise UsageError(f"{where}: format: found {entry['format']!r}; expected {' or '.join(FORMATS)}")
    url, secret = (_value_of(where, key, entry.get(key), environment) for key in ("url_env", "secret_env"))
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        raise UsageError(f"{where}: no address in {entry['url_env']}; expected one such as https://…")
    return Webhook(name=entry["name"], url=url, about=about, secret=secret, format=entry["format"])


def _value_of(where: str, key: str, name: str | None, environment: Mapping[str, str]) -> str:
    """The value of the variable that an entry names; '' if it names none. Raises UsageError if it is not set: a message
    without the signature that was asked for is not sent."""
    if not name:
        return ""
    if not name.isidentifier():  # an address put there by mistake is a secret and must not be repeated
        raise UsageError(f"{where}: {key}: no name of a variable; expected one, such as CANARY_HOOK, that holds it")
    if not environment.get(name):
        raise UsageError(f"{where}: {key}: the variable {name} is not set; expected it in this process's environment")
    return environment[name]


def session_key(environment: Mapping[str, str] = os.environ) -> str:
    """A key that all processes of this session share; '' outside a session."""
    folder = environment.get(FOLDER, "")
    return hashlib.sha256(folder.encode()).hexdigest()[:32] if folder else ""


def first(cause: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Claim a cause: True if no process of this session has claimed it yet, or if that cannot be recorded."""
    if not environment.get(FOLDER):
        return True
    folder = Path(environment[FOLDER]) / "told"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / hashlib.sha256(cause.encode()).hexdigest()[:32]).open("x").close()
    except FileExistsError:
        return False
    except OSError:
        return True
    return True
