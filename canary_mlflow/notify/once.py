"""What a command may see again and again, such as a damaged ledger each night, is told once for each cause."""

from __future__ import annotations

import os

from canary_mlflow.ledger.keys import key_folder
from canary_mlflow.notify.delivery import tell
from canary_mlflow.notify.events import Event
from canary_mlflow.notify.webhooks import FILE

NAME = "told"
MOST = 1 << 20  # bytes; an older list is begun anew


def tell_once(event: Event) -> None:
    """Tell it unless this machine has told it before. Where that cannot be kept, it is told each time."""
    if not os.environ.get(FILE, ""):
        return  # nobody is there to hear it, and whoever comes later shall
    file = key_folder() / NAME
    try:
        known = file.read_text(encoding="ascii", errors="replace").split() if file.stat().st_size < MOST else []
    except OSError:
        known = []
    if event.id in known:
        return
    tell(event)
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file.write_text("\n".join([*known, event.id]) + "\n", encoding="ascii")
    except OSError:
        return
