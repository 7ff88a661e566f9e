"""What is tried of an upgrade, and what came of it: packages, culprit, defaults, environments, the answer."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from canary_mlflow.gates.facts.exact import bare
from canary_mlflow.upgrading.judging import Diagnosis
from canary_mlflow.upgrading.pins import Change, Pins, moved


@dataclass(frozen=True, kw_only=True)
class PackageSets:
    """Both sets of packages and what moves between them."""

    before: Pins
    now: Pins

    @property
    def changes(self) -> list[Change]:
        """The packages that move."""
        return moved(self.before, self.now)


@dataclass(frozen=True, kw_only=True)
class Culprit:
    """The packages that explain what blocks; of a single one its first bad release, and a later one that is fine.
    `unexplained`: what blocks with all packages and not with these alone, so that another has a part in it."""

    packages: tuple[Change, ...]
    release: str = ""
    good_release: str = ""  # the last one before
    fixed_in: str = ""
    skipped: tuple[str, ...] = ()  # releases between that could not be tried
    needs: tuple[Change, ...] = ()  # what cannot stay where it was when these move
    unexplained: tuple[str, ...] = ()

    @property
    def moves(self) -> tuple[Change, ...]:
        """The packages, of a single one from its last release that is fine to the first that is not."""
        if not self.release:
            return self.packages
        return (replace(self.packages[0], before=self.good_release, now=self.release),)


@dataclass(frozen=True, kw_only=True)
class Default:
    """A setting that nobody gave and that resolves otherwise now; `explains`: what blocks does so no more with its old
    value, or with that of all that explain it. None where that was not or could not be tried."""

    key: str
    before: str
    now: str
    explains: bool | None = None

    @property
    def name(self) -> str:
        """The argument's own."""
        return bare(self.key).partition(".")[2]


@dataclass(frozen=True, kw_only=True)
class Environments:
    """How many were built, in how many seconds together, and how many were there before."""

    built: int = 0
    reused: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Upgrade:
    """What came of it. `seconds`: of all trainings, those of results that were kept from before too."""

    outcome: str  # PASS, BLOCK, INCONCLUSIVE
    changes: tuple[Change, ...]
    finding: Diagnosis
    culprit: Culprit | None = None
    defaults: tuple[Default, ...] = ()
    probes: tuple[dict[str, Any], ...] = ()  # each set that was tried, in order
    seconds: float = 0.0
    environments: Environments = Environments()

    @property
    def exit_code(self) -> int:
        """0, 1 or 3, as for a verdict."""
        return {"PASS": 0, "BLOCK": 1}.get(self.outcome, 3)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**asdict(self), "exit_code": self.exit_code}
