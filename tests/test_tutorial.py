"""docs/tutorial.md, followed as a reader does: its files are written, its commands run in order, its output appears."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import forking
import pytest
from documented import READ, shown
from workplace import ROOT, Workplace

PAGE = ROOT / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
ENDS = re.compile(r"#\s*exits with (\d)")


def blocks(page: str) -> Iterator[tuple[str, str]]:
    """Kind and content of each fenced block that stands by itself, in order."""
    for found in BLOCK.finditer(page):
        yield found[1], found[2]


def follow(page: str, folder: Path) -> list[str]:
    """Do what a page says in a folder; the answers that did not come."""
    own = Path(forking.python()).parent  # where the reader's shell finds python and canary
    environment = Workplace(folder=folder).environment
    environment["PATH"] = f"{own}{os.pathsep}{environment['PATH']}"
    heard, missing = "", []
    for kind, content in blocks(page):
        if kind in ("python", "yaml"):
            (folder / content.split("\n", 1)[0].removeprefix("# ")).write_text(content)
        elif kind == "bash":
            wanted = int(found[1]) if (found := ENDS.search(content)) else 0
            done = subprocess.run(
                ["bash", "-e"], input=content, cwd=folder, env=environment, capture_output=True, text=True
            )
            assert done.returncode == wanted, f"{content}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
            heard = " ".join((done.stdout + done.stderr).split())
        elif kind == "text":
            missing += [line for line in content.splitlines() if " ".join(line.split()) not in heard]
    return missing


@pytest.mark.timeout(900)  # three sessions of three runs; a busy machine takes a while
def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    folder = tmp_path / "a folder of Jürgen's"
    folder.mkdir()
    assert follow(PAGE.read_text(), folder) == []
    assert (folder / "model" / "model.safetensors").exists()
    assert follow("```bash\n" + "\n".join(reading(folder)) + "\n```\n", folder) == []
    assert all((folder / name).exists() for name in ("report.html", "comment.md", "checks.xml", "report.json"))


def reading(folder: Path) -> list[str]:
    """What other pages show that only reads, said of the tutorial's own model, session and run."""
    with sqlite3.connect(folder / "mlflow.db") as store:
        ids = dict(store.execute("SELECT value, run_uuid FROM tags WHERE key = 'canary.role'"))
    said = {"RUN": ids["run"], "SESSION": ids["session"], "MODEL": "answers", "DATE": "2100-01-01"}
    lines = [one.text for one in shown() if one.alone and one.text.startswith(READ)]
    assert len(lines) > 5
    return [re.sub("|".join(said), lambda found: said[found[0]], line) for line in lines]


def test_an_answer_that_does_not_come_is_seen(tmp_path: Path) -> None:
    page = "```bash\necho good\n```\n\n```text\ngood\nbetter\n```\n"
    assert follow(page, tmp_path) == ["better"]
    with pytest.raises(AssertionError):
        follow("```bash\nfalse\n```\n", tmp_path)
