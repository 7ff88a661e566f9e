"""A cache of Hugging Face's datasets for one side of a comparison.

What map and generators make is named by the code of the function alone, not by the packages and modules that it calls:
the second side would train on the first one's tokens.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from canary_mlflow.errors import CanaryError, one_line

CACHE, DOWNLOADS = "HF_DATASETS_CACHE", "HF_DATASETS_DOWNLOADED_DATASETS_PATH"
_NO_DATA = re.compile(r"cache-[0-9a-f]+(_\d+_of_\d+)?\.arrow|.*\.lock")  # made by map, filter, sort


def own_cache(folder: Path, given: Mapping[str, str]) -> dict[str, str]:
    """The environment variables with which `folder` is the cache. It gets links to the data that the usual one holds:
    they are named by their content, and without a network there are no others. Raises CanaryError on a full disk."""
    home = given.get("HF_HOME") or Path(given.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    usual = Path(given.get(CACHE) or Path(home, "datasets")).expanduser().absolute()  # as in datasets/config.py
    try:
        _link(usual, folder)
    except OSError as error:
        why = error.strerror or one_line(error)
        raise CanaryError(f"cache of datasets in {folder}: {why}; expected a writable folder with room") from error
    return {CACHE: str(folder), DOWNLOADS: given.get(DOWNLOADS) or str(usual / "downloads")}


def _link(usual: Path, folder: Path) -> None:
    apart = {usual / "downloads", usual / "generator", folder}
    for place, folders, files in os.walk(usual, followlinks=True):
        folders[:] = [name for name in folders if Path(place, name) not in apart]
        here = folder / Path(place).relative_to(usual)
        here.mkdir(parents=True, exist_ok=True)
        for name in files:
            if not (_NO_DATA.fullmatch(name) or os.path.lexists(here / name)):
                (here / name).symlink_to(Path(place, name))
