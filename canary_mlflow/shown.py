"""Making untrusted text safe to show: characters that a terminal or a page would obey are written out. Values stay as
they are for digests and comparisons; only what is shown to a reader goes through here.

Untrusted is whatever others can set: a tag, a param, a name, a reason, a file. What each output uses:

    terminal        `echo`, and the reports over `shown(decision)`
    JSON            `json_text`
    Markdown        `in_markdown`; a template by `reports/markdown.escaped`
    HTML            `finalize=finalized` of both template environments, besides their autoescape; `as_html`
    Slack           `notify/delivery.slack_body`
"""

from __future__ import annotations

import html
import io
import json
import re
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import Any, TypeVar

LONGEST = 2000
"""Characters of one text; a longer one is cut, and says so. MLflow allows 8,000 in a tag and 6,000 in a param."""

_JSON_ESCAPED = re.compile("[\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
                           "\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]")  # fmt: skip
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_Tree = TypeVar("_Tree")


def visible(text: str, keep: str = "", most: int = LONGEST) -> str:
    """One text with every unprintable character written out, such as \\x1b, \\n or \\u202e, except those in `keep`; cut
    after `most` characters.

    Python counts as unprintable the control characters (a terminal's escape codes begin with one), line breaks, and
    the invisible format characters, some of which reverse the direction of writing.
    """
    text = cut(text, most)
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() or sign in keep else _written(sign) for sign in text)


def uncoloured(text: str) -> str:
    """The text without a terminal's colours, as another program printed it."""
    return _COLOUR.sub("", text) if "\x1b" in text else text


def cut(text: str, most: int) -> str:
    """The text cut to at most `most` characters plus a note that says how much is left out."""
    if len(text) <= most:
        return text
    left = len(text) - most
    return f"{text[:most]}… ({left:,} more {'character' if left == 1 else 'characters'})"


def _written(sign: str) -> str:
    if unicodedata.category(sign) == "Zs":  # a space of another width
        return " "
    return sign.encode("unicode_escape").decode("ascii")


def shown(value: _Tree) -> _Tree:
    """The same value with every text in it made `visible`, in dataclasses, mappings (keys too), lists and tuples. Parts
    that need no change stay the same objects."""
    changed: Any = _shown(value)
    found: _Tree = changed
    return found


def _shown(value: Any) -> Any:
    if isinstance(value, float | int | Enum):  # most of a curve; and StrEnum is a str
        return value
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, Mapping):
        made: Any = {_shown(key): _shown(item) for key, item in value.items()}
        same = all(new is old for pair, new_pair in zip(value.items(), made.items(), strict=False)
                   for old, new in zip(pair, new_pair, strict=True))  # fmt: skip
        return value if same and len(made) == len(value) else made
    if isinstance(value, list | tuple):
        items = [_shown(item) for item in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        return items if isinstance(value, list) else tuple(items)
    if is_dataclass(value) and not isinstance(value, type):
        now = {one.name: (getattr(value, one.name), one) for one in fields(value) if one.init}
        new = {name: made for name, (old, _) in now.items() if (made := _shown(old)) is not old}
        return replace(value, **new) if new else value
    return value


def finalized(value: Any) -> Any:
    """For Jinja: each expression's value made visible before it is escaped, however long. Markup is left alone."""
    return visible(value, keep="\n\t", most=len(value)) if type(value) is str else value


def json_text(value: Any) -> str:
    """JSON ready to print: letters of every language as they are, unprintable characters escaped. Raises ValueError for
    NaN and infinities."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    return _JSON_ESCAPED.sub(lambda found: json.dumps(found.group())[1:-1], text)


def echo(text: object = "", *, err: bool = False) -> None:
    """Print one line, with the text that it quotes made visible."""
    import click

    click.echo(visible(str(text)), err=err)


def echo_lines(text: str) -> None:
    """Print a text of several lines. Its values must be one line each already, as `shown` makes them."""
    for line in text.splitlines():
        echo(line)


def replace_unknown() -> None:
    """Have stdout show ? for a character that its encoding lacks, such as → in Latin-1, where Python would raise."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")


def say(line: str) -> None:
    """Print a line for people, on stderr, that begins with `canary:`."""
    echo(f"canary: {line}", err=True)


def as_html(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], said: str = "") -> str:
    """A table as a notebook shows it, below a title and a sentence; every text is escaped."""

    def cell(kind: str, value: object) -> str:
        return f"<{kind} style='text-align: left'>{html.escape(visible(str(value)))}</{kind}>"

    lines = [("th", columns), *(("td", row) for row in rows)]
    table = "".join(f"<tr>{''.join(cell(kind, one) for one in row)}</tr>" for kind, row in lines)
    return f"<div>{cell('strong', title)}{cell('p', said)}<table>{table}</table></div>"


# CommonMark allows a backslash before any ASCII punctuation; MLflow's Showdown before none of < > & $ @ : ' ".
_SIGNS = str.maketrans({
    **{sign: f"\\{sign}" for sign in "\\`*[]|~"},
    "&": "&amp;", "<": "&lt;", ">": "&gt;", "$": "&#36;",
})  # fmt: skip
_UNDERSCORE = re.compile(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")  # inside a word it marks nothing
_BLOCK = re.compile(r"^(\s*\d{0,9})([#+=.)-])(?=[\s#+=.)-]|$)")  # a heading, a list item, a rule
_UNSAFE_CODE = re.compile(r"[`<>\[\]@!|\\&$]")
# GitHub and MLflow link bare addresses, @names (and notify them) and #numbers, after Markdown itself. An entity hides
# the sign from them; a zero-width space (&#8203;) breaks the word, as Renovate does in others' release notes.
_BAITS = (
    (re.compile("://"), "&#58;//"),
    (re.compile(r"(?i)\bwww\."), "www&#46;"),
    (re.compile(r"(?i)\b(mailto|xmpp):"), r"\1&#58;"),
    (re.compile(r"(?<![A-Za-z0-9])@(?=\w)"), "@&#8203;"),
    (re.compile(r"(?<=\w)@(?=[\w-]+\.\w)"), "@&#8203;"),
    (re.compile(r"(?<!&)#(?=\d)"), "#&#8203;"),
    (re.compile(r"(?i)\bGH-(?=\d)"), "GH&#8203;-"),
)


def in_markdown(text: str) -> str:
    """Text that is shown as written: no HTML, table cell, emphasis, link, picture, heading, list or formula, and no
    word that GitHub or MLflow turns into a link or a notification."""
    text = visible(text).translate(_SIGNS)
    text = _UNDERSCORE.sub(r"\\_", text)
    text = _BLOCK.sub(r"\1\\\2", text)
    for bait, instead in _BAITS:
        text = bait.sub(instead, text)
    return text


def in_code(text: str) -> str:
    """One line as code; as escaped text if a character in it could mean something outside code, so that nothing depends
    on how a parser finds the end of code."""
    text = visible(text)
    return in_markdown(text) if _UNSAFE_CODE.search(text) else f"`{text}`"


def fenced(text: str) -> str:
    """Lines unchanged, in a code block that nothing in them can end."""
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall("`+", text)), 3)
    return f"{fence}\n{text}\n{fence}"
