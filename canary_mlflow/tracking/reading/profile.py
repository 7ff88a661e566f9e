"""Where a step's time goes, by a profiled training: phases, operators, modules, memory; kept in profile.json."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from canary_mlflow.errors import UsageError
from canary_mlflow.files.documents import parse_json

FOLDER = "profile"
FILE = f"{FOLDER}/profile.json"
TRACE = f"{FOLDER}/trace.json.gz"
"""In Chrome's trace format: opens in https://ui.perfetto.dev, which sends nothing anywhere, and in chrome://tracing."""
PROFILE = "profile"
"""`canary.role` of a run that only profiles."""
FORMAT = 2


@dataclass(frozen=True, kw_only=True)
class Cost:
    """One phase, operator or module. `ms`: mean per step; an operator's own time, without the operators that it calls.
    `calls`: per step."""

    name: str
    ms: float
    calls: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Profile:
    """A profiled training. `steps`: number of profiled steps. `step_ms`: their mean; a profiled step is slower than
    others. `grown_mib`: the most that tensors grew by within a step."""

    device: str
    steps: int
    step_ms: float
    phases: Sequence[Cost]
    operators: Sequence[Cost]
    modules: Sequence[Cost]
    grown_mib: float

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
            raise UsageError(f"{where}: format {found.get('format')!r}; expected {FORMAT}; canary profile --again")
        costs = {name: tuple(Cost(**one) for one in found[name]) for name in ("phases", "operators", "modules")}
        return Profile(
            device=str(found["device"]),
            steps=int(found["steps"]),
            step_ms=float(found["step_ms"]),
            grown_mib=float(found["grown_mib"]),
            **costs,
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsageError(f"{where}: not a profile ({error}); expected what canary profile wrote") from error
