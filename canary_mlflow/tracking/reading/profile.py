"""Where a step's time goes, by a profiled training: phases, operators, modules, memory; kept in profile.json."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from canary_mlflow.errors import UsageError
from canary_mlflow.files.documents import parse_json

FOLDER = "profile"
FILE = f"{FOLDER}/profile.json"
TRACE = f"{FOLDER}/trace.json.gz"
"""In Chrome's trace format: opens in https://ui.perfetto.dev, which sends nothing anywhere, and in chrome://tracing."""
PROFILE = "profile"
"""`canary.role` of a run that only profiles."""
FORMAT = 1
MOST_DEPTH = 60


@dataclass(frozen=True, kw_only=True)
class Cost:
    """One phase, operator or module. `ms`: mean per step; an operator's own time, without the operators that it calls.
    `calls`: per step."""

    name: str
    ms: float
    calls: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Frame:
    """One call in the tree of a step; `ms` includes everything that it calls."""

    name: str
    ms: float
    children: Sequence[Frame] = ()


@dataclass(frozen=True, kw_only=True)
class Profile:
    """A profiled training. `steps`: number of profiled steps. `step_ms`: their mean; a profiled step is slower than
    others. `memory`: (ms, MiB) pairs of one step: by how much tensors grew since its start."""

    device: str
    steps: int
    step_ms: float
    phases: Sequence[Cost]
    operators: Sequence[Cost]
    modules: Sequence[Cost]
    memory: Sequence[tuple[float, float]] = field(default_factory=tuple)
    flame: Frame | None = None

    @property
    def peak_mib(self) -> float:
        """The most that tensors grew by within a step, in MiB."""
        return max((grown for _, grown in self.memory), default=0.0)

    def share(self, cost: Cost) -> float:
        """The share of the step's time."""
        return cost.ms / self.step_ms if self.step_ms else 0.0


@dataclass(frozen=True, kw_only=True)
class Profiled:
    """A profile with its place. `run_id`: the MLflow run whose artifacts hold it and its trace. `champion`: None if
    there is none."""

    run_id: str
    profile: Profile
    champion_run: str = ""
    champion: Profile | None = None


def to_text(profile: Profile) -> str:
    """The profile as JSON."""
    return json.dumps({"format": FORMAT, **asdict(profile)}) + "\n"


def from_text(text: str, where: str) -> Profile:
    """The profile of a profile.json. Raises UsageError for anything else."""
    try:
        found = parse_json(text)
        if found.get("format") != FORMAT:
            raise UsageError(f"{where}: format {found.get('format')!r}; expected {FORMAT}")
        costs = {name: tuple(Cost(**one) for one in found[name]) for name in ("phases", "operators", "modules")}
        return Profile(
            device=str(found["device"]),
            steps=int(found["steps"]),
            step_ms=float(found["step_ms"]),
            memory=tuple((float(at), float(grown)) for at, grown in found["memory"]),
            flame=None if found["flame"] is None else _frame(found["flame"]),
            **costs,
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsageError(f"{where}: not a profile ({error}); expected what canary profile wrote") from error


def _frame(found: Mapping[str, Any], depth: int = 0) -> Frame:
    children = found["children"] if depth < MOST_DEPTH else ()
    return Frame(
        name=str(found["name"]), ms=float(found["ms"]), children=tuple(_frame(one, depth + 1) for one in children)
    )
