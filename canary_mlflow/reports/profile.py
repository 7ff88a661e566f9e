"""A profile as lines for a terminal, and its tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from canary_mlflow.shown import visible
from canary_mlflow.tracking.reading.profile import TRACE, Cost, Profiled

SHOWN = 8  # of each list
NAME = 60  # characters of the column of names, with the space behind it


def lines(found: Profiled, *, full: bool = False) -> Iterator[str]:
    """Phases, operators and modules, each with the champion's."""
    profile, champion = found.profile, found.champion
    beside = f", compared with the champion's, run {found.champion_run}" if champion else ", no profile of a champion"
    yield f"run {found.run_id}: {profile.steps} steps on {profile.device} under the profiler{beside}"
    yield f"step {_ms(profile.step_ms)}{_than(profile.step_ms, champion.step_ms if champion else None)}"
    if profile.grown_mib:
        yield f"tensors grow by at most {profile.grown_mib:.1f} MiB within a step" + (
            f" (champion {champion.grown_mib:.1f} MiB)" if champion else ""
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


def _ms(value: float) -> str:
    return f"{value:.1f} ms"


def _than(own: float, theirs: float | None) -> str:
    return f" (champion {_ms(theirs)}, {own / theirs - 1:+.0%})" if theirs else ""


def _number(cost: Cost | None) -> str:
    return "-" if cost is None else f"{cost.ms:.2f}"
