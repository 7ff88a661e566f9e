"""What is asked of the guard, as values: who holds an alias, what a version is, what is to be recorded about it."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from canary_mlflow.ledger.chain import Kind

SOFTWARE = ("canary-mlflow", "mlflow", "numpy", "scipy")


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Which version holds an alias, and the ledger row that made it so; both None if nobody holds it.

    The row is also None for an alias from before the guard. Two standings are equal only if nothing moved in between.
    """

    version: int | None = None
    row: int | None = None

    @property
    def number(self) -> str | None:
        """The version as MLflow's client spells it."""
        return None if self.version is None else str(self.version)

    def __str__(self) -> str:
        if self.version is None:
            return "none"
        return f"version {self.version}" + (f" (ledger row {self.row})" if self.row else "")


@dataclass(frozen=True, kw_only=True)
class Binding:
    """The digests of a version. `version_created`: milliseconds since 1970. `artifact`: number and digest of the names
    and contents of the version's files. `runs`: run id → digest of everything that the judge reads of it, for both
    sides. `seal_row`: the ledger's row that sealed the files; None if the seal was not asked for. `evals`: number of
    each row on evaluations of both sides → digest of its table; None if its policy judges none."""

    version_created: int
    source: str
    artifact: str
    runs: Mapping[str, str]
    seal_row: int | None = None
    evals: Mapping[str, str] | None = None

    def to_facts(self) -> dict[str, Any]:
        """The binding as it is kept in the ledger."""
        runs = dict(sorted(self.runs.items()))
        evals = {} if self.evals is None else {"evals": dict(sorted(self.evals.items()))}
        return {"source": self.source, "artifact": self.artifact, "runs": runs, "seal_row": self.seal_row, **evals}


@dataclass(frozen=True, kw_only=True)
class Order:
    """What is to be recorded about a version, and whether the alias follows.

    `alias`: '' for a row that concerns none. `judged_against` None: no comparison was made, and any champion is
    replaced. `pins`: guarded aliases that the version also gets if nothing holds them yet. `tags`: set on the version.
    """

    kind: Kind
    model: str
    version: str
    word: str
    binding: Binding
    actor: str
    reason: str
    grants: bool = False
    moves: bool = False
    alias: str = ""
    pins: tuple[str, ...] = ()
    judged_against: Standing | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)


@cache
def software() -> Mapping[str, str]:
    """What judged: the versions of the packages that take part in a verdict, of Python, and the machine."""
    found = {"python": platform.python_version(), "machine": f"{platform.system()} {platform.machine()}"}
    for name in SOFTWARE:
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # a checkout on the path that is not installed
            found[name] = "not installed"
    return MappingProxyType(found)
