"""The routes. What a client claims is never signed: the server reads, computes and signs."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from flask import current_app, request
from mlflow import MlflowClient

from canary_mlflow import tags
from canary_mlflow.errors import (
    Refused,
    UsageError,
)
from canary_mlflow.ledger.uris import guarded_uri, plain_uri
from canary_mlflow.registry.actors import current_actor
from canary_mlflow.registry.plugin import SERVER_BACKEND, SERVER_REGISTRY
from canary_mlflow.server.answers import answered
from canary_mlflow.server.openapi import description, get, post
from canary_mlflow.server.requests import LEDGER, Shape, only_model, parse, query

if TYPE_CHECKING:
    from flask import Flask

    from canary_mlflow.ledger.chain import Row
    from canary_mlflow.registry.backends.database import Database

VERDICT = Shape(required=("model", "version"), optional=("promote", "policy", "by_plan"))
SEAL = Shape(required=("model", "version"), optional=("weights", "evaluation"))
EVALS = Shape(required=("model", "version", "run"))
WITHDRAWAL = Shape(required=("model", "version", "row_or_run", "reason"))
POLICY = Shape(required=("pattern", "policy", "reason"), optional=("content",))
SESSION = Shape(required=("model", "session", "word"), optional=("run",))
OVERRIDE = Shape(required=("model", "version", "reason"), optional=("alias", "without_weights"))
BLESSING = Shape(required=("model", "version", "reason"), optional=("without_weights",))
ACCEPTANCE = Shape(required=("model", "version", "reason"))
ROLLBACK = Shape(required=("model", "reason"))
ADOPTION = Shape(required=("model", "reason"), optional=("alias",))
PRUNING = Shape(required=("model",), optional=("version", "keep", "older_than"))


def add_routes(app: Flask, *, authenticated: bool) -> None:
    """Add the routes to MLflow's app, once."""
    app.config["CANARY_AUTHENTICATED"] = authenticated
    for route in ROUTES:
        endpoint = f"canary_{route.view.__name__}"
        if endpoint not in app.view_functions:
            app.add_url_rule(route.path, endpoint, answered(route.view), methods=[route.method])


def client() -> MlflowClient:
    """A client for the server's own databases."""
    backend = os.environ[SERVER_BACKEND]
    return MlflowClient(
        tracking_uri=backend, registry_uri=guarded_uri(plain_uri(os.environ.get(SERVER_REGISTRY) or backend))
    )


def registry() -> Database:
    """The server's registry. Raises Refused if its database has no triggers of ours."""
    from canary_mlflow.registry.backends import registry_of
    from canary_mlflow.registry.backends.database import Database

    found = registry_of(client())
    if not isinstance(found, Database):
        raise Refused("this server's registry is not in SQLite or PostgreSQL; expected a database that the guard knows")
    return found


def health() -> dict[str, Any]:
    """Whether the ledger can be read and the triggers are in place."""
    from canary_mlflow.ledger.install import missing_triggers
    from canary_mlflow.ledger.table import last

    with registry().store.engine.connect() as connection:
        row, missing = last(connection), missing_triggers(connection)
    return {"status": "triggers missing" if missing else "ok", "rows": row.seq if row else 0, "missing": missing}


def openapi() -> dict[str, Any]:
    """The description of these routes."""
    return description(ROUTES)


def ledger() -> dict[str, Any]:
    """Rows of the ledger, in order, and what it says about the keys that signed them."""
    from canary_mlflow.ledger.table import first_of_keys, key_rows

    asked = query(request.args)
    ours, everywhere = registry(), asked.model is None
    rows = ours.rows(asked.model, everywhere=everywhere, version=asked.version, after=asked.after, most=asked.limit + 1)
    with ours.store.engine.connect() as connection:
        keys = {"rows": [asdict(row) for row in key_rows(connection)], "first": first_of_keys(connection)}
    return {"rows": [asdict(row) for row in rows[: asked.limit]], "more": len(rows) > asked.limit, "keys": keys}


def head() -> dict[str, Any]:
    """The head of the ledger's last row, for those who keep heads elsewhere, and the digest of its first."""
    from canary_mlflow.ledger.table import last, row_at

    with registry().store.engine.connect() as connection:
        row, first = last(connection), row_at(connection, 1)
    return {"head": row.head if row else "", "ledger": first.digest if first else ""}


def verdicts() -> dict[str, Any]:
    """Judge a version from the stored histories by the policy in force for its model, sign, and move the alias."""
    from canary_mlflow.registry.backends import registry_of
    from canary_mlflow.registry.judging.gatekeeper import gate
    from canary_mlflow.registry.policies.asked import in_force
    from canary_mlflow.reports.decision import decision_to_dict

    asked = parse(request.get_data(), VERDICT)
    own = client()
    governing = in_force(registry_of(own), asked["model"], server=True)
    if asked.get("policy", governing.name) != governing.name:
        raise UsageError(f"policy: this server judges {asked['model']!r} by {governing}; leave out --policy")
    decision = gate(
        own,
        asked["model"],
        asked["version"],
        governing.policy,
        actor=current_actor(),
        promote=asked.get("promote"),
        by_plan=asked.get("by_plan", False),
        shown_store=request.host_url.rstrip("/"),
    )
    return {"decision": decision_to_dict(decision)}


def seals() -> dict[str, Any]:
    """Read the files of a new version and record their digests; how the run evaluated them is the client's claim."""
    from canary_mlflow.registry.guard.seal import seal_version
    from canary_mlflow.registry.versions import Weights

    asked = parse(request.get_data(), SEAL)
    weights = Weights(asked.get("weights", Weights.FILES))
    evaluation = asked.get("evaluation")
    seal_version(
        client(), asked["model"], asked["version"], weights=weights, evaluation=evaluation, actor=current_actor()
    )
    return {"sealed": {"model": asked["model"], "version": asked["version"], "weights": str(weights)}}


def evals() -> dict[str, Any]:
    """Read the table of an evaluation from its run, and record its digest."""
    from canary_mlflow.registry.evaluations import add_here

    asked = parse(request.get_data(), EVALS)
    add_here(registry(), asked["model"], asked["version"], asked["run"], current_actor())
    return {"evaluated": asked}


def withdrawals() -> dict[str, Any]:
    """Count an evaluation no more."""
    from canary_mlflow.registry.evaluations import withdraw_here

    asked = act(WITHDRAWAL, "evals add --withdraw")
    withdraw_here(registry(), asked["model"], asked["version"], asked["row_or_run"], asked["reason"], current_actor())
    return {"withdrawn": asked}


def read_policies() -> dict[str, Any]:
    """The policy in force for a model, and every row that concerns it; without a model, all rows."""
    from canary_mlflow.registry.policies.asked import in_force
    from canary_mlflow.registry.policies.in_force import matches, pattern_of

    model, ours = only_model(request.args), registry()
    rows = [row for row in ours.policy_rows(model) if model is None or matches(pattern_of(row), model)]
    governing = None if model is None else in_force(ours, model, server=True).to_dict()
    return {"in_force": governing, "rows": [asdict(row) for row in rows]}


def set_policies() -> dict[str, Any]:
    """Judge the models of a pattern by a shipped policy, or by one whose keys were sent. Paths are not accepted."""
    from canary_mlflow.policies import content_of, policy_names
    from canary_mlflow.registry.policies.asked import set_policy

    asked = parse(request.get_data(), POLICY)
    refuse_unknown_people(f"the policy of {asked['pattern']!r}", "policy set")
    name, content = asked["policy"], asked.get("content")
    if content is None and name not in policy_names():
        raise UsageError(f"policy: not a shipped one; expected one of {', '.join(policy_names())}, or its content too")
    if content is not None and content.get("name") != name:
        raise UsageError("content: name: another than the policy's; expected the same; see openapi.json")
    row = set_policy(registry().client, asked["pattern"], content or content_of(name), asked["reason"], current_actor())
    return {"row": asdict(row)}


def sessions() -> dict[str, Any]:
    """Record a row about a session; the server reads its runs, and what is in them, from its own store."""
    from canary_mlflow.registry.sessions.orders import record_order
    from canary_mlflow.registry.sessions.rows import Word, record
    from canary_mlflow.tracking.stores.session import get_run

    asked = parse(request.get_data(), SESSION)
    ours = registry()
    if get_run(ours.client, asked["session"]).data.tags.get(tags.ROLE) not in ("session", "run"):
        raise UsageError(f"session: {asked['session']} is no session; expected the id of one; see canary session start")
    word = Word(asked["word"])
    if (word is Word.ORDERED) != ("run" in asked):
        raise UsageError("run: goes with the word ordered, and that with a run; expected both or neither")
    if word is Word.ORDERED:
        refuse_unknown_people(f"run {asked['run']} of session {asked['session']}", "gate --top-up")
        row: Row | None = record_order(ours, asked["session"], asked["model"], asked["run"])
    else:
        row = record(ours, asked["session"], asked["model"], word)
    return {"session": {"id": asked["session"], "model": asked["model"], "row": row and row.seq}}


def overrides() -> dict[str, Any]:
    """Set a guarded alias to a version whatever its verdict."""
    from canary_mlflow.registry.acts.by_hand import override

    asked = act(OVERRIDE, "override")
    done = override(
        client(), asked["model"], asked["version"], asked["reason"], alias=asked.get("alias", "champion"),
        without_weights=asked.get("without_weights", False), actor=current_actor(),
    )  # fmt: skip
    return {done.KEY: done.to_dict()}


def blessings() -> dict[str, Any]:
    """Make a version champion by hand, unless a BLOCK stands against it."""
    from canary_mlflow.registry.acts.by_hand import bless

    asked = act(BLESSING, "bless")
    done = bless(
        client(), asked["model"], asked["version"], asked["reason"],
        without_weights=asked.get("without_weights", False), actor=current_actor(),
    )  # fmt: skip
    return {done.KEY: done.to_dict()}


def rollbacks() -> dict[str, Any]:
    """Bring back the previous champion."""
    from canary_mlflow.registry.acts.rollback import rollback

    asked = act(ROLLBACK, "rollback")
    return {"act": rollback(client(), asked["model"], asked["reason"], actor=current_actor()).to_dict()}


def adoptions() -> dict[str, Any]:
    """Record the first row of a champion that the ledger does not know."""
    from canary_mlflow.registry.acts.rollback import adopt

    asked = act(ADOPTION, "adopt")
    alias = asked.get("alias", "champion")
    return {"act": adopt(client(), asked["model"], asked["reason"], alias=alias, actor=current_actor()).to_dict()}


def acceptances() -> dict[str, Any]:
    """Accept a version's facts that differ from the champion's."""
    from canary_mlflow.registry.acts.accepting import accept_facts
    from canary_mlflow.registry.policies.asked import in_force

    asked, ours = act(ACCEPTANCE, "accept-facts"), registry()
    policy = in_force(ours, asked["model"], server=True).policy
    done = accept_facts(ours.client, asked["model"], asked["version"], asked["reason"], policy, actor=current_actor())
    return {"act": done.to_dict()}


def prunings() -> dict[str, Any]:
    """Which of a model's files would be removed; with a version, give up and remove its files."""
    from canary_mlflow.registry.pruning.needed import KEEP, Terms
    from canary_mlflow.registry.pruning.pruning import plan, prune

    asked = parse(request.get_data(), PRUNING)
    model, version = asked["model"], asked.get("version")
    refuse_unknown_people(f"files of model {model!r}", "prune")
    terms = Terms(keep=asked.get("keep", KEEP), older_than=asked.get("older_than", 0.0))
    if version is None:
        return {"fates": [asdict(fate) for fate in plan(client(), model, terms)]}
    return {"pruned": asdict(prune(client(), model, terms, version=version, actor=current_actor()))}


def act(shape: Shape, command: str) -> dict[str, Any]:
    """The body of an act by hand, for which a known person must answer; access.py checked who may manage the model."""
    asked = parse(request.get_data(), shape)
    alias, version = asked.get("alias", "champion"), asked.get("version", "(the former)")
    refuse_unknown_people(f"model {asked['model']!r}, version {version}, alias {alias!r}", command)
    return asked


def refuse_unknown_people(subject: str, command: str) -> None:
    """Raise Refused on a server without authentication."""
    if not current_app.config["CANARY_AUTHENTICATED"]:
        raise Refused(
            f"{subject}: this server does not know who asks, a name is missing; serve with --app-name canary-auth, or "
            f"run canary {command} where the database is"
        )


ROUTES = (
    get("health", health, "Ledger and triggers"),
    get("openapi", openapi, "This document", name="openapi.json"),
    get("ledger", ledger, "Rows of the ledger", *LEDGER),
    get("policies", read_policies, "The policy in force for a model, and the rows that set policies", "model"),
    post("set_policy", set_policies, POLICY,
         "Judge models by a shipped policy, or by one whose keys are all in content (administrators)", name="policies"),
    get("head", head, "The ledger's last row, to be kept elsewhere"),
    post("seals", seals, SEAL, "Record the digests of a new version's files, once"),
    post("evals", evals, EVALS, "Record an evaluation of a version, whose table is read from its run"),
    post("withdrawals", withdrawals, WITHDRAWAL, "Count an evaluation no more (MANAGE on the model)"),
    post("sessions", sessions, SESSION,
         "Record that a session has begun, or which runs it has, read from the store; or that a run of it, which has "
         "not begun, is one of the champion's code (ordered: MANAGE on the model)"),
    post("verdicts", verdicts, VERDICT,
         "Judge and sign; a PASS replaces an older champion, any with promote true, none with promote false"),
    post("overrides", overrides, OVERRIDE, "Give a version a guarded alias whatever its verdict (MANAGE on the model)"),
    post("blessings", blessings, BLESSING, "Make a version champion by hand (MANAGE on the model)"),
    post("rollbacks", rollbacks, ROLLBACK, "Return to the former champion (MANAGE on the model)"),
    post("adoptions", adoptions, ADOPTION, "Enter the champion of a model into the ledger (administrators)"),
    post("acceptances", acceptances, ACCEPTANCE,
         "Accept facts of a version that differ from the champion's (administrators)"),
    post("prunings", prunings, PRUNING,
         "Which files of a model nobody needs; with a version or a session, give up and remove that one's "
         "(MANAGE on the model and its experiments)"),
)  # fmt: skip
