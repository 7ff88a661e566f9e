"""The documentation as a site: it builds without a warning, needs nothing from elsewhere, and its search answers."""

from __future__ import annotations

import functools
import http.server
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import CHROMIUM, MISSING, chromium
from workplace import ROOT

MKDOCS = ROOT / ".site" / "bin" / "mkdocs"
QUESTIONS = {
    "my own script in ten minutes": "tutorial.html",
    "which version of mlflow": "compatibility.html",
    "inconclusive too few runs": "gate.html",
    "pull request comment github": "ci.html",
    "exit codes": "running.html",
    "upgrade transformers regression": "why.html",
    "judge a csv file": "files.html",
    "ray cluster": "clusters.html",
    "benchmark results of two checkpoints": "evals.html",
    "stolen key": "guard.html",
    "loss explodes warning": "watch.html",
    "postgresql s3 docker": "server.html",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not MKDOCS.exists():
        pytest.skip("no mkdocs here: make site")
    folder = tmp_path_factory.mktemp("site")
    words = [MKDOCS, "build", "--strict", "-q", "-d", folder]
    subprocess.run(words, cwd=ROOT, check=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    return folder


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Nothing."""

    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.mark.full  # makes the site: the links and the nav of every day are in test_docs.py
@pytest.mark.skipif(not CHROMIUM, reason=MISSING)
def test_the_search_answers_a_newcomer_and_nothing_is_fetched_from_elsewhere(address: str) -> None:
    found, asked = {}, set()
    with chromium() as browser:
        page = browser.new_page()
        page.on("request", lambda request: asked.add(request.url))
        for question in QUESTIONS:
            page.goto(address + "index.html")
            page.wait_for_load_state("networkidle")
            page.keyboard.press("/")
            page.fill(".md-search__input", question)
            page.keyboard.press("End")
            first = page.wait_for_selector(".md-search-result__item a", state="attached")
            found[question] = first and str(first.get_attribute("href")).partition("?")[0].removeprefix(address)
    assert {question: str(place).partition("#")[0] for question, place in found.items()} == QUESTIONS
    assert {url for url in asked if not url.startswith(address)} == set()


@pytest.mark.full  # as above
def test_the_api_stands_on_its_page(site: Path) -> None:
    page = (site / "api.html").read_text()
    assert "Judge a version against the champion" in page
    assert "min_baseline_runs" in page
