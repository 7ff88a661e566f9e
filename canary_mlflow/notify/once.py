"""Tells what a command may see repeatedly, such as a damaged ledger each night, only once for each cause."""

from __future__ import annotations

import os

from canary_mlflow.ledger.keys import key_folder
from canary_mlflow.notify.delivery import notify
from canary_mlflow.notify.events import Event
from canary_mlflow.notify.webhooks import FILE

NAME = "told"
MOST = 1 << 20  # bytes; a longer list is started again


def notify_once(event: Event) -> None:
    """Tell an event unless this machine has told it before. If that cannot be recorded, it is told each time."""
    if not os.environ.get(FILE, ""):
        return  # there is no receiver yet, and a later one must be told
    file = key_folder() / NAME
    try:
        known = file.read_text(encoding="ascii", errors="replace").split() if file.stat().st_size < MOST else []
    except OSError:
        known = []
    if event.id in known:
        return
    notify(event)
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file.write_text("\n".join([*known, event.id]) + "\n", encoding="ascii")
    except OSError:
        return
