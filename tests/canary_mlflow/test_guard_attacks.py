"""Every way to move, remove or fake a champion, in every mode; docs/guard.md lists the outcome of each.

`python -m pytest tests/canary_mlflow/test_guard_attacks.py --write-docs` writes the table anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from guard_access import ROUTES, WHO, answer, may_edit, users
from guard_attack import RANK, Attack, Cell, carry_out
from guard_attacks import ATTACKS
from guard_doors import Refused, asked, request
from guard_evals import added, candidate, rows
from guard_modes import MODES, opened
from guard_scene import EXAMINED, Scene, findings, stage, tables, what_counts
from guard_table import ACCESS, compare, put, told, write
from mlflow.exceptions import MlflowException
from mlflow.server.auth.client import AuthServiceClient

SEEN: dict[tuple[str, str], Cell] = {}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every day the mode with the fewest barriers and that with the most; all with --full, and for the docs."""
    if "scene" in metafunc.fixturenames:
        whole = metafunc.config.getoption("--full") or metafunc.config.getoption("--write-docs")
        modes = [mode for mode in MODES if whole or mode in ("embedded", "split roles")]
        if metafunc.function in WITH_USERS:
            modes = ["split roles"]
        metafunc.parametrize("scene", modes, indirect=True, scope="module")


@pytest.fixture(scope="module")
def scene(request: pytest.FixtureRequest, recorder: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with opened(request.param, tmp_path_factory.mktemp("attacked")) as mode:
        yield stage(mode, recorder)


def test_before_any_attack_the_ledger_holds(scene: Scene) -> None:
    assert findings(scene) == set()


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_what_comes_of_an_attack_is_no_worse_than_the_docs_say(scene: Scene, attack: Attack) -> None:
    cell = carry_out(scene, attack)
    SEEN[attack.name, scene.mode.name] = cell
    assert RANK[cell.outcome] <= RANK[attack.worst], cell
    if not attack.door.startswith(
        "stock"
    ):  # a stock store takes a refusal by SQLite for a lost race, and gives up: 500
        assert (cell.status or 0) < 500, cell
    assert "Traceback" not in cell.answer


def test_who_may_call_which_route(scene: Scene, request: pytest.FixtureRequest) -> None:
    known = users(scene.mode)
    before = what_counts(tables(scene.mode))
    seen = {route: [answer(scene.mode, route, known[who]) for who in WHO] for route in ROUTES}
    assert what_counts(tables(scene.mode)) == before
    assert seen == MAY
    lines = [f"| route | {' | '.join(WHO)} |", "|---|" + "---|" * len(WHO)]
    lines += [f"| `{route}` | {' | '.join(answers)} |" for route, answers in seen.items()]
    if request.config.getoption("--write-docs"):
        put(ACCESS, lines)
    assert told(ACCESS) == lines


def test_a_permission_that_is_taken_away_is_gone_at_once(scene: Scene) -> None:
    """MLflow keeps who somebody is, here for ten minutes; what they may do is asked each time."""
    manager, service = users(scene.mode)["manager"], AuthServiceClient(scene.mode.front)
    assert answer(scene.mode, "POST rollbacks", manager) == "400"  # there is no former champion
    service.revoke_user_permission("manager", "registered_model", "lab")
    assert answer(scene.mode, "POST rollbacks", manager) == "403"
    service.grant_user_permission("manager", "registered_model", "lab", "EDIT")
    assert answer(scene.mode, "POST rollbacks", manager) == "403"
    service.revoke_user_permission("manager", "registered_model", "lab")
    service.grant_user_permission("manager", "registered_model", "lab", "MANAGE")
    assert answer(scene.mode, "POST rollbacks", manager) == "400"


def test_a_plain_editor_cannot_leave_runs_out(scene: Scene) -> None:
    """With MLflow's EDIT on the model and on the experiment, which lets nobody delete a run, but change it."""
    editor, recorded = users(scene.mode)["editor"], replace(scene.recorded, model="lab", seed=140)
    session = recorded.session(runs=2)
    bad = recorded.run(session, 2, slower=1.0, tags={}, nan_at=20, without=())
    recorded.weights(recorded.children(session)[0])
    body = {"model": "lab", "session": session, "word": "ended"}

    def ask(route: str, body: dict[str, Any]) -> Any:
        return request(f"{scene.mode.front}/api/2.0/{route}", "POST", body, editor)

    with pytest.raises(Refused) as stranger:
        ask("canary/sessions", body)
    assert stranger.value.status == 403
    may_edit(scene.mode, "experiment", recorded.experiment)
    assert ask("canary/sessions", body)["session"]["row"]
    version = recorded.register(session)
    assert ask("canary/verdicts", {"model": "lab", "version": version})["decision"]["decision"] == "BLOCK"
    ask("mlflow/runs/set-tag", {"run_id": bad, "key": "canary.nan_steps", "value": "0"})
    with pytest.raises(Refused, match=f"run {bad} \\(seed 2\\): its metrics or facts changed since row") as refused:
        ask("canary/verdicts", {"model": "lab", "version": version})
    assert refused.value.status == 400


def test_only_who_may_change_a_session_has_it_sealed_or_judged(scene: Scene) -> None:
    """Who may read it can register it under a name of their own. A seal would say once and for all which files it has,
    a verdict be written into it, and a first champion keep others from adding runs."""
    reader, recorded = users(scene.mode)["reader"], replace(scene.recorded, seed=150)
    session = recorded.session(runs=2)
    run_id = recorded.children(session)[0]
    recorded.weights(run_id)
    AuthServiceClient(scene.mode.front).grant_user_permission("reader", "experiment", recorded.experiment, "READ")

    def ask(route: str, **body: Any) -> Any:
        return request(f"{scene.mode.front}/api/2.0/{route}", "POST", body, reader)

    ask("mlflow/registered-models/create", name="own")
    source = f"{recorded.client.get_run(run_id).info.artifact_uri}/model"
    for tags in ([], [{"key": "canary.session_id", "value": session}]):
        made = ask("mlflow/model-versions/create", name="own", source=source, run_id=run_id, tags=tags)
        for route in ("seals", "verdicts"):
            with pytest.raises(Refused) as refused:
                ask(f"canary/{route}", model="own", version=made["model_version"]["version"])
            assert refused.value.status == 403
    assert scene.mode.guard().rows(kind="session", alias=session, everywhere=True) == []
    assert scene.mode.guard().rows("own") == []
    index = request(f"{scene.mode.front}/canary/sessions", "GET", None, reader)
    assert session in index  # of the experiments that somebody may read, on PostgreSQL too


def test_only_who_manages_a_model_evaluates_its_champion_or_withdraws(scene: Scene) -> None:
    known, version = users(scene.mode), candidate(scene, 400)
    run = added(scene, version, rows(200))
    may_edit(scene.mode, "registered_model", EXAMINED)
    with suppress(MlflowException):  # has it, from an earlier attack
        may_edit(scene.mode, "experiment", scene.recorded.experiment)
    for of, status in (("1", 403), (version, 400)):  # what others are compared with; a run that is added already
        body = {"model": EXAMINED, "version": of, "run": run}
        with pytest.raises(Refused) as refused:
            request(f"{scene.mode.front}/api/2.0/canary/evals", "POST", body, known["editor"])
        assert refused.value.status == status, of
    address, body = f"{scene.mode.front}/api/2.0/canary/withdrawals", {"model": EXAMINED, "version": version}
    with pytest.raises(Refused) as refused:
        request(address, "POST", body | {"row_or_run": run, "reason": "it fails"}, known["editor"])
    assert refused.value.status == 403
    request(address, "POST", body | {"row_or_run": run, "reason": "of another model"}, known["admin"])
    row = scene.mode.guard().rows(EXAMINED, kind="evals")[-1]
    assert (row.word, row.facts["actor"], row.facts["reason"]) == ("withdrawn", "admin", "of another model")


@pytest.mark.full
@pytest.mark.parametrize(
    "attack",
    [one for one in ATTACKS if one.door != "SQL" and not one.door.startswith("stock")],
    ids=lambda one: one.name,
)
def test_an_editor_gets_no_further_than_an_administrator(
    scene: Scene, attack: Attack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same attacks with EDIT on all models there are and on their experiment; judged as whoever sees everything."""
    editor = users(scene.mode)["editor"]
    models = [("registered_model", model.name) for model in scene.recorded.client.search_registered_models()]
    for kind, name in (*models, ("experiment", scene.recorded.experiment)):
        with suppress(MlflowException):  # has it, from an earlier attack
            may_edit(scene.mode, kind, name)

    def act(there: Scene) -> Any:
        with monkeypatch.context() as patch:
            for key, value in editor.items():
                patch.setenv(key, value)
            return asked(lambda: attack.act(there))

    cell = carry_out(scene, replace(attack, act=act))
    assert RANK[cell.outcome] <= RANK[attack.worst], cell
    assert (cell.status or 0) < 500, cell
    assert "Traceback" not in cell.answer


# What they are answered, in the order of WHO. 404 and 400 mean: allowed, but there is no such thing.
MAY = {
    "GET health": ["401", "200", "200", "200", "200"],
    "GET openapi.json": ["401", "200", "200", "200", "200"],
    "GET ledger?model=m": ["401", "200", "200", "200", "200"],
    "GET ledger": ["401", "403", "403", "403", "200"],
    "GET head": ["401", "200", "200", "200", "200"],
    "GET policies?model=m": ["401", "200", "200", "200", "200"],
    "GET policies": ["401", "403", "403", "403", "200"],
    "POST policies": ["401", "403", "403", "403", "400"],
    "POST seals": ["401", "403", "404", "404", "404"],
    "POST evals": ["401", "403", "404", "404", "404"],
    "POST withdrawals": ["401", "403", "403", "404", "404"],
    "POST sessions": ["401", "403", "404", "404", "404"],
    "POST sessions, a run ordered": ["401", "403", "403", "404", "404"],
    "POST verdicts": ["401", "403", "404", "404", "404"],
    "POST verdicts with an outcome": ["401", "400", "400", "400", "400"],
    "POST overrides": ["401", "403", "403", "404", "404"],
    "POST blessings": ["401", "403", "403", "404", "404"],
    "POST rollbacks": ["401", "403", "403", "400", "400"],
    "POST acceptances": ["401", "403", "403", "404", "404"],
    "POST prunings": ["401", "403", "403", "403", "404"],
    "POST adoptions": ["401", "403", "403", "403", "400"],
}


WITH_USERS = (
    test_who_may_call_which_route,
    test_a_permission_that_is_taken_away_is_gone_at_once,
    test_a_plain_editor_cannot_leave_runs_out,
    test_only_who_may_change_a_session_has_it_sealed_or_judged,
    test_only_who_manages_a_model_evaluates_its_champion_or_withdraws,
    test_an_editor_gets_no_further_than_an_administrator,
)


def test_the_docs_hold_what_was_seen(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--write-docs"):
        write(ATTACKS, SEEN)
    assert compare(ATTACKS, SEEN) == []
