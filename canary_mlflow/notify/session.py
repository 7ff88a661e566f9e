"""The webhook of one session, in addition to the file of webhooks: `notify=slack`, `notify=webhook`. Each cause is told
once, by whichever of the session's processes meets it first."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from canary_mlflow.errors import UsageError
from canary_mlflow.notify.webhooks import FILE, Kind, Webhook, read_webhooks, webhook_of

ASKED = "CANARY_NOTIFY"
"""The variable that carries the session's webhook to the processes of its runs: JSON without address or secret."""
FOLDER = "CANARY_NOTIFY_FOLDER"
"""The folder in which a session's processes mark what they have told; its name tells sessions apart."""
ON = ("BLOCK", "INCONCLUSIVE", "CRITICAL", "STOP", "NIGHTLY")


def ask(entry: Mapping[str, Any], folder: Path, environment: dict[str, str] | os._Environ[str] = os.environ) -> None:
    """Make this process, and those that it starts, tell the webhook of an entry. Raises UsageError."""
    environment[FOLDER] = str(folder.absolute())
    environment.pop(ASKED, None)
    if entry.get("url_env"):
        environment[ASKED] = json.dumps(dict(entry))
        asked(environment)


def asked(environment: Mapping[str, str] = os.environ) -> tuple[Webhook, frozenset[str]] | None:
    """The session's webhook and what it is told; None if nobody asked. Raises UsageError."""
    if not environment.get(ASKED):
        return None
    entry = json.loads(environment[ASKED])
    on = frozenset(str(one).upper() for one in entry.pop("about"))
    if not on or (odd := sorted(on - set(ON))):
        raise UsageError(f"notify.about: found {odd[0] if on else 'nothing'}; expected some of {', '.join(ON)}")
    made = webhook_of(f"notify={entry['name']}", entry, environment)
    watched = [kind for word, kind in (("CRITICAL", Kind.CRITICAL), ("STOP", Kind.STOP)) if word in on]
    return replace(made, events=tuple(map(str, watched))), on


def configured(environment: Mapping[str, str] = os.environ) -> tuple[Webhook, ...]:
    """The webhooks of the file that CANARY_WEBHOOKS names, and the session's own, which is told here about the watch.
    Raises UsageError."""
    named, own = environment.get(FILE, ""), asked(environment)
    listed = read_webhooks(Path(named).expanduser(), environment) if named else ()
    return (*listed, own[0]) if own else listed


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
