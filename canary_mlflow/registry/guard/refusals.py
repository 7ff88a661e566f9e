"""The guard's refusals: one sentence each, with the thing, what is missing, and the command that provides it.

Only error codes that MLflow answers with 403 or 409: on 5xx its clients retry for minutes.
"""

from __future__ import annotations

import re
import shlex
from typing import Any

from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import PERMISSION_DENIED, RESOURCE_CONFLICT

from canary_mlflow import tags

SAID = re.compile(r"canary guard: ([^\n]*)")


def forbidden(text: str) -> Any:
    """HTTP 403."""
    return MlflowException(f"canary guard: {text}", error_code=PERMISSION_DENIED)


def by_trigger(context: Any) -> None:
    """A listener of SQLAlchemy's `handle_error`: raise a trigger's refusal as the guard's own, whatever statement of
    whatever method met it. MLflow would answer 400, or that the name exists already, with the statement and its
    parameters."""
    if said := SAID.match(str(context.original_exception)):
        raise forbidden(said[1]) from context.original_exception


def conflict(text: str) -> Any:
    """HTTP 409: judged against something that has changed."""
    return MlflowException(f"canary guard: {text}", error_code=RESOURCE_CONFLICT)


def gate_command(model: str, version: object) -> str:
    """The command that asks for a verdict."""
    return f"canary gate {shlex.quote(model)} {version}"


def override_command(model: str, version: object, alias: str) -> str:
    """The command that overrides a verdict, on record."""
    which = "" if alias == "champion" else f" --alias {shlex.quote(alias)}"
    return f'canary override {shlex.quote(model)} {version}{which} --reason "…"'


def rollback_command(model: str) -> str:
    """The command that returns to the former champion."""
    return f'canary rollback {shlex.quote(model)} --reason "…"'


def subject(alias: str, model: str, version: object) -> str:
    """The beginning of every refusal."""
    return f"alias {alias!r} of {model!r}, version {version}"


def no_verdict(alias: str, model: str, version: object) -> Any:
    """Nothing in the ledger lets this version hold this alias."""
    brings = gate_command(model, version) if alias == "champion" else override_command(model, version, alias)
    return forbidden(f"{subject(alias, model, version)}: there is no verdict for it in the ledger; run {brings}")


def not_plain(alias: str, model: str, version: object) -> Any:
    """Letters that look like others."""
    return forbidden(
        f"{subject(alias, model, version)}: it has signs outside ASCII, with which it may look like a guarded one; "
        "expected plain letters; spell it so"
    )


def not_granted(alias: str, model: str, version: object, word: str, held_back: Any) -> Any:
    """Judged, but not let through. `held_back`: what holds it back besides its verdict."""
    if held_back:
        why = "; ".join(str(one["reason"]) for one in held_back)
        return forbidden(
            f"{subject(alias, model, version)}: its verdict is {word}, and it is not promoted: {why}; see "
            f"{gate_command(model, version)}"
        )
    return forbidden(
        f"{subject(alias, model, version)}: its verdict is {word}, a PASS is missing; fix it and run "
        f"{gate_command(model, version)}, or {override_command(model, version, alias)}"
    )


def broken_row(alias: str, model: str, version: object, seq: int, what: str) -> Any:
    """A ledger row that no trusted key signed, or that was changed since."""
    return forbidden(
        f"{subject(alias, model, version)}: row {seq} of the ledger does not hold ({what}); see canary audit verify, "
        f"then run {gate_command(model, version)}"
    )


def stale(alias: str, model: str, version: object, what: str) -> Any:
    """What was judged is not what is there."""
    return conflict(
        f"{subject(alias, model, version)}: the verdict is stale, {what}; judge again: {gate_command(model, version)}"
    )


def pruned(alias: str, model: str, version: object, said: str) -> Any:
    """Its files were given up."""
    return forbidden(f"{subject(alias, model, version)}: {said}")


def still_needed(model: str, version: object, what: str) -> Any:
    """Its files cannot be given up any more."""
    return conflict(f"files of {model!r}, version {version}: {what}; nothing was removed; run canary prune again")


def moved(alias: str, model: str, version: object, judged: str, now: str) -> Any:
    """Somebody else was faster."""
    return conflict(
        f"{subject(alias, model, version)}: judged against {judged}, but the champion is {now} now; judge again: "
        f"{gate_command(model, version)}"
    )


def policy_set(alias: str, model: str, version: object, row: int | None) -> Any:
    """Another policy is in force now."""
    return conflict(
        f"{subject(alias, model, version)}: its verdict is by another policy than the one in force"
        f"{f' since row {row} of the ledger' if row else ''}; judge again: {gate_command(model, version)}"
    )


def stays(alias: str, model: str, version: object) -> Any:
    """A guarded alias is never taken away."""
    return forbidden(
        f"{subject(alias, model, version)}: a guarded alias is moved, not removed; {rollback_command(model)} returns "
        "to the former one"
    )


def held(what: str, alias: str, model: str, version: object) -> Any:
    """`what` would affect a guarded alias."""
    moves = (
        f"{gate_command(model, 'OTHER')} or {rollback_command(model)}"
        if alias == "champion"
        else override_command(model, "OTHER", alias)
    )
    return forbidden(f"{subject(alias, model, version)}: {what} would take the alias along; move it first with {moves}")


def name_taken(model: str, rows: int) -> Any:
    """A name with a history."""
    return forbidden(
        f"model {model!r}: the ledger holds {rows} rows about an earlier model of this name, with other versions and "
        f"aliases; choose another name (canary audit log {shlex.quote(model)} shows them)"
    )


def name_held(alias: str, model: str, version: object) -> Any:
    """A name that is in use."""
    return forbidden(
        f"{subject(alias, model, version)}: a model of this name is there already, with this alias; choose another name"
    )


def no_stages(model: str, version: object, stage: str) -> Any:
    """Stages would be a second way around the guard."""
    return forbidden(
        f"stage {stage!r} of {model!r}, version {version}: guarded models have aliases and no stages, a verdict is "
        f"missing; run {gate_command(model, version)} and load models:/{model}@champion"
    )


def stays_its_kind(model: str, key: str) -> Any:
    """MLflow treats a model with this tag as a prompt."""
    return forbidden(
        f"tag {key!r} of {model!r}: a guarded model stays a model, and a prompt a prompt; MLflow would not find it; "
        "choose another name"
    )


def reserved_tag(model: str, version: object, key: str) -> Any:
    """Tags that repeat what the ledger says."""
    place = f"tag {key!r} of {model!r}" + ("" if version is None else f", version {version}")
    return forbidden(
        f"{place}: tags that begin with {tags.OURS} are written with the verdict they show, alias champion follows it; "
        f"run {gate_command(model, 'VERSION' if version in (None, 'new') else version)}"
    )
