"""A profile as lines for a terminal, as JSON, and as pictures: the calls of a step, and its memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from html import escape
from typing import Any

from canary_mlflow.shown import visible
from canary_mlflow.tracking.reading.profile import TRACE, Cost, Frame, Profile, Profiled

SHOWN = 8  # of each list
NAME = 60  # characters of the column of names, with the space behind it
WIDTH, ROW = 1000, 17  # of the picture of calls and of one of its rows, in SVG units
DEEPEST = 24
LETTER = 6.2  # width of a letter, in SVG units
KINDS = (("phase: ", "phase"), ("module: ", "module"), ("Optimizer.", "phase"), ("autograd::", "autograd"))


def lines(found: Profiled, *, full: bool = False) -> Iterator[str]:
    """Phases, operators and modules, each with the champion's."""
    profile, champion = found.profile, found.champion
    beside = f", compared with the champion's, run {found.champion_run}" if champion else ", no profile of a champion"
    yield f"run {found.run_id}: {profile.steps} steps on {profile.device} under the profiler{beside}"
    yield f"step {_ms(profile.step_ms)}{_than(profile.step_ms, champion.step_ms if champion else None)}"
    if profile.memory:
        yield f"tensors grow by at most {profile.peak_mib:.1f} MiB within a step" + (
            f" (champion {champion.peak_mib:.1f} MiB)" if champion and champion.memory else ""
        )
    for title, own, theirs in tables(found):
        yield ""
        yield f"{title:<{NAME + 2}}{'ms a step':>10}{'share':>8}{'calls':>8}" + (
            f"{'champion':>12}" if champion else ""
        )
        for cost in own if full else own[:SHOWN]:
            row = f"  {fitted(cost.name):<{NAME}}{cost.ms:>10.2f}{profile.share(cost):>8.0%}{cost.calls:>8.4g}"
            yield row + (f"{_number(theirs.get(cost.name)):>12}" if champion else "")
    yield ""
    yield f"trace: artifact {TRACE} of the run; open it in https://ui.perfetto.dev or chrome://tracing"


def fitted(name: str) -> str:
    """The name as its column takes it: of a longer one beginning and end, which tell more than the middle."""
    text, half = visible(name, most=len(name)), (NAME - 2) // 2
    return text if len(text) < NAME else f"{text[:half]}…{text[-half:]}"


def tables(found: Profiled) -> Iterator[tuple[str, Sequence[Cost], dict[str, Cost]]]:
    """The tables: (title, costs, the champion's costs by name)."""
    for title, name in (("phase", "phases"), ("operator, itself", "operators"), ("module, its forward", "modules")):
        theirs = {cost.name: cost for cost in getattr(found.champion, name)} if found.champion else {}
        yield title, getattr(found.profile, name), theirs


def as_dict(found: Profiled) -> dict[str, Any]:
    """The profile as plain JSON values."""
    return asdict(found)


def _ms(value: float) -> str:
    return f"{value:.1f} ms"


def _than(own: float, theirs: float | None) -> str:
    return f" (champion {_ms(theirs)}, {own / theirs - 1:+.0%})" if theirs else ""


def _number(cost: Cost | None) -> str:
    return "-" if cost is None else f"{cost.ms:.2f}"


def flame(profile: Profile) -> str:
    """The calls of a step from the top down as an SVG: width is time, with the exact figures as titles."""
    if profile.flame is None or not profile.step_ms:
        return ""
    boxes = list(_boxes(profile.flame, 0.0, 0, profile.step_ms))
    height = ROW * (1 + max(depth for _, _, _, depth in boxes))
    drawn = "".join(_box(*box, profile) for box in boxes)
    return _svg(WIDTH, height, drawn, "The calls of a step: width is time")


def _boxes(frame: Frame, left: float, depth: int, whole: float) -> Iterator[tuple[Frame, float, float, int]]:
    """The boxes of a call and those below it: (call, left edge, width, depth)."""
    yield frame, left, WIDTH * frame.ms / whole, depth
    if depth < DEEPEST:
        for child in frame.children:
            yield from _boxes(child, left, depth + 1, whole)
            left += WIDTH * child.ms / whole


def _box(frame: Frame, left: float, width: float, depth: int, profile: Profile) -> str:
    kind = next((word for start, word in KINDS if frame.name.startswith(start)), "operator")
    name = escape(visible(frame.name, most=200))
    space = int((width - 4) / LETTER)
    label = visible(frame.name.partition(": ")[2] or frame.name, most=200)
    if kind == "module":
        label = label.rpartition(".")[2] if not label.endswith("*") else ".".join(label.split(".")[-2:])
    text = escape(label if len(label) <= space else f"{label[: max(0, space - 1)]}…") if space >= 3 else ""
    share = frame.ms / profile.step_ms
    return (
        f'<g class="{kind}"><title>{name}: {frame.ms:.2f} ms, {share:.1%}</title>'
        f'<rect x="{left:.2f}" y="{depth * ROW}" width="{max(0.3, width - 0.4):.2f}" height="{ROW - 1}"/>'
        + (f'<text x="{left + 2:.2f}" y="{depth * ROW + 12}">{text}</text>' if text else "")
        + "</g>"
    )


def memory(profile: Profile) -> str:
    """How much tensors have grown since the step began, over the step's time, as an SVG."""
    if len(profile.memory) < 2:
        return ""
    last, top, height = profile.memory[-1][0], max(profile.peak_mib, 0.001), 110
    low = min(0.0, *(grown for _, grown in profile.memory))
    points = [
        (WIDTH * at / last if last else 0.0, height - 14 - (height - 28) * (grown - low) / (top - low))
        for at, grown in profile.memory
    ]
    path = "".join(f"H{x:.1f}V{y:.1f}" for x, y in points[1:])
    drawn = (
        f'<path class="memory" d="M{points[0][0]:.1f} {points[0][1]:.1f}{path}"/>'
        f'<text x="2" y="11">{top:.1f} MiB</text><text x="2" y="{height - 2}">0 to {last:.1f} ms</text>'
    )
    return _svg(WIDTH, height, drawn, f"Memory over a step: at most {top:.1f} MiB more than at its start")


def _svg(width: int, height: int, drawn: str, title: str) -> str:
    style = (
        "text{font:11px ui-monospace,monospace;fill:#1d1f24}.phase rect{fill:#7db4ff}.module rect{fill:#9fd8a9}"
        ".autograd rect{fill:#f3c065}.operator rect{fill:#d9dce3}.memory{fill:none;stroke:#1f6feb}"
        "@media(prefers-color-scheme:dark){.memory{stroke:#6aa5ff}svg>text{fill:#e8eaee}}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(title)}"><style>{style}</style>{drawn}</svg>'
    )
