"""A real `canary-auth` server, asked by people with the rights that MLflow gives: whose policy judges, who may act."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from guard_doors import Refused, request
from guard_modes import ADMIN, PASSWORD, make, users
from servers import Server

from canary_mlflow.cli import canary
from canary_mlflow.gates import Policy
from canary_mlflow.policies import content_of, load_policy
from canary_mlflow.registry.judging.gatekeeper import gate
from canary_mlflow.registry.judging.unregistered import gate_change
from canary_mlflow.registry.plugin import guarded_store
from canary_mlflow.tracking.stores.store import prepare_store

SECRET = "the-password-of-the-database"


def run_as(who: str, uri: str, *words: str) -> Result:
    """A command in somebody's name."""
    return CliRunner().invoke(canary, [*words, "--tracking-uri", uri], env=dict(person(who)))


@dataclass(frozen=True, kw_only=True)
class Site:
    """A server with one guarded model, `m`, whose champion was judged as smoke."""

    uri: str
    database: str
    folder: Path
    recorded: Any

    def ask(self, who: str, method: str, route: str, body: Any = None) -> Any:
        """As somebody of that name. Raises Refused."""
        return request(f"{self.uri}/api/2.0/canary/{route}", method, body, person(who))

    def refusal(self, who: str, method: str, route: str, body: Any = None) -> Refused:
        with pytest.raises(Refused) as found:
            self.ask(who, method, route, body)
        return found.value

    def guard(self) -> Any:
        guarded_store.cache_clear()
        return guarded_store(self.database, self.database)


def person(name: str) -> Mapping[str, str]:
    return ADMIN if name == "admin" else {"MLFLOW_TRACKING_USERNAME": name, "MLFLOW_TRACKING_PASSWORD": PASSWORD}


PEOPLE = {"editor": "EDIT", "ann": "MANAGE", "bob": "MANAGE"}


@pytest.fixture(scope="module")
def site(recorder: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    from mlflow.server.auth.client import AuthServiceClient

    folder = tmp_path_factory.mktemp("people")
    database = f"sqlite:///{folder}/mlflow.db"
    make(database)
    environment = users(folder)
    with (
        Server(database, folder, registry=f"canary+{database}", app="canary-auth", environment=environment) as server,
        pytest.MonkeyPatch.context() as patch,
    ):
        for key, value in ADMIN.items():
            patch.setenv(key, value)
        client = prepare_store(server.uri)
        recorded = recorder(client=client, uri=server.uri, experiment=client.create_experiment("people"), model="m")
        gate(client, "m", recorded.version(), load_policy("smoke"))
        service = AuthServiceClient(server.uri)
        service.create_user("stranger", PASSWORD)
        for name, permission in PEOPLE.items():
            service.create_user(name, PASSWORD)
            service.grant_user_permission(name, "registered_model", "m", permission)
            service.grant_user_permission(name, "experiment", recorded.experiment, "EDIT")
        yield Site(uri=server.uri, database=database, folder=folder, recorded=recorded)


def lax(folder: Path) -> str:
    """A policy that lets everything through, and still calls itself smoke."""
    body = content_of("smoke")
    for rule in body["rules"].values():
        rule["margin"] = 2.0 if rule["worse"] == "higher" else 0.95
    file = folder / "lax.yaml"
    file.write_text(yaml.safe_dump(body))
    return str(file)


def as_editor(site: Site, **session: Any) -> str:
    """A version that the editor trained and registered. The store's own client does it, in the editor's name."""
    with pytest.MonkeyPatch.context() as patch:
        for key, value in person("editor").items():
            patch.setenv(key, value)
        return str(site.recorded.version(**session))


def test_a_candidate_does_not_choose_its_policy(site: Site) -> None:
    recorded = site.recorded
    session = recorded.session()
    run_id = recorded.children(session)[0]
    recorded.client.log_artifact(run_id, lax(site.folder))
    place = next((site.folder / "artifacts").rglob("lax.yaml"))
    version = as_editor(site, slower=2.5, tags={"canary.tier": str(place)})
    answer = site.ask("editor", "POST", "verdicts", {"model": "m", "version": version})["decision"]
    assert (answer["decision"], answer["promoted"]) == ("BLOCK", False)
    assert recorded.champion() == "1"
    assert answer["verdict"]["policy"]["rules"]["step_time"]["margin"] == 0.15


def test_a_tier_opens_no_file_of_the_server(site: Site) -> None:
    file = site.folder / "secrets.yaml"
    file.write_text(f"password: {SECRET}\nname: [unclosed\n")
    for number, tier in enumerate((str(file), lax(site.folder), "files")):
        recorded = replace(site.recorded, model=f"tagged-{number}")
        body = {"model": recorded.model, "version": recorded.version(runs=1, tags={"canary.tier": tier})}
        refused = site.refusal("admin", "POST", "verdicts", body)
        assert refused.status == 400
        assert "names no tier; expected one of facts, nightly, perf, smoke, or a policy" in refused.message
        assert SECRET not in refused.message
        assert str(site.folder) not in refused.message


def test_where_the_database_is_is_told_to_nobody(site: Site) -> None:
    """Not even that a session, a run or a version is not in it."""
    asked: tuple[tuple[str, dict[str, Any]], ...] = (
        ("sessions", {"model": "m", "session": "0" * 32, "word": "begun"}),
        ("verdicts", {"model": "m", "version": "99"}),
        ("seals", {"model": "m", "version": "99"}),
        ("seals", {"model": "m", "version": "1"}),
    )
    for route, body in asked:
        refused = site.refusal("editor", "POST", route, body)
        assert 400 <= refused.status < 500
        for private in (site.database, str(site.folder), "sqlite"):
            assert private not in refused.message, route
    missing = site.refusal("editor", "POST", *asked[0])
    assert (missing.status, f"run '{'0' * 32}': not in this server; expected the id" in missing.message) == (404, True)


def test_policies_are_the_administrators(site: Site) -> None:
    house = {**content_of("smoke"), "name": "house"}
    body = {"pattern": "other-*", "policy": "house", "content": house, "reason": "for the test"}
    for who in ("editor", "ann"):
        assert site.refusal(who, "POST", "policies", body).status == 403
    assert site.ask("admin", "POST", "policies", body)["row"]["kind"] == "policy"
    assert site.ask("editor", "GET", "policies?model=m")["in_force"]["policy"] == "smoke"
    assert site.refusal("editor", "GET", "policies").status == 403
    assert site.refusal("editor", "GET", "policies?model=other-1").status == 403
    wrong: tuple[tuple[dict[str, Any], str], ...] = (
        ({"policy": lax(site.folder), "content": None}, "content: no object"),
        ({"policy": lax(site.folder)}, "content: name: another"),
        ({"content": {"base": lax(site.folder), "name": "house"}}, "unknown key 'base'"),
        ({"content": {**house, "rules": {}, "alpha_block": 7}}, "expected a number above 0, at most 0.5"),
        ({"content": {**content_of("perf"), "name": "smoke"}, "policy": "smoke"}, "a shipped policy with other keys"),
    )
    for change, says in wrong:
        refused = site.refusal("admin", "POST", "policies", {**body, **change})
        assert (refused.status, says in refused.message) == (400, True), refused.message
    path = {"pattern": "m", "policy": lax(site.folder), "reason": "a path"}
    refused = site.refusal("admin", "POST", "policies", path)
    assert (refused.status, "not a shipped one; expected one of facts" in refused.message) == (400, True)
    assert len(site.guard().rows("", kind="policy")) == 1


def test_people_of_a_model_act_and_two_of_them_override_a_block(site: Site) -> None:
    careful = site.folder / "careful.yaml"
    careful.write_text("base: smoke\noverride: {operators: 2}\n")
    words = ("policy", "set", "m", str(careful), "--reason", "two people")
    refused = run_as("editor", site.uri, *words)
    assert (refused.exit_code, refused.output.count("\n")) == (4, 1), refused.output
    done = run_as("admin", site.uri, *words)
    assert (done.exit_code, "judged by policy careful from row" in done.output) == (0, True), done.output
    assert "by admin." in done.output
    shown = run_as("editor", site.uri, "policy", "show", "m").output
    assert shown.startswith("careful  (row ")
    assert "2 for an override of a BLOCK" in shown
    assert run_as("editor", site.uri, "policy", "show").exit_code == 4  # the policies of all models
    assert "careful for models like m" in run_as("admin", site.uri, "policy", "show").output

    version = as_editor(site, slower=2.0)
    judged = run_as("editor", site.uri, "gate", "m", version)
    assert judged.exit_code == 1, judged.output
    override = ("override", "m", version, "--reason", "slower is right")
    assert run_as("editor", site.uri, *override).exit_code == 4  # 403
    first = run_as("ann", site.uri, *override)
    assert (first.exit_code, first.stdout.startswith("ann asks to override the BLOCK")) == (3, True), first.output
    again = run_as("ann", site.uri, *override)
    assert (again.exit_code, "'ann' has asked for it in row" in again.output) == (4, True)
    assert site.recorded.champion() == "1"
    second = run_as("bob", site.uri, *override)
    assert second.exit_code == 0, second.output
    assert "override by bob, asked for by ann, in the ledger" in second.output
    assert site.recorded.champion() == version
    rows = site.guard().rows("m")
    assert [(row.kind, row.facts["actor"]) for row in rows[-2:]] == [("request", "ann"), ("override", "bob")]
    assert rows[-1].facts["asked_by"] == "ann"
    assert run_as("ann", site.uri, "rollback", "m", "--reason", "customers complain").exit_code == 0
    assert site.recorded.champion() == "1"
    assert site.refusal("ann", "POST", "blessings", {"model": "x", "version": "1", "reason": "r"}).status in (403, 404)
    verified = CliRunner().invoke(canary, ["audit", "verify", "--artifacts", str(site.folder / "artifacts"),
                                           "--tracking-uri", site.database])  # fmt: skip
    assert verified.exit_code == 0, verified.output


def test_a_session_is_told_what_the_server_judges_by(site: Site) -> None:
    version = as_editor(site)
    own = replace_margin(load_policy("smoke"), 9.0)
    with pytest.MonkeyPatch.context() as patch:
        for key, value in person("editor").items():
            patch.setenv(key, value)
        decision = gate(site.recorded.client, "m", version, own)
        refused = CliRunner().invoke(canary, ["gate", "m", version, "--policy", lax(site.folder)], env={
            **person("editor"), "MLFLOW_TRACKING_URI": site.uri})  # fmt: skip
    assert any("on this server, not by the smoke that was given: margin of" in note for note in decision.verdict.notes)
    assert (refused.exit_code, "; expected no other; leave out --policy" in refused.output) == (2, True), refused.output


def test_whoever_trains_the_first_version_learns_that_there_is_no_model(site: Site) -> None:
    """MLflow says 403 of a name that nobody has to whoever may nothing unasked."""
    for api in ("api", "ajax-api"):
        route = f"{site.uri}/{api}/2.0/mlflow/registered-models/get?name="
        for name, code in (("nobodys", 404), ("m", 403)):
            with pytest.raises(Refused) as found:
                request(f"{route}{name}", "GET", user=person("stranger"))
            assert found.value.status == code
    for route in ("policies", "ledger"):
        assert site.refusal("stranger", "GET", f"{route}?model=nobodys").status == 403


def test_a_session_is_shown_to_whoever_may_read_its_experiment(site: Site) -> None:
    recorded = site.recorded
    hidden = replace(recorded, experiment=recorded.client.create_experiment("hidden")).session(runs=1)
    shown = recorded.session(runs=1)

    def look(who: str, session: str) -> str:
        return str(request(f"{site.uri}/canary/session/{session}", "GET", user=person(who)))

    assert f"id={shown}" in look("editor", shown)
    assert f"id={hidden}" in look("admin", hidden)
    with pytest.raises(Refused, match="in an experiment that you may not read"):
        look("editor", hidden)
    with pytest.raises(Refused) as stranger:
        request(f"{site.uri}/canary/session/{shown}", "GET", user={})
    assert stranger.value.status == 401


def replace_margin(policy: Policy, margin: float) -> Policy:
    return replace(policy, rules=tuple(replace(rule, margin=margin) for rule in policy.rules))


def test_only_who_may_delete_the_files_prunes_them(site: Site) -> None:
    """Who may manage a model of his own and only read or edit the runs behind it could else remove their files."""
    from mlflow.server.auth.client import AuthServiceClient

    service, recorded = AuthServiceClient(site.uri), replace(site.recorded, model="space", seed=500)
    gate(recorded.client, "space", recorded.version(runs=2), load_policy("smoke"))
    assert gate(recorded.client, "space", recorded.version(slower=2.0), load_policy("smoke")).word == "BLOCK"
    session = recorded.session(runs=2)
    recorded.weights(recorded.children(session)[0])
    gate_change(recorded.client, "space", session, load_policy("smoke"))  # no version comes of it
    ids = recorded.client.get_model_version("space", "2").run_id, recorded.children(session)[0]
    files = [next(site.folder.rglob(f"{run_id}/artifacts/model/model.safetensors")) for run_id in ids]
    inside = ["prune", "--model", "space", "--tracking-uri", site.database]
    blind = CliRunner().invoke(canary, inside)
    assert (blind.exit_code, "expected to be told where; --artifacts" in blind.stderr) == (2, True)
    held = run_as("admin", site.uri, "verify-weights", "models:/space/1")  # a server that only the option names
    assert held.exit_code == 0, held.output
    seen = CliRunner().invoke(canary, [*inside, "--artifacts", str(site.folder / "artifacts")])
    assert "  goes   version 2 " in seen.stdout, seen.output
    service.grant_user_permission("ann", "registered_model", "space", "MANAGE")
    refused = run_as("ann", site.uri, "prune", "--model", "space", "--yes")
    assert (refused.exit_code, refused.stdout, all(map(Path.exists, files))) == (4, "", True), refused.output
    service.revoke_user_permission("ann", "experiment", recorded.experiment)
    service.grant_user_permission("ann", "experiment", recorded.experiment, "MANAGE")
    done = run_as("ann", site.uri, "prune", "--model", "space", "--yes")
    assert (done.exit_code, [file.exists() for file in files]) == (0, [False, True]), done.output
    (row,) = site.guard().rows("space", kind="prune")
    assert (row.version, row.facts["actor"], list(row.facts["files"])) == (2, "ann", ["model.safetensors"])
    pruned = run_as("ann", site.uri, "bless", "space", "2", "--reason", "x", "--despite-block")
    assert (pruned.exit_code, "pruned 20" in pruned.stderr, "by ann" in pruned.stderr) == (2, True, True)
    audit = ["audit", "verify", "--tracking-uri", site.database, "--artifacts", str(site.folder / "artifacts")]
    assert "'space'" not in CliRunner().invoke(canary, audit).output
    blind = CliRunner().invoke(canary, audit[:-2])  # files that nobody looks at are no damage
    assert (blind.exit_code, blind.stdout, "expected to be told where; --artifacts" in blind.stderr) == (2, "", True)
