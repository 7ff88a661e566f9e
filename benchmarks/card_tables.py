"""The tables of docs/measured/gpu.md from the file that on_card.py has written; a rehearsal's lines are left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

from card_desk import FULL, Desk
from card_parts import PARTS
from on_card import FILE, REHEARSED, ROOT, Book, Record

BEGIN, END = "<!-- on card -->", "<!-- end of on card -->"
COSTS = ("step_time", "step_cost")
NOTHING = "No card has been at hand since this command exists."


def section(file: Path = FILE) -> str:
    """What stands between the marks."""
    every = Book(file, "")
    desk = Desk(folder=ROOT, size=FULL, book=every)
    minutes = {name: sum(unit.minutes for unit in make(desk)) for name, make in PARTS.items()}
    said = {name: " ".join((make.__doc__ or "").split()).rstrip(".") for name, make in PARTS.items()}
    plan = [(name, said[name], f"{minutes[name]:.0f}") for name in PARTS]
    cards = dict.fromkeys(one["card"] for one in every.lines if not one["card"].startswith(REHEARSED))
    tables = [table for card in cards for table in _tables(Book(file, card))]
    return "\n\n".join([_table(("part", "what", "minutes planned"), plan), *(tables or [NOTHING])])


def _tables(book: Book) -> Iterator[str]:
    last = next(one for one in reversed(book.lines) if one["card"] == book.card)
    packages = ", ".join(f"{name} {number}" for name, number in last["packages"].items())
    yield f"**{book.card}**, driver {last['driver']}, Python {last['python']}, {packages}; last on {last['date']}."
    made = (_unchanged(book), _spreads(book), _slower(book), _sessions(book), _policies(book), _others(book))
    yield from filter(None, made)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]
    return "\n".join(lines) if rows else ""


def _outcomes(counted: Mapping[str, Any]) -> str:
    return ", ".join(f"{count} {outcome}" for outcome, count in counted["outcomes"].items())


def _unchanged(book: Book) -> str:
    judged = {name: one for name, one in book.of("unchanged").items() if "outcomes" in one}
    rows = [(name, _outcomes(one), "; ".join(one["reasons"])) for name, one in judged.items()]
    return _table(("unchanged, 0.5 B weights", "of its splits", "why not PASS"), rows)


def _spreads(book: Book) -> str:
    """How far the middles of unchanged runs differ: which cost has the smallest decides."""
    runs: dict[str, dict[str, list[float]]] = {}
    for name, one in book.of("unchanged").items():
        if "run" in one:
            found = runs.setdefault(name.rpartition("-")[0], {})
            for cost in COSTS:
                if values := one["run"]["series"].get(cost, [[], []])[1]:
                    found.setdefault(cost, []).append(median(values[len(values) // 4 :]))
            found.setdefault("kernels", []).append(one["kernel_ms"])
    rows = [
        (
            algo,
            *(
                f"{stdev(of) / mean(of):.1%}" if len(of := found.get(cost, [])) > 2 else ""
                for cost in (*COSTS, "kernels")
            ),
        )
        for algo, found in runs.items()
    ]
    return _table(("spread between runs", *COSTS, "time of the kernels"), rows)


def _slower(book: Book) -> str:
    rows = [
        (name, f"+{float(share):.0%}", _outcomes(one), "; ".join(one["reasons"]))
        for name, judged in book.of("slower").items()
        for share, one in judged.get("shares", {}).items()
    ]
    return _table(("slower by kernels", "steps", "of its splits", "why"), rows)


def _sessions(book: Book) -> str:
    rows = [
        (name, one["said"], f"{one['seconds']:.0f}", one["verdict"].get("reason", ""))
        for name, one in book.of("tiny").items()
    ]
    return _table(("smoke session, tiny model", "verdict", "seconds", "why"), rows)


def _policies(book: Book) -> str:
    rows = [
        (name, session, one["outcome"], one["reason"])
        for name, judged in book.of("policies").items()
        for session, one in judged.get("sessions", {}).items()
    ]
    return _table(("policy, 0.5 B weights", "session", "verdict", "why"), rows)


def _others(book: Book) -> str:
    rows = [("the callback", said)] if (said := _callback(list(book.of("callback").values()))) else []
    for part in ("ppo", "seven", "card", "kinds"):
        latest: dict[str, Record] = {
            one["unit"]: one for one in book.lines if (one["part"], one["card"]) == (part, book.card)
        }
        shown = {name: one for name, one in latest.items() if one.get("said") or one.get("broke")}
        rows += [(f"{part}: {name}", one.get("said") or f"broke off: {one['broke']}") for name, one in shown.items()]
    return _table(("what", "found"), rows)


def _callback(measured: Sequence[Record]) -> str:
    """By how much a step is longer with it: the middle of the rounds."""
    held: dict[str, dict[str, float]] = {}
    for one in measured:
        kind, _, number = one["unit"].partition("-")
        held.setdefault(number, {})[kind] = one["step_ms"]
    pairs = [pair for pair in held.values() if len(pair) == 2]
    changes = [pair["with"] / pair["without"] - 1 for pair in pairs]
    return f"{median(changes):+.2%} of a step ({min(changes):+.2%} to {max(changes):+.2%})" if changes else ""
