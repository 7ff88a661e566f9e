"""Temporary folders that say which process owns them, so that those of a killed process can be removed."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from canary_mlflow.tracking.stores import owner

OWNER = ".canary-owner"
CHECKOUT = "checkout"  # a git worktree in such a folder


@contextmanager
def scratch(purpose: str) -> Iterator[Path]:
    """An empty folder `canary-PURPOSE-…` among the system's temporary files, removed afterwards."""
    with tempfile.TemporaryDirectory(prefix=f"canary-{purpose}-") as place:
        Path(place, OWNER).write_text(owner.this_process().to_text(), encoding="utf-8")
        yield Path(place)


def left_behind() -> list[Path]:
    """This user's scratch folders whose process is gone."""
    found = []
    for mark in Path(tempfile.gettempdir()).glob(f"canary-*/{OWNER}"):
        try:
            mine = mark.parent.lstat().st_uid == os.getuid() and not mark.parent.is_symlink()
            holder = owner.read(mark.read_text(encoding="utf-8")) if mine else None
        except OSError:
            continue  # removed meanwhile
        if holder is not None and owner.is_gone(holder):
            found.append(mark.parent)
    return sorted(found)


def remove_left_behind() -> int:
    """Remove those folders with their git worktrees, and return how many there were."""
    found = left_behind()
    for folder in found:
        _forget_worktree(folder / CHECKOUT)
        shutil.rmtree(folder, ignore_errors=True)
    return len(found)


def _forget_worktree(checkout: Path) -> None:
    """Make the repository that a worktree belongs to drop it."""
    if not (checkout / ".git").is_file():
        return
    command = ["git", "-C", str(checkout), "rev-parse", "--path-format=absolute", "--git-common-dir"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        if found.returncode == 0:
            remove = ["git", f"--git-dir={found.stdout.strip()}", "worktree", "remove", "--force", str(checkout)]
            subprocess.run(remove, capture_output=True, check=False)
    except OSError:
        return  # no git any more
