"""The documentation: pages made from the code say what the code says, links work, pictures are shown."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]*)(?:#([^)\s]+))?[^)]*\)")


@pytest.fixture(scope="module")
def generate() -> Any:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pages_made_from_the_code_are_fresh(generate: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate.main(check=True) == 0, capsys.readouterr().out


def test_a_stale_page_is_named(
    generate: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generate, "PAGES", {"commands.md": lambda: "another"})
    assert generate.main(check=True) == 1
    assert "docs/commands.md: not what the code says; run: make docs" in capsys.readouterr().out


def anchors(page: Path) -> set[str]:
    """What its headings are called in an address, on GitHub and on the site."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def dead_links(page: Path) -> Iterator[str]:
    """Relative links to files or headings that are not there."""
    for target, part in LINK.findall(re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)):
        there = page.parent / target if target else page
        if "://" in target or target.startswith("mailto:"):
            continue
        if not there.exists():
            yield f"{page.name}: {target}"
        elif part and there.suffix == ".md" and part not in anchors(there):
            yield f"{page.name}: {target}#{part}"


def unknown_tests(page: Path) -> Iterator[str]:
    """Tests by which a page proves something, and which are not there."""
    files = {path.name: path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}
    for name, test in re.findall(r"(test_\w+\.py)(?:::(\w+))?", page.read_text()):
        if name not in files or (test and f"def {test}(" not in files[name]):
            yield f"{page.name}: {name}{'::' if test else ''}{test}"


def pages() -> list[Path]:
    return [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


def test_links_lead_to_files() -> None:
    assert [dead for page in pages() for dead in dead_links(page)] == []


def test_a_dead_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A `b` & c\n[here](nowhere.md#part), [there](page.md#a-b--c), [gone](#lost), [far](https://example.org/x)"
    )
    assert list(dead_links(page)) == ["page.md: nowhere.md", "page.md: #lost"]


def test_tests_that_are_named_are_there() -> None:
    assert [missing for page in pages() for missing in unknown_tests(page)] == []


def test_a_test_that_is_gone_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "`test_docs.py`, `test_docs.py::test_links_lead_to_files`, `test_docs.py::test_gone`, `test_gone.py`"
    )
    assert list(unknown_tests(page)) == ["page.md: test_docs.py::test_gone", "page.md: test_gone.py"]


def test_every_picture_is_shown() -> None:
    shown = {Path(target).name for page in pages() for target, _ in LINK.findall(page.read_text())}
    assert {path.name for path in (ROOT / "docs").rglob("*.png")} <= shown


def places(nav: Any) -> Iterator[str]:
    """The files of a nav, however deep."""
    if isinstance(nav, str):
        yield nav
    else:
        for below in nav.values() if isinstance(nav, dict) else nav:
            yield from places(below)


def test_every_page_has_its_place_on_the_site() -> None:
    class Loader(yaml.SafeLoader):
        """Without the function that makes anchors."""

    Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: suffix)
    listed = list(places(yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)["nav"]))
    every = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert sorted(listed) == sorted(every | {"index.md"})
