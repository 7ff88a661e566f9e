"""The report as Markdown: for a model version's description, a session's note and a pull request."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from canary_mlflow.reports import causes, wording
from canary_mlflow.reports.card import SHOWN, Card, Link, card_of, others
from canary_mlflow.reports.decision import Decision
from canary_mlflow.reports.forest import in_letters
from canary_mlflow.shown import shown, visible
from gates.model.verdict import Check, CheckOutcome, Difference

SHOWN_DIFFERENCES = 30

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
    return "\n".join(lines(decision)) + "\n"


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


def lines(decision: Decision) -> Iterator[str]:
    """The card, then the evidence, so that what matters most cannot be cut off."""
    decision = shown(decision)
    yield from card_lines(card_of(decision))
    yield from details(decision)


def card_lines(card: Card) -> Iterator[str]:
    """Verdict, why, what changed, its cause, the rows that decide, next step with its commands, where to look."""
    yield f"**{card.heading}** {escape(card.title)}"
    for said in card.paragraphs:
        yield from ("", escape(said))
    if card.rows:
        yield ""
        yield from table(card.rows[:SHOWN])
    yield ""
    yield f"**{card.label}:** {''.join(code(piece) if command else escape(piece) for piece, command in card.steps)}"
    if card.links:
        yield from ("", " · ".join(map(link, card.links)))


def link(one: Link) -> str:
    """A link if a server answers, else what to type and the address. An address with characters that could end a link
    is shown as code."""
    name = one.name[0].upper() + one.name[1:]
    needs = f" ({escape(one.needs)})" if one.needs else ""
    if one.command:
        return f"{escape(name)}: {code(one.command)}, then {code(one.address)}"
    safe = re.fullmatch(r"https?://[A-Za-z0-9._~:/%#?=&@+,;-]+", one.address)
    return (f"[{escape(name)}](<{one.address}>)" if safe else f"{escape(name)}: {code(one.address)}") + needs


def details(decision: Decision) -> Iterator[str]:
    """Everything behind the verdict that is not on the card."""
    decision = shown(decision)
    if rows := others(decision, card_of(decision).rows[:SHOWN]):
        yield ""
        yield from table(rows)
    yield ""
    yield escape(wording.evidence_note(decision))
    yield ""
    for names, why in wording.by_reason(wording.not_judged(decision)):
        yield f"- not judged: {escape(', '.join(names))}: {escape(wording.sentence(why))}"
    yield from hard_gates(wording.hard_gates(decision))
    for check in wording.obstacles(decision):
        yield f"- also: {escape(wording.sentence(check.reason))}"
    for one in causes.of_warnings(decision.warnings):
        yield f"- {escape(causes.sentence(one))}"
    for note in decision.verdict.notes[:SHOWN_DIFFERENCES]:
        yield f"- note: {escape(note)}"
    yield from differences(decision.verdict.differences)


def table(rows: Sequence[wording.Row]) -> Iterator[str]:
    """One line per metric; the drawing is text, because GitHub and MLflow do not show pictures inside a page."""
    yield "| | metric | baseline | candidate | change [range] | limit | right is worse | what it means |"
    yield "|---|---|---:|---:|---:|---:|---|---|"
    for row in rows:
        word = f"**{row.word}**" if row.outcome is CheckOutcome.BLOCK else row.word
        cells = (row.metric, row.baseline, row.candidate, f"{row.change} {row.range}".rstrip(), row.limit)
        drawn = in_letters(row.forest)
        yield (
            f"| {word} | {' | '.join(escape(cell) for cell in cells)} | {code(drawn) if drawn else ''} | "
            f"{escape(row.meaning)} |"
        )


def hard_gates(checks: Sequence[Check]) -> Iterator[str]:
    """The hard gates: those that did not pass with their reason, the others in one line."""
    for check in checks:
        if check.outcome is not CheckOutcome.PASS:
            word = wording.WORDS[check.outcome]
            yield f"- hard gate **{escape(check.named)}** {word}: {escape(wording.sentence(check.reason))}"
    passed = ", ".join(check.metric for check in checks if check.outcome is CheckOutcome.PASS)
    if passed:
        yield f"- hard gates ok: {escape(passed)}"


def differences(found: Sequence[Difference]) -> Iterator[str]:
    """What differs between the two sides besides the metrics."""
    if not found:
        return
    yield ""
    yield "| differs | baseline | candidate |"
    yield "|---|---|---|"
    for one in found[:SHOWN_DIFFERENCES]:
        yield f"| {escape(one.key)} | {escape(str(one.baseline))} | {escape(str(one.candidate))} |"
    more = len(found) - SHOWN_DIFFERENCES
    if more > 0:
        yield ""
        yield f"and {more} more differences, in `verdict.json`"


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
