"""Whether a session that still goes on can only fail, and what was saved by ending it then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from canary_mlflow.gates.model.policy import Policy
from canary_mlflow.gates.model.records import Version
from canary_mlflow.gates.model.wording import listed
from canary_mlflow.gates.top_up import certain
from canary_mlflow.policies import load_policy
from canary_mlflow.registry.acts.accepting import accepted_facts
from canary_mlflow.registry.backends import registry_of
from canary_mlflow.registry.judging.unregistered import champion_or_none
from canary_mlflow.registry.sessions.orders import session_evidence, version_with
from canary_mlflow.tags import LAST_STEP, MAX_STEPS, PARENT_RUN
from canary_mlflow.tracking.describing.compact import expanded
from canary_mlflow.tracking.stores.session import get_run, minutes_of_runs

if TYPE_CHECKING:
    from mlflow import MlflowClient


@dataclass(frozen=True, kw_only=True)
class FailFast:
    """Of one session. `policy`: the one that judges it: the registry's, if one is set there."""

    client: MlflowClient
    model: str
    session_id: str
    policy: Policy

    @classmethod
    def of(cls, client: MlflowClient, model: str, session_id: str, given: Any) -> FailFast:
        """`given`: the policy where the registry sets none."""
        governing = registry_of(client).governing(model)
        policy = governing.policy if governing else load_policy(given)
        return cls(client=client, model=model, session_id=session_id, policy=policy)

    @property
    def in_first_steps(self) -> bool:
        """Whether a run may end in its first steps; not where facts were accepted, which only the gate knows."""
        asked = self.policy.fail_fast and self.policy.hard.facts and self.policy.hard.invariants
        return asked and not accepted_facts(registry_of(self.client), self.model)

    def certain(self, missing: int) -> str:
        """The check that blocks the session although runs are `missing`; '' for none."""
        if not self.policy.fail_fast:
            return ""
        before = champion_or_none(self.client, self.model)
        baseline = None if before is None else version_with(self.client, self.model, before)
        runs = session_evidence(self.client, self.session_id, self.model)
        accepted = accepted_facts(registry_of(self.client), self.model)
        candidate = Version(model=self.model, version=None, runs=runs)
        return certain(self.policy, baseline, candidate, missing, accepted, by_plan=self.policy.top_up)

    def saved(self, run_id: str, check: str, seeds: Sequence[int], champion: Sequence[str]) -> str:
        """A sentence on what was not made. `run_id`: the last run, after which the check was certain, '' if it ended
        before its time; `seeds`: those that were not trained."""
        made = expanded(get_run(self.client, run_id).data.tags)
        steps, ended = int(made.get(MAX_STEPS) or 1), int(made.get(LAST_STEP) or 0)
        left = (len(seeds) + 1) * steps - ended
        others = (get_run(self.client, one).data.tags[PARENT_RUN] for one in champion[:1])
        took = next(filter(None, (minutes_of_runs(self.client, one) for one in (self.session_id, *others))), 0.0)
        why = f", as {check} blocks already" if check else ""
        return (
            f"the session ended at step {ended} of {steps}{why}; not made: seeds "
            f"{listed([*map(str, seeds)], 9) or 'none'}; saved: {left} steps, about {took * left / steps:.1f} minutes"
        )
