"""The server app in this process: what may be asked, what is signed, and that nothing sent breaks it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from guard_fuzz import fuzz
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from canary_mlflow.errors import UsageError
from canary_mlflow.ledger.chain import flat
from canary_mlflow.registry.backends import registry_of
from canary_mlflow.server.answers import public
from canary_mlflow.server.requests import Query, Shape, parse, query
from canary_mlflow.server.routes import ROUTES, add_routes

BASE = "/api/2.0/canary"
NAMES = ("", " ", "x" * 10_000, "../../etc/passwd", "a/b", "a:b", "'; DROP TABLE canary_ledger; --", "\x00", "ü" * 200,
         "\ud800", "\u202e", "${jndi:x}", "<script>", "%s%n", "null", "0")  # fmt: skip


@pytest.fixture(scope="module")
def web(shared: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    from flask import Flask

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("_MLFLOW_SERVER_FILE_STORE", shared.uri)
        patch.setenv("_MLFLOW_SERVER_REGISTRY_STORE", f"canary+{shared.uri}")
        app = Flask("server")
        add_routes(app, authenticated=False)
        yield app.test_client()


def post(web: Any, route: str, body: Any) -> Any:
    return web.post(f"{BASE}/{route}", data=body if isinstance(body, bytes | str) else json.dumps(body))


def test_the_server_judges_signs_and_promotes(web: Any, guarded: Any) -> None:
    second = guarded.version()
    answer = post(web, "verdicts", {"model": guarded.model, "version": second}).get_json()
    assert (answer["decision"]["decision"], answer["decision"]["promoted"]) == ("PASS", True)
    assert guarded.uri not in json.dumps(answer)  # where the database is, is nobody else's business
    assert guarded.champion() == second
    rows = web.get(f"{BASE}/ledger", query_string={"model": guarded.model}).get_json()["rows"]
    about = [row for row in rows if row["kind"] != "session"]
    assert [(row["kind"], row["word"], row["moves"]) for row in about] == [
        ("seal", "sealed", 0),
        ("bless", "blessed", 1),
        ("seal", "sealed", 0),
        ("verdict", "PASS", 1),
    ]
    assert json.loads(rows[-1]["body"])["actor"].startswith("anonymous (")


def test_the_server_reads_and_seals_the_files_of_a_new_version(web: Any, recorded: Any) -> None:
    session = recorded.session(runs=2)
    run_id = recorded.children(session)[0]
    recorded.weights(run_id)
    recorded.client.create_registered_model(recorded.model)
    source = f"{recorded.client.get_run(run_id).info.artifact_uri}/model"
    tags = {"canary.session_id": session}
    recorded.client.create_model_version(recorded.model, source, run_id=run_id, tags=tags)
    body = {"model": recorded.model, "version": "1"}
    unsealed = post(web, "verdicts", body)
    assert (unsealed.status_code, "it has no seal" in unsealed.get_json()["message"]) == (400, True)
    for wrong in (
        {"weights": "some"},
        {"evaluation": []},
        {"evaluation": {"verdict": {}}},
        {"evaluation": {"recorded": {"eval_loss": "low"}}},
        {"evaluation": {"recorded": {"eval loss\n": 1.0}}},
        {"evaluation": {"different": [1]}},
        {"evaluation": {"failure": ""}},
        {"evaluation": {"recorded": {"eval_loss": float("nan")}}},
        {"evaluation": {"tolerance": 10**400}},
        {"files": {"model.safetensors": "0" * 64}},
    ):
        answer = post(web, "seals", {**body, **wrong})
        assert answer.status_code == 400, wrong
        assert answer.get_json()["message"].count("\n") == 0
    agreed = {"recorded": {"eval_loss": 0.5}, "repeated": {"eval_loss": 0.5}, "different": [], "tolerance": 1e-5}
    assert post(web, "seals", {**body, "evaluation": agreed}).get_json()["sealed"]["weights"] == "files"
    assert post(web, "seals", body).status_code == 400  # once
    assert post(web, "verdicts", body).get_json()["decision"]["promoted"]


def test_the_server_reads_the_runs_of_a_session_and_signs_what_it_found(web: Any, guarded: Any) -> None:
    session = guarded.session(tags={"canary.seeds": "0 1 2"})
    body = {"model": guarded.model, "session": session}
    for wrong in (
        {},
        {"word": "added"},
        {"word": "ended", "runs": {}},
        {"word": "ended", "session": ""},
        {"word": "ended", "session": "x" * 65},
    ):
        answer = post(web, "sessions", {**body, **wrong})
        assert answer.status_code == 400, wrong
    assert post(web, "sessions", {**body, "session": "0" * 32, "word": "ended"}).status_code == 404
    assert post(web, "sessions", {**body, "word": "begun"}).get_json()["session"]["id"] == session
    assert post(web, "sessions", {**body, "word": "begun"}).status_code == 400  # once
    assert post(web, "sessions", {**body, "word": "ended"}).get_json()["session"]["row"] is not None
    assert post(web, "sessions", {**body, "word": "ended"}).get_json()["session"]["row"] is None  # nothing is new
    rows = web.get(f"{BASE}/ledger", query_string={"model": guarded.model}).get_json()["rows"]
    first, last = (flat(json.loads(row["body"])) for row in rows if row["alias"] == session)
    assert (first["word"], first["seeds"]) == ("begun", ["0", "1", "2"])
    assert (last["word"], sorted(last["runs"])) == ("ended", sorted(guarded.children(session)))
    assert last["actor"].startswith("anonymous (")


def test_the_server_refuses_evidence_that_is_not_what_it_read(web: Any, guarded: Any) -> None:
    session = guarded.session(slower=2.0)
    version = guarded.register(session)
    body = {"model": guarded.model, "version": version}
    assert post(web, "verdicts", body).get_json()["decision"]["decision"] == "BLOCK"
    slow = guarded.children(session)[0]
    guarded.client.delete_run(slow)
    answer = post(web, "verdicts", body)
    assert answer.status_code == 400
    assert f"run {slow} (seed " in answer.get_json()["message"]


def test_the_server_takes_a_look_of_its_policys_plan(web: Any, guarded: Any) -> None:
    body = {"model": guarded.model, "version": guarded.version(runs=1), "by_plan": True}
    answer = post(web, "verdicts", body).get_json()["decision"]["verdict"]
    assert (answer["look"], answer["policy"]["alpha_pass"]) == (1, pytest.approx(0.3 * 0.05))
    assert post(web, "verdicts", {**body, "by_plan": "yes"}).status_code == 400


def test_a_verdict_without_promotion_leaves_the_alias_to_follow(web: Any, guarded: Any) -> None:
    second = guarded.version()
    answer = post(web, "verdicts", {"model": guarded.model, "version": second, "promote": False})
    assert answer.get_json()["decision"]["promoted"] is False
    assert guarded.champion() == "1"
    guarded.client.set_registered_model_alias(guarded.model, "champion", second)
    assert guarded.champion() == second


def test_a_block_is_signed_too_and_moves_nothing(web: Any, guarded: Any) -> None:
    answer = post(web, "verdicts", {"model": guarded.model, "version": guarded.version(slower=2.0)})
    assert (answer.status_code, answer.get_json()["decision"]["decision"]) == (200, "BLOCK")
    assert guarded.champion() == "1"


def test_evidence_of_another_session_is_refused(web: Any, guarded: Any) -> None:
    good, bad = guarded.session(), guarded.session(slower=2.0)
    posing = guarded.client.create_model_version(
        guarded.model, "/files", run_id=guarded.children(bad)[0], tags={"canary.session_id": good}
    )
    answer = post(web, "verdicts", {"model": guarded.model, "version": posing.version})
    assert answer.status_code == 400
    assert "is not in the session whose runs would speak for it" in answer.get_json()["message"]


@pytest.mark.parametrize(
    ("route", "body", "code", "says"),
    [
        ("verdicts", {"model": "$", "version": "1"}, 400, "it is the champion already"),
        ("verdicts", {"model": "$", "version": "77"}, 404, "not in the registry; versions: 1"),
        ("verdicts", {"model": "nobody", "version": "1"}, 404, "not in the registry; models:"),
        ("verdicts", {"model": "$", "version": "1", "outcome": "PASS"}, 400, "unknown key 'outcome'"),
        ("verdicts", {"model": "$", "version": "1", "policy": "lax"}, 400, "by policy smoke (shipped); leave out"),
        ("overrides", {"model": "$", "version": "1", "reason": "so"}, 403, "or run canary override where"),
        ("blessings", {"model": "$", "version": "1", "reason": "so"}, 403, "this server does not know who asks"),
        ("acceptances", {"model": "$", "version": "1", "reason": "so"}, 403, "or run canary accept-facts where"),
        (
            "rollbacks",
            {"model": "$", "reason": "so"},
            403,
            "does not know who asks, a name is missing; serve with --app-name "
            "canary-auth, or run canary rollback where",
        ),
        ("rollbacks", {"model": "$"}, 400, "no reason"),
        ("adoptions", {"model": "$", "reason": "so"}, 403, "or run canary adopt where"),
        ("prunings", {"model": "$"}, 403, "this server does not know who asks"),
        ("prunings", {"model": "$", "keep": 0}, 400, "keep: no number from 1 to"),
        ("prunings", {"model": "$", "keep": 1.5}, 400, "keep: no number from 1 to"),
        ("prunings", {"model": "$", "older_than": "1"}, 400, "older_than: no number from 0 to"),
    ],
)
def test_refusals_are_one_sentence(web: Any, guarded: Any, route: str, body: Any, code: int, says: str) -> None:
    sent = {key: guarded.model if value == "$" else value for key, value in body.items()}
    answer = post(web, route, sent)
    assert answer.status_code == code, answer.text
    message = answer.get_json()["message"]
    assert says in message
    assert "\n" not in message


def rows_in(shared: Any) -> int:
    return len(registry_of(shared.client).rows(everywhere=True))


WRITES = (
    "seals", "verdicts", "overrides", "blessings", "rollbacks", "adoptions", "policies", "acceptances", "prunings",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name[:12]))
def test_strange_names_store_nothing_and_break_nothing(web: Any, shared: Any, name: str) -> None:
    before = rows_in(shared)
    for route in WRITES:
        for key in ("model", "version", "reason", "pattern", "policy"):
            body = {"model": "m", "version": "1", "reason": "so", "pattern": "m", "policy": "smoke", key: name}
            body = {kept: value for kept, value in body.items() if kept in keys_of(route)}
            answer = post(web, route, body)
            assert 400 <= answer.status_code < 500, answer.text
            assert "Traceback" not in answer.text
    assert web.get(f"{BASE}/ledger", query_string={"model": name.encode(errors="replace")}).status_code in (200, 400)
    assert rows_in(shared) == before


def keys_of(route: str) -> tuple[str, ...]:
    short = {
        "seals": ("model", "version"),
        "verdicts": ("model", "version"),
        "prunings": ("model", "version"),
        "policies": ("pattern", "policy", "reason"),
    }
    by_name = dict.fromkeys(("rollbacks", "adoptions"), ("model", "reason"))
    return {**short, **by_name}.get(route, ("model", "version", "reason"))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda some: (
        st.lists(some, max_size=3) | st.dictionaries(st.sampled_from(["model", "version", "x"]), some, max_size=3)
    ),
    max_leaves=6,
)


def test_whatever_is_sent_the_answer_is_no_server_error(web: Any, request: pytest.FixtureRequest) -> None:
    bodies = st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode())

    @settings(max_examples=150 if request.config.getoption("--full") else 60, deadline=None)
    @given(body=bodies, route=st.sampled_from(ROUTES))
    def one(body: bytes, route: Any) -> None:
        answer = web.open(route.path, method=route.method, data=body)
        assert answer.status_code < 500, answer.text
        assert "Traceback" not in answer.text

    one()


SIGNS = st.text(max_size=60) | st.lists(
    st.sampled_from(["../", "/", "\\", "'; DROP TABLE runs; --", "%00", "%s", "\u202e", "\ud83d\ude00", "${x}", "a"]),
    max_size=8,
).map("".join) | st.sampled_from(["x" * 10_000, "\u00fc" * 10_000, "/" * 10_000])  # fmt: skip


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(model=SIGNS, reason=SIGNS, version=SIGNS | st.integers())
def test_whatever_a_thing_is_called_nothing_is_stored(
    web: Any, shared: Any, model: str, reason: str, version: Any
) -> None:
    before = rows_in(shared)
    for route in WRITES:
        body = {"model": model, "version": version, "reason": reason, "pattern": model, "policy": reason}
        answer = post(web, route, {key: body[key] for key in keys_of(route)})
        assert 400 <= answer.status_code < 500, answer.text
        assert "Traceback" not in answer.text
    asked = web.get(f"{BASE}/ledger", query_string={"model": model.encode(errors="replace")})
    assert asked.status_code in (200, 400), asked.text
    assert rows_in(shared) == before


def test_answers_are_those_that_the_document_knows(web: Any, shared: Any, request: pytest.FixtureRequest) -> None:
    import schemathesis

    before = rows_in(shared)
    schema = schemathesis.openapi.from_wsgi(f"{BASE}/openapi.json", web.application)
    sent = fuzz(schema, 1000 if request.config.getoption("--full") else 20)
    assert len(sent) == len(ROUTES) - 1  # all but the document itself
    assert rows_in(shared) == before


def test_every_route_is_described(web: Any) -> None:
    described = web.get(f"{BASE}/openapi.json").get_json()["paths"]
    assert {(where, method.upper()) for where, methods in described.items() for method in methods} == {
        (route.path, route.method) for route in ROUTES
    }


def test_requests_are_read_strictly() -> None:
    shape = Shape(required=("model", "version"), optional=("promote",))
    assert parse(b'{"model": "m", "version": 3, "promote": false}', shape) == {
        "model": "m",
        "version": "3",
        "promote": False,
    }
    for body in (b"[" * 10_000, b"{}", b"[]", b'{"model": "m"}', b'{"model": 1, "version": 1}', b"x" * 20_000,
                 b'{"model": "m", "version": true}', b'{"model": "m", "version": "1", "promote": 1}'):  # fmt: skip
        with pytest.raises(UsageError):
            parse(body, shape)
    assert query({"model": "m", "after": "3"}) == Query(model="m", version=None, after=3, limit=1000)
    assert query({"model": "m", "version": "2"}).version == 2
    for wrong in (
        {"x": "1"},
        {"version": "2"},
        {"model": "m", "version": "0"},
        {"after": "-1"},
        {"limit": "10001"},
        {"limit": "\u0663"},
    ):
        with pytest.raises(UsageError):
            query(wrong)


def test_artifacts_of_a_server_are_where_it_keeps_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from canary_mlflow.registry.guard.origin import behind_server

    assert behind_server("mlflow-artifacts:/1/x") == "mlflow-artifacts:/1/x"
    monkeypatch.setenv("_MLFLOW_SERVER_ARTIFACT_DESTINATION", str(tmp_path))
    assert behind_server("mlflow-artifacts:/1/x/artifacts/model") == f"{tmp_path}/1/x/artifacts/model"
    assert behind_server("mlflow-artifacts:/../../etc") == "mlflow-artifacts:/../../etc"
    assert behind_server("s3://bucket/x") == "s3://bucket/x"


def test_an_answer_names_no_place_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever an error of a library says."""
    backend = "postgresql+psycopg://ann:p#a/s@db.internal:5432/mlflow?sslmode=require"
    monkeypatch.setenv("_MLFLOW_SERVER_FILE_STORE", backend)
    monkeypatch.setenv("_MLFLOW_SERVER_REGISTRY_STORE", "canary+sqlite:////srv/registry.db")
    monkeypatch.setenv("_MLFLOW_SERVER_ARTIFACT_DESTINATION", "/srv/artifacts")
    for said, shown in (
        (f"run 'x': not in {backend}; expected", "run 'x': not in this server; expected"),
        ("run 'x': not in postgresql+psycopg://ann:***@db.internal:5432/mlflow?sslmode=require; expected",
         "run 'x': not in this server; expected"),
        ("cannot open 'sqlite:////srv/registry.db'", "cannot open 'this server'"),
        ("no such file:\n'/srv/artifacts/1/x'", "no such file: '…/1/x'"),
        ("in 'postgresql://bob:pw@other/y'", "in 'this server'"),
        ("version 3: s3://bucket/weights, of a mysql", "version 3: s3://bucket/weights, of a mysql"),
    ):  # fmt: skip
        assert public(said) == shown
