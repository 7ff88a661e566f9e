"""Stock MLflow: a server without our routes, or a database that has no triggers of ours. What is known is in tags."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from canary_mlflow.errors import BaselineMoved
from canary_mlflow.registry.backends.registry import Registry
from canary_mlflow.registry.guard.evaluated import FILE, Evaluation
from canary_mlflow.registry.guard.order import Standing
from canary_mlflow.registry.pruning.pruned import in_tags
from canary_mlflow.registry.versions import CHAMPION, Weights, holder_of
from canary_mlflow.tags import EVALS, SEAL, WEIGHTS, WEIGHTS_CHECKED
from canary_mlflow.tracking.stores.session import get_run

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

    from canary_mlflow.registry.guard.order import Order


class Stock(Registry):
    """A registry without a ledger. Anybody who may write tags could write what it is told."""

    def __init__(self, client: MlflowClient) -> None:
        self.client = client

    def standing(self, model: str, alias: str = CHAMPION) -> Standing:
        number = holder_of(self.client, model, alias)
        return Standing(version=None if number is None else int(number))

    def seal(self, found: ModelVersion) -> Mapping[str, Any] | None:
        tags: Mapping[str, str] = found.tags or {}
        if SEAL not in tags:
            return None
        weights, checked = tags.get(WEIGHTS, Weights.FILES), tags.get(WEIGHTS_CHECKED, "")
        return {"artifact": tags[SEAL], "weights": weights, "checked": checked}

    def evaluations(self, found: ModelVersion) -> list[Evaluation]:
        """As its tag names them; one that was withdrawn is not named any more."""
        runs = [get_run(self.client, run).info for run in str((found.tags or {}).get(EVALS, "")).split()]
        return [Evaluation(run=run.run_id, place=f"{run.artifact_uri}/{FILE}") for run in runs]

    def pruned(self, found: ModelVersion) -> str:
        return in_tags(found.tags or {})

    def record(self, order: Order) -> None:
        """Set tags, then aliases. Stock MLflow has no compare-and-set, so the alias is read again just before."""
        against = order.judged_against
        now = self.standing(order.model, order.alias) if against is not None else None
        if now != against:
            raise BaselineMoved(
                f"{order.model!r}: the {order.alias} became {now} while version {order.version} was judged against "
                f"{against}; expected it to stay; gate it again"
            )
        for key, value in order.tags.items():
            self.client.set_model_version_tag(order.model, order.version, key, value)
        if order.moves:
            free = [pin for pin in order.pins if holder_of(self.client, order.model, pin) is None]
            for alias in (order.alias, *free):
                self.client.set_registered_model_alias(order.model, alias, order.version)
