"""What `make site` adds: README.md as the front page, and links out of docs/ as addresses in the repository."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s]+)")


def on_files(files: Files, config: Any) -> Files:
    """The front page: what the README links to lies in docs/, or beside it."""
    text = LINK.sub(lambda found: (found[1] if found[1].startswith("docs/") else f"docs/../../{found[1]}")[5:],
                    (ROOT / "README.md").read_text())  # fmt: skip
    files.append(File.generated(config, "index.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Links to files that are not part of the site."""

    def outside(found: re.Match[str]) -> str:
        place = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page.file.src_uri), found[1]))
        if place.startswith("docs/"):
            return found[1]
        return f"{config['extra']['repository']}/{'tree' if (ROOT / place).is_dir() else 'blob'}/main/{place}"

    if page.file.src_uri.startswith(("measured/", "commands.", "api.", "architecture.")):
        page.meta.setdefault("search", {"boost": 0.4})  # a guide comes first
    return LINK.sub(outside, markdown)
