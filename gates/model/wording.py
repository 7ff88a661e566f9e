"""Numbers in sentences: values with units, changes, p-values, and 'one run' against 'three runs'."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile

MANY = 9.0
"""A relative change from which on people read how many times as much it is."""


def quantity(value: float, unit: str) -> str:
    """A value with its unit, to three or four figures; seconds below one second as milliseconds."""
    if unit == "s" and abs(value) < 1:
        value, unit = value * 1000, "ms"
    return f"{figure(value)} {unit}".rstrip()


def figure(value: float) -> str:
    """A number to three figures, or in whole units from a thousand on."""
    if value == 0:
        return "0"  # -0.0 too
    if abs(value) >= 1000:
        return f"{value:.0f}" if abs(value) < 1e9 else f"{value:.3g}"
    if abs(value) < 1e-4:
        return f"{value:.2e}"
    digits = 3 if abs(value) < 1 else 2 if abs(value) < 10 else 1
    return f"{value:.{digits + (abs(value) < 0.1)}f}"


def change(value: float, relative: bool, unit: str) -> str:
    """A change with its sign: +25.7 % or +0.12 ms."""
    sign = "-" if value < 0 else "+"
    if not relative:
        return f"{sign if value else ''}{quantity(abs(value), unit)}"
    if value >= MANY:
        return many(1 + value)
    percent = round(abs(value) * 100, 1)
    return f"{sign if percent else ''}{percent:.{0 if percent >= 1000 or percent == round(percent) else 1}f} %"


def many(times: float) -> str:
    """How many times as much: 2.5 times, 752 times; never 1e+03 times."""
    if not 1e-3 < abs(times) < 1e6:
        return f"{'over a million' if times > 1 else 'under a thousandth'} times"
    return f"{times:.0f} times" if abs(times) >= 1000 else f"{times:.3g} times"


def percent(share: float) -> str:
    """A share of 1 to two figures or in whole percent: 1.4 %, 22 %."""
    return f"{100 * share:.{0 if share >= 0.0995 else 1}f} %"


def limit(margin: float, relative: bool, unit: str, both: bool) -> str:
    """The largest tolerated change, with its direction. A relative limit that holds both ways has two numbers: 1.3
    times as much is as far as 1 / 1.3."""
    if not both:
        return change(margin, relative, unit)
    if relative:
        return f"{change(1 / (1 + margin) - 1, relative, unit)} / {change(margin, relative, unit)}"
    return f"±{change(margin, relative, unit)[1:]}"


def p_value(p: float) -> str:
    """'p = 0.0004', or 'p < 0.0001'."""
    return "p < 0.0001" if p < 0.0001 else f"p = {p:.4f}" if p < 0.01 else f"p = {p:.2f}"


def around_difference(before: str, now: str, longest: int) -> tuple[str, str]:
    """Two values, each cut to what fits: a long one to the part in which they first differ."""
    if max(len(before), len(now)) <= longest:
        return before, now
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, now, strict=False)))
    start = 0 if same < longest // 2 else same - longest // 3
    found = []
    for value in (before, now):
        shown = ("…" if start else "") + value[start:]
        found.append(shown if len(shown) <= longest else f"{shown[: longest - 1]}…")
    return found[0], found[1]


def told_apart(before: float, now: float) -> str:
    """'0.6931 → 2.773', with just enough digits to tell them apart; '' for equal numbers."""
    pairs = ((f"{before:.{digits}g}", f"{now:.{digits}g}") for digits in (4, 6, 9, 17))
    return next((f"{here} → {there}" for here, there in pairs if here != there), "")


def counted(things: int, noun: str) -> str:
    """`1 run`, `3 candidate runs`."""
    return f"{things} {noun}" if things == 1 else f"{things} {noun}s"


def together(names: Iterable[str]) -> str:
    """`seed 1`, `seeds 0, 1, 2`, `runs a, b`: what `Run.called` says, with the word once."""
    found = list(dict.fromkeys(names))
    word, *others = {name.partition(" ")[0] for name in found} or {""}
    if len(found) < 2 or others:
        return ", ".join(found)
    return f"{word}s {listed([name.partition(' ')[2] for name in found], most=10)}"


def listed(items: Sequence[str], most: int = 3, *, clauses: bool = False) -> str:
    """'a, b, c and 2 more'; of clauses, 'a; b; c; and 2 more'."""
    between, last = ("; ", "; and") if clauses else (", ", " and")
    shown = between.join(items[:most])
    return shown if len(items) <= most else f"{shown}{last} {len(items) - most} more"


def sentence_case(text: str) -> str:
    """First letter large, the rest untouched."""
    return text[:1].upper() + text[1:]
