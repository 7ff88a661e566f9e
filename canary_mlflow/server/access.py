"""Who may call which route, by MLflow's own permissions; for administrators MLflow does not ask."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from flask import g

from canary_mlflow import tags
from canary_mlflow.errors import NoSuchModel, NoSuchRun, NoSuchVersion, UsageError
from canary_mlflow.pages.blueprint import NAMED, paths, prefix
from canary_mlflow.pages.requests import Readers
from canary_mlflow.registry.pruning.needed import every_version, experiments_of
from canary_mlflow.registry.versions import aliases_of, champion_number, find_version, session_of
from canary_mlflow.server.openapi import path  # fmt: skip
from canary_mlflow.server.requests import Shape, only_model, parse, query
from canary_mlflow.server.routes import (
    ACCEPTANCE,
    BLESSING,
    EVALS,
    OVERRIDE,
    PRUNING,
    ROLLBACK,
    SEAL,
    SESSION,
    VERDICT,
    WITHDRAWAL,
    client,
)
from canary_mlflow.tracking.stores.session import get_run

Asked = TypeVar("Asked")
LOOKS_UP = tuple(f"/{api}/2.0/mlflow/registered-models/get" for api in ("api", "ajax-api"))


def add_validators(auth: Any) -> None:
    """Register the routes with MLflow's authentication, which refuses unknown ones to everybody."""
    from flask import request

    def posted(shape: Shape, may: Callable[[Any, Mapping[str, Any]], bool]) -> Callable[[], bool]:
        return after(lambda: parse(request.get_data(), shape), partial(may, auth))

    found: dict[tuple[str, str], Callable[[], bool]] = {
        ("health", "GET"): lambda: True,
        ("openapi.json", "GET"): lambda: True,
        ("head", "GET"): lambda: True,  # a digest, from which no row can be read
        ("ledger", "GET"): after(lambda: query(request.args).model, partial(may_read, auth)),
        ("seals", "POST"): posted(SEAL, may_speak),
        ("evals", "POST"): posted(EVALS, may_evaluate),
        ("withdrawals", "POST"): posted(WITHDRAWAL, may_manage),
        ("sessions", "POST"): posted(SESSION, may_tell),
        ("verdicts", "POST"): posted(VERDICT, may_speak),
        ("policies", "GET"): after(lambda: only_model(request.args), partial(may_read, auth)),
        ("policies", "POST"): lambda: False,
        ("overrides", "POST"): posted(OVERRIDE, may_manage),
        ("blessings", "POST"): posted(BLESSING, may_manage),
        ("rollbacks", "POST"): posted(ROLLBACK, may_manage),
        ("acceptances", "POST"): posted(ACCEPTANCE, may_manage),
        ("prunings", "POST"): posted(PRUNING, may_prune),
        ("adoptions", "POST"): lambda: False,
    }
    for (name, method), validator in found.items():
        auth.BEFORE_REQUEST_VALIDATORS[path(name), method] = validator
    for route in LOOKS_UP:
        known = auth.BEFORE_REQUEST_VALIDATORS.get((route, "GET"))
        if known is not None:
            auth.BEFORE_REQUEST_VALIDATORS[route, "GET"] = or_missing(known)
    for page in paths():  # any known user may open them; `readers` decides what they show
        auth.BEFORE_REQUEST_VALIDATORS[page, "GET"] = lambda: True
    find = auth._find_validator

    def find_ours_too(request: Any) -> Callable[[], bool] | None:
        """The validator of a request. Addresses that contain a name cannot be in MLflow's table of whole paths."""
        named = request.method == "GET" and request.path.startswith(f"{prefix()}{NAMED}")
        return (lambda: True) if named else find(request)

    auth._find_validator = find_ours_too


def or_missing(validator: Callable[[], bool]) -> Callable[[], bool]:
    """A validator that also allows requests for a model that does not exist: whoever trains its first version must be
    told so, and could find out anyway by creating the model, which anybody may."""

    def may() -> bool:
        from flask import request

        return validator() or is_missing(request.args.get("name", ""))

    return may


def is_missing(model: str) -> bool:
    """Whether there is no model of this name."""
    try:
        champion_number(client(), model)
    except NoSuchModel:
        return True
    return False


def readers(auth: Any) -> Readers:
    """What the current user may see on the pages, by MLflow's own permissions."""

    def may_read_model(name: str) -> bool:
        return bool(auth.sender_is_admin() or auth._get_registered_model_permission(name).can_read)

    def may_read_experiment(number: str) -> bool:
        user = g.mlflow_authenticated_user
        return bool(auth.sender_is_admin() or auth._get_experiment_permission(number, user).can_read)

    return Readers(model=may_read_model, experiment=may_read_experiment)


def after(read: Callable[[], Asked], may: Callable[[Asked], bool]) -> Callable[[], bool]:
    """A validator of what a request asks. One that will be refused with a message has nothing to protect."""

    def validator() -> bool:
        try:
            asked = read()
        except UsageError:
            return True
        return may(asked)

    return validator


def may_read(auth: Any, model: str | None) -> bool:
    """Whether the user may read the rows, or the policy: those of a readable model; all are for administrators."""
    return model is not None and bool(auth._get_registered_model_permission(model).can_read)


def may_tell(auth: Any, asked: Mapping[str, Any]) -> bool:
    """Whether the user may write rows about a session: one who may change its runs, and its model if that exists. What
    the champion is compared by, a run of its code, orders one who has MANAGE on the model."""
    if asked["word"] == "ordered" and not may_manage(auth, asked):
        return False
    # Whoever trains the first version creates the model.
    if not (is_missing(asked["model"]) or auth._get_registered_model_permission(asked["model"]).can_update):
        return False
    return may_change(auth, asked["session"])


def may_speak(auth: Any, asked: Mapping[str, Any]) -> bool:
    """Whether the user may ask for a verdict, or the seal that it needs: one who may change the model, which may get a
    champion by it, and the runs of the version's session: the verdict is written there, and both decide what may join
    it later."""
    if not auth._get_registered_model_permission(asked["model"]).can_update:
        return False
    try:
        session_id = session_of(find_version(client(), asked["model"], asked["version"]))
    except (NoSuchModel, NoSuchVersion):
        return True  # the answer will say that there is none
    return session_id is None or may_change(auth, session_id)


def may_evaluate(auth: Any, asked: Mapping[str, Any]) -> bool:
    """Whether the user may add an evaluation: as for a seal, and to one of their own runs; to a version that holds an
    alias, which others are compared with, one who has MANAGE on the model."""
    if not (may_speak(auth, asked) and may_change(auth, asked["run"])):
        return False
    try:
        found = find_version(client(), asked["model"], asked["version"])
    except (NoSuchModel, NoSuchVersion):
        return True  # the answer will say that there is none
    return may_manage(auth, asked) or not aliases_of(client(), found)


def may_change(auth: Any, run_id: str) -> bool:
    """Whether the user may change a run; True for a missing one, which the answer will name."""
    try:
        number = get_run(client(), run_id).info.experiment_id
    except NoSuchRun:
        return True
    return bool(auth._get_experiment_permission(number, g.mlflow_authenticated_user).can_update)


def may_manage(auth: Any, asked: Mapping[str, Any]) -> bool:
    """Whether the user may act by hand: one who has MANAGE on the model."""
    return bool(auth._get_registered_model_permission(asked["model"]).can_manage)


def may_prune(auth: Any, asked: Mapping[str, Any]) -> bool:
    """Whether the user may give up files: one who has MANAGE on the model and may delete in the experiments of its
    sessions. MANAGE alone is too little: whoever may read those can register their files as a new model."""
    if not may_manage(auth, asked):
        return False
    sessions = {session_of(one) for one in every_version(client(), f"name={tags.quoted(asked['model'])}")}
    user = g.mlflow_authenticated_user
    return all(auth._get_experiment_permission(one, user).can_delete for one in experiments_of(client(), sessions))
