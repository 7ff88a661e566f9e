"""What everybody asks of a registry, whether it is our own database, a server that guards its own, or stock MLflow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from canary_mlflow.ledger.keys import PublicKeys
from canary_mlflow.registry.versions import CHAMPION

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

    from canary_mlflow.errors import CanaryError
    from canary_mlflow.ledger.chain import ReadRow, Record, Row
    from canary_mlflow.ledger.install import Guarded
    from canary_mlflow.registry.guard.evaluated import Evaluation
    from canary_mlflow.registry.guard.order import Order, Standing
    from canary_mlflow.registry.policies.in_force import InForce

Done = TypeVar("Done")


class Registry(Protocol):
    """A registry. What is said here without a class of its own holds for one without a ledger at hand: it has no rows,
    and nobody is named who alone may act."""

    client: MlflowClient
    signs: bool = False
    """Whether this process signs rows into its ledger: then a verdict covers exactly what these rows name."""

    @property
    def operators(self) -> tuple[str, ...]:
        """Who may act by hand; empty: nobody was named."""
        return ()

    @property
    def guarded_aliases(self) -> tuple[Guarded, ...]:
        """The aliases that move by rows alone."""
        return ()

    def do(
        self, route: str, body: Mapping[str, Any], here: Callable[[], Done], there: Callable[[Mapping[str, Any]], Done]
    ) -> Done:
        """Have something done by whoever signs: in this process, or by a server that is asked on its route. `there`:
        reads its answer. Raises as `here` does."""
        return here()

    def must_sign(self, otherwise: CanaryError) -> None:
        """Raise this error in a registry without a ledger."""
        raise otherwise

    # What it knows

    def standing(self, model: str, alias: str = CHAMPION) -> Standing:
        """Who holds an alias; to be passed back when something that was judged against it is recorded."""

    def rows(
        self, model: str | None = None, *, everywhere: bool = False, naming: str = "", after: int = 0,
        most: int | None = None, **about: Any,
    ) -> list[Row]:  # fmt: skip
        """Rows of the ledger in order, as `ledger.table.read` finds them, in the active workspace or `everywhere`."""
        return []

    def moves(self, model: str, alias: str = CHAMPION) -> list[Row]:
        """The rows that moved an alias, newest first."""
        return self.rows(model, alias=alias, moves=1)[::-1]

    def session_rows(self, session_id: str) -> list[Row]:
        """The rows about a session's beginning, end and later runs, in whatever workspace they were written."""
        return self.rows(kind="session", alias=session_id, everywhere=True)

    def life(self, session_id: str, model: str) -> Sequence[Row] | None:
        """The same, which must be signed by trusted keys; None without a ledger, none of a server's ledger that is not
        for this reader. Raises UsageError."""
        return None

    def checked_rows(self, model: str, version: int) -> list[ReadRow] | None:
        """The rows about a version with what is wrong with each, read-only; None without a ledger."""
        return None

    def keys(self) -> PublicKeys:
        """The keys that this account trusts, with what the ledger's rows say about them."""
        return PublicKeys(keys={})

    def governing(self, model: str) -> InForce | None:
        """The policy that judges a model whatever the caller asks for; None if the caller's own counts. Raises
        UsageError for a row that does not hold."""
        return None

    def policy_rows(self, model: str | None) -> list[Row] | None:
        """The rows that set policies, oldest first; on a server, those for a model if one is named. None without a
        ledger."""
        return None

    def seal(self, found: ModelVersion) -> Mapping[str, Any] | None:
        """What the seal of a version says; None for a version without one. Raises UsageError for a row that no trusted
        key signed."""

    def evaluations(self, found: ModelVersion) -> list[Evaluation]:
        """The version's evaluations, withdrawn ones too where there is a ledger. Raises UsageError for a row that no
        trusted key signed."""
        return []

    def pruned(self, found: ModelVersion) -> str:
        """When and by whom the version's files were given up, in words; '' if they were not."""

    # What it records

    def refuse_key(self) -> None:
        """Raise Refused if the ledger does not let this account's key sign."""
        return

    def record(self, order: Order) -> Row | None:
        """Record a verdict or an act, and move the alias if it says so; return the row, None without a ledger. Raises
        BaselineMoved, with nothing written, if somebody was faster, Refused otherwise."""

    def append(self, record: Record) -> Row | None:
        """Append a row that concerns no alias."""
        return None

    def registering(self) -> AbstractContextManager[None]:
        """For the length of a block, nobody else registers a version there. Raises StoreError."""
        return nullcontext()
