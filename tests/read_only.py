"""A folder in which nobody can write, not even root, whom a file mode does not stop."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def read_only(folder: Path) -> Iterator[Path]:
    """An empty folder to fill; `sealed(folder)` makes it read-only. A file system of its own where root asks."""
    if os.getuid():
        yield folder
        folder.chmod(0o755)
        return
    if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(folder)], capture_output=True, check=False).returncode:
        pytest.skip("root may mount nothing here, and nothing else keeps root from writing")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def sealed(folder: Path) -> None:
    """From now on nothing is written there."""
    if os.getuid():
        folder.chmod(0o555)
    else:
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
    assert not os.access(folder, os.W_OK)
