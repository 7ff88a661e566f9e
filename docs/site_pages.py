"""What `make site` adds: README.md as the front page, the demo, and addresses of files that are not in docs/."""

from __future__ import annotations

import posixpath
import re
import shutil
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
DEMO = ROOT / "demo"  # `make demo`
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s]+)")


def on_files(files: Files, config: Any) -> Files:
    """The front page: what the README links to lies in docs/, or beside it."""
    text = LINK.sub(lambda found: (found[1] if found[1].startswith("docs/") else f"docs/../../{found[1]}")[5:],
                    (ROOT / "README.md").read_text())  # fmt: skip
    if DEMO.is_dir():
        look = '**<a href="demo/index.html">Look around without installing</a>**: pages of real sessions.'
        text = text.replace("\n## ", f"\n{look}\n\n## ", 1)
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


def on_post_build(config: Any) -> None:
    """The demo, beside the pages."""
    if DEMO.is_dir():
        shutil.copytree(DEMO, Path(config["site_dir"]) / "demo", dirs_exist_ok=True)
