"""Reports as Markdown: a verdict for a model version's description and a session's note, a study for a pull request."""

from __future__ import annotations

import re
from typing import Any

from markupsafe import Markup

from canary_mlflow.reports import instabilities
from canary_mlflow.reports.decision import Decision
from canary_mlflow.reports.links import Link
from canary_mlflow.reports.rendering import filled
from canary_mlflow.reports.study import Study
from canary_mlflow.reports.view import view_of
from canary_mlflow.shown import shown, visible

MOST = 30  # notes, differences, instabilities

# CommonMark allows a backslash before any ASCII punctuation; MLflow's Showdown before none of < > & $ @ : ' ".
SIGNS = str.maketrans({
    **{sign: f"\\{sign}" for sign in "\\`*[]|~"},
    "&": "&amp;", "<": "&lt;", ">": "&gt;", "$": "&#36;",
})  # fmt: skip
UNDERSCORE = re.compile(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")  # inside a word it marks nothing
BLOCK = re.compile(r"^(\s*\d{0,9})([#+=.)-])(?=[\s#+=.)-]|$)")  # a heading, a list item, a rule
UNSAFE_CODE = re.compile(r"[`<>\[\]@!|\\&$]")
# GitHub and MLflow link bare addresses, @names (and notify them) and #numbers, after Markdown itself. An entity hides
# the sign from them; a zero-width space (&#8203;) breaks the word, as Renovate does in others' release notes.
BAITS = (
    (re.compile("://"), "&#58;//"),
    (re.compile(r"(?i)\bwww\."), "www&#46;"),
    (re.compile(r"(?i)\b(mailto|xmpp):"), r"\1&#58;"),
    (re.compile(r"(?<![A-Za-z0-9])@(?=\w)"), "@&#8203;"),
    (re.compile(r"(?<=\w)@(?=[\w-]+\.\w)"), "@&#8203;"),
    (re.compile(r"(?<!&)#(?=\d)"), "#&#8203;"),
    (re.compile(r"(?i)\bGH-(?=\d)"), "GH&#8203;-"),
)


def render(decision: Decision) -> str:
    """The whole report."""
    return laid_out("verdict.md", view=view_of(shown(decision)))


def render_study(study: Study) -> str:
    """The whole comment; far below GitHub's 65,536 characters."""
    study = shown(study)
    view = None if study.decision is None else view_of(study.decision)
    return laid_out("study.md", study=study, view=view, unstable=instabilities.grouped(study.instabilities))


def laid_out(template: str, **values: Any) -> str:
    """A template with these values, each escaped for Markdown."""
    return filled(template, escaped, most=MOST, code=lambda text: Markup(code(text)), link=link, **values)


def escaped(value: Any) -> Markup:
    """For Jinja: each expression's value as Markdown, but for what a macro or filter has made of escaped parts."""
    return value if isinstance(value, Markup) else Markup(escape(str(value)))


def fit(text: str, limit: int, whole: str) -> str:
    """Text of at most `limit` characters, cut after a full line; says how many lines are missing and where to find them
    (`whole`)."""
    if len(text) <= limit:
        return text
    rows = text.splitlines()
    kept: list[str] = []
    size = len(cut_note(len(rows), whole)) + 1
    for row in rows:
        if size + len(row) + 1 > limit:
            break
        kept.append(row)
        size += len(row) + 1
    return "\n".join([*kept, cut_note(len(rows) - len(kept), whole)])


def cut_note(missing: int, whole: str) -> str:
    """The last line of a cut report."""
    return f"\n*{missing} more lines: {whole}*\n"


def link(one: Link) -> Markup:
    """A link if a server answers, else what to type and the address. An address with characters that could end a link
    is shown as code."""
    name = one.name[0].upper() + one.name[1:]
    needs = f" ({escape(one.needs)})" if one.needs else ""
    if one.command:
        return Markup(f"{escape(name)}: {code(one.command)}, then {code(one.address)}")
    safe = re.fullmatch(r"https?://[A-Za-z0-9._~:/%#?=&@+,;-]+", one.address)
    return Markup((f"[{escape(name)}](<{one.address}>)" if safe else f"{escape(name)}: {code(one.address)}") + needs)


def escape(text: str) -> str:
    """Text that is shown as written: no HTML, table cell, emphasis, link, picture, heading, list or formula, and no
    word that GitHub or MLflow turns into a link or a notification."""
    text = visible(text).translate(SIGNS)
    text = UNDERSCORE.sub(r"\\_", text)
    text = BLOCK.sub(r"\1\\\2", text)
    for bait, instead in BAITS:
        text = bait.sub(instead, text)
    return text


def code(text: str) -> str:
    """One line as code; as escaped text if a character in it could mean something outside code, so that nothing depends
    on how a parser finds the end of code."""
    text = visible(text)
    return escape(text) if UNSAFE_CODE.search(text) else f"`{text}`"


def fenced(text: str) -> str:
    """Lines unchanged, in a code block that nothing in them can end."""
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall("`+", text)), 3)
    return f"{fence}\n{text}\n{fence}"
