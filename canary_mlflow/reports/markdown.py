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
from canary_mlflow.shown import in_code, in_markdown, shown

MOST = 30  # notes, differences, instabilities


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
    return filled(template, escaped, most=MOST, code=lambda text: Markup(in_code(text)), link=link, **values)


def escaped(value: Any) -> Markup:
    """For Jinja: each expression's value as Markdown, but for what a macro or filter has made of escaped parts."""
    return value if isinstance(value, Markup) else Markup(in_markdown(str(value)))


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
    needs = f" ({in_markdown(one.needs)})" if one.needs else ""
    if one.command:
        return Markup(f"{in_markdown(name)}: {in_code(one.command)}, then {in_code(one.address)}")
    safe = re.fullmatch(r"https?://[A-Za-z0-9._~:/%#?=&@+,;-]+", one.address)
    if safe:
        return Markup(f"[{in_markdown(name)}](<{one.address}>){needs}")
    return Markup(f"{in_markdown(name)}: {in_code(one.address)}{needs}")
