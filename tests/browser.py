"""A real browser on the real pages: `canary ui` over a store, and headless Chromium that looks at it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import forking

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ROOT = Path(__file__).resolve().parents[1]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
MISSING = "no chromium here: apt-get install chromium"
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync")  # fmt: skip
AXE = Path(__file__).parent / "vendor" / "axe.min.js"


@contextmanager
def canary_ui(uri: str, folder: Path) -> Iterator[str]:
    """`canary ui` over the store; gives its address. What it prints goes to `folder`/ui.log."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    kept = {key: value for key, value in os.environ.items() if not key.startswith("MLFLOW_")}
    path = os.pathsep.join(item for item in (str(ROOT), kept.get("PYTHONPATH", "")) if item)
    log = folder / "ui.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            [forking.python(), "-m", "canary_mlflow.cli", "ui", "--port", str(port), "--tracking-uri", uri],
            env={**kept, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        address = f"http://127.0.0.1:{port}"
        for _ in range(960):  # 5 s on an idle machine, minutes on a crowded one
            assert process.poll() is None, log.read_text()[-2000:]
            try:
                with urllib.request.urlopen(f"{address}/canary", timeout=10):
                    break
            except OSError:
                time.sleep(0.25)
        yield address
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextmanager
def chromium() -> Iterator[Browser]:
    """Headless, with a new profile."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, headless=True, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Window:
    """A page, and what went wrong in it: console errors, exceptions, dialogs, requests that leave the host."""

    page: Page
    address: str
    troubles: list[str] = field(default_factory=list)

    def open(self, path: str) -> Window:
        """Go there, and wait for the curves."""
        self.page.goto(self.address + path)
        self.page.wait_for_load_state("networkidle")
        return self

    def until(self, condition: str, seconds: float = 60.0) -> None:
        """Wait for a JavaScript expression; Playwright's own waiting needs eval, which the pages forbid."""
        end = time.monotonic() + seconds
        while not self.page.evaluate(condition):
            said = self.page.locator("#link").inner_text()
            assert time.monotonic() < end, f"after {seconds:.0f} s still not: {condition}; {said}"
            self.page.wait_for_timeout(100)

    def faults(self, *rules: str) -> list[str]:
        """What axe-core finds by these rules, else by all, also what is moderate or minor."""
        self.page.evaluate(AXE.read_text())  # through the debugger: the page's own policy would not let it in
        found: dict[str, Any] = self.page.evaluate(
            "(rules) => axe.run(document, {resultTypes: ['violations'], ...(rules.length ? {runOnly: rules} : {})})",
            list(rules),
        )
        return [
            f"{one['id']}: {one['help']}: {one['nodes'][0]['html'][:160]} ({one['nodes'][0]['failureSummary']})"
            for one in found["violations"]
        ]

    def too_wide(self) -> int:
        """Pixels by which the page is wider than the window."""
        return int(self.page.evaluate("document.documentElement.scrollWidth - innerWidth"))


@contextmanager
def window(
    browser: Browser, address: str, *, width: int = 1280, height: int = 900, dark: bool = False
) -> Iterator[Window]:
    """A window of its own, without the history of another."""
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light", reduced_motion="reduce"
    )
    page = context.new_page()
    made = Window(page=page, address=address)
    page.on(
        "console", lambda message: made.troubles.append(message.text) if message.type in ("error", "warning") else None
    )
    page.on("pageerror", lambda error: made.troubles.append(str(error)))
    page.on("dialog", lambda dialog: (made.troubles.append(dialog.message), dialog.dismiss()))
    page.on("request", lambda request: None if request.url.startswith(address) else made.troubles.append(request.url))
    try:
        yield made
    finally:
        context.close()
