"""What an editor may type into any field, and how to tell that it did something."""

from __future__ import annotations

import re
from html.parser import HTMLParser

ESC, BELL, CSI, RIGHT_TO_LEFT, ISOLATE = "\x1b", "\x07", "\x9b", "\u202e", "\u2066"
FORGED = "BLOCK is really PASS"
"""A line of its own, it would stand as a verdict."""

HOSTILE = (
    f"x{ESC}[2J{ESC}]0;t{BELL}{CSI}31m{RIGHT_TO_LEFT}{ISOLATE}\r\n{FORGED}\n"
    "![b](http://evil.test/b.png) [l](http://evil.test/l) \\[b](http://evil.test/u) <http://evil.test/a> "
    "http://evil.test/bare www.evil.test a@evil.test @everyone #1 GH-1 `c` $x$ "
    "<script>alert(1)</script><img src=x onerror=alert(2)> | # h"
)
SHORT = f"x{ESC}[2J{RIGHT_TO_LEFT}@everyone ![b](http://evil.test/b) <script>alert(1)</script>\n{FORGED}"
"""The same, for fields that take less."""

OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""What a terminal obeys; a line's end and a tab are ours."""

LIVE = re.compile(
    r"(?<!\\)!?(?<!\\)(?<!\\!)\[[^\]]*(?<!\\)\]\(|https?://evil|(?<![A-Za-z0-9])www\.evil|(?<![A-Za-z0-9])@everyone|\w@evil|<(?:script|img)|#1\b|GH-1"
)
"""What Markdown makes a link, a picture or HTML of, and what GitHub does."""


def obeyed(text: str, *, lines: bool = True) -> list[str]:
    """The control characters in a text, with what stands around the first, and lines that only a forger wrote (in HTML
    a line's end is a blank)."""
    found = OBEYED.search(text)
    forged = [line for line in text.splitlines() if lines and line.strip().startswith(FORGED)]
    return ([repr(text[max(0, found.start() - 60) : found.start() + 20])] if found else []) + forged


def live(markdown: str) -> list[str]:
    """The links, pictures, mentions and tags in a Markdown text."""
    return [found.group() for found in LIVE.finditer(markdown)]


class Tags(HTMLParser):
    """The tags of a page that nobody but a forger wrote."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.forged: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Ours have no handlers, no script but files of their own, and no address elsewhere."""
        found = dict(attrs)
        elsewhere = any("evil.test" in (found.get(name) or "") for name in ("src", "href")) and tag != "a"
        linked = tag == "a" and re.match(r"\w+://evil|javascript:", found.get("href") or "")
        if elsewhere or linked or any(name.startswith("on") for name in found) or found.get("src") == "x":
            self.forged.append(self.get_starttag_text() or tag)
        if tag == "script" and not found.get("src"):
            self.forged.append("<script>")
