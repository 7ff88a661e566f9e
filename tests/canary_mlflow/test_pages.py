"""The pages under /canary as a server in this process gives them: what they say, of good data and of bad."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import sqlite3
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paged import a_run, last_row, site, text_of

from canary_mlflow.errors import StoreError
from canary_mlflow.pages.blueprint import ROUTES
from canary_mlflow.pages.requests import Readers
from canary_mlflow.policies import load_policy
from canary_mlflow.registry.acts.by_hand import override
from canary_mlflow.registry.judging.gatekeeper import gate
from canary_mlflow.registry.judging.unregistered import gate_session
from canary_mlflow.reports.charts import Band, keep_peaks, thinned
from canary_mlflow.tracking.stores.read_only import reading


@pytest.fixture
def web(shared: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    return site(shared.uri, monkeypatch)


def test_the_overview_names_champion_verdict_and_what_runs(web: Any, guarded: Any) -> None:
    second = guarded.version(slower=2.0)
    gate(guarded.client, guarded.model, second, load_policy("smoke"))
    session = guarded.client.create_run(
        guarded.experiment, tags={"canary.role": "session", "canary.model_name": guarded.model}, run_name="going on"
    ).info.run_id
    a_run(guarded, {"stability/loss": [2.0, 1.9]}, tags={"mlflow.parentRunId": session, "canary.max_steps": "40"})
    page = text_of(web.get("/canary"))
    row = page[page.index(f">{guarded.model}<") :]
    assert row.index('class="badge bad">BLOCK') < row.index(f"version {second}") < row.index("version 1")
    assert "step 2 of 40" in page
    assert 'value="2"' in page
    guarded.client.set_terminated(session)


def test_the_wall_has_red_first_and_a_block_that_left_no_version(web: Any, guarded: Any) -> None:
    for slower in (1.0, 2.0):
        gate(guarded.client, guarded.model, guarded.version(slower=slower), load_policy("smoke"))
    alone = guarded.session(nan_at=5, tags={"canary.model_name": f"{guarded.model}-never-registered"})
    gate_session(guarded.client, f"{guarded.model}-never-registered", alone, load_policy("smoke"))
    page = text_of(web.get("/canary"))
    wall = page[page.index('<table class="wall">') : page.index("</table>")]
    rows = {re.findall(r">([^<>]+)</a>", one)[0]: one for one in wall.split("<tr>")[2:]}
    words = [re.findall(r'class="badge \w+">(\w+)', one) for one in rows.values()]
    assert [found for found in words if found] == sorted(
        (found for found in words if found), key=lambda one: ["BLOCK", "INCONCLUSIVE", "PASS"].index(one[0])
    )
    assert f'/canary/session?id={alone}"' in rows[f"{guarded.model}-never-registered"]
    assert "no version" in rows[f"{guarded.model}-never-registered"]
    mine = rows[guarded.model]
    assert 'aria-label="1 BLOCK, 1 PASS, 1 blessed"' in mine
    assert re.search(r'aria-label="from [\d.]+ to [\d.]+, limit [\d.]+"', mine)
    assert "step_cost" in mine  # what decided
    assert 'class="tools"' in page
    assert 'class="tools"' not in web.get("/canary?screen=1").text


def test_a_warning_stands_on_the_overview_and_on_the_run(web: Any, recorded: Any) -> None:
    said = (
        '[{"step": 2, "stream": "kl", "level": "CRITICAL", "rule": "no_learning", "seen": "exactly 0", '
        '"meaning": "nothing is learned", "advice": "look at the optimizer"}]'
    )
    tags = {"canary.watch.level": "critical", "canary.watch.warnings": "1", "canary.watch.found": said}
    run_id = a_run(recorded, {"stability/kl": [0.0, 0.0]}, tags=tags)
    assert "CRITICAL</strong> <span>a run: kl at step 2, exactly 0" in text_of(web.get("/canary"))
    page = text_of(web.get(f"/canary/run?id={run_id}"))
    assert "Usually: nothing is learned. Try: look at the optimizer." in page
    assert web.get(f"/canary/run.json?id={run_id}").get_json()["warnings"] == [
        {"step": 2, "stream": "kl", "level": "CRITICAL"}
    ]
    recorded.client.set_terminated(run_id)
    assert run_id not in text_of(web.get("/canary")).split("Last sessions")[0]  # no warning of now


def test_a_run_shows_its_values_beside_the_champion_and_the_limits(web: Any, guarded: Any) -> None:
    session = guarded.session()
    guarded.client.set_tag(session, "canary.model_name", guarded.model)
    run_id = guarded.children(session)[0]
    page = text_of(web.get(f"/canary/run?id={run_id}"))
    assert "the range of 3 runs of the champion, version 1" in page
    assert 'step time</th><td class="number">' in page
    assert "at most 0 values" in page  # non-finite values
    band = web.get(f"/canary/band.json?id={run_id}").get_json()["series"]["loss"]
    own = web.get(f"/canary/run.json?id={run_id}").get_json()["series"]["loss"]
    assert band["steps"] == own["steps"] == list(range(1, 41))
    assert all(low <= high for low, high in zip(band["low"], band["high"], strict=True))


def test_only_what_is_new_is_sent_again(web: Any, recorded: Any) -> None:
    run_id = a_run(recorded, {"stability/loss": np.linspace(2, 1, 300)})
    whole = web.get(f"/canary/run.json?id={run_id}").get_json()
    assert (whole["whole"], whole["next"], len(whole["series"]["loss"]["steps"])) == (True, 300, 300)
    rest = web.get(f"/canary/run.json?id={run_id}&after=290").get_json()
    assert (rest["whole"], rest["series"]["loss"]["steps"][0]) == (False, 191)  # late values of some steps before
    assert (
        rest["series"]["loss"]["values"] == whole["series"]["loss"]["values"][-len(rest["series"]["loss"]["values"]) :]
    )


def test_rows_are_shown_before_they_are_sent(web: Any, recorded: Any, tmp_path: Path) -> None:
    """A running training has them in its file within a fifth of a second, in the store after ten."""

    def line(step: int, **values: Any) -> str:
        return (
            json.dumps({"timestamp": "2026-01-01T00:00:00.000+00:00", "step": step, "batch_size": 8, **values}) + "\n"
        )

    def drawn() -> dict[str, list[float]]:
        found = web.get(f"/canary/run.json?id={run_id}").get_json()
        assert found["next"] == 2  # what the store has: it may still get more of step 3 than the file
        return {name: [*one["steps"], *one["values"], *one.get("broken", ())] for name, one in found["series"].items()}

    def write(text: str) -> None:
        recorded.client.log_text(run_id, text, "stability.jsonl")

    run_id = a_run(recorded, {"stability/loss": [3.0, 2.0]})
    rows = [line(2, loss=9.0), line(3, loss=1.0, kl=0.5, ppo_clip_fraction="NaN", entropy=None), line(4, loss=0.5)]
    write("".join(rows) + rows[0][:20])  # a line that is being written
    assert drawn() == {"loss": [1, 2, 3, 4, 3.0, 2.0, 1.0, 0.5], "kl": [3, 0.5], "clip_fraction": [3]}
    session = web.get(f"/canary/session.json?id={run_id}&after=2").get_json()["runs"][0]
    assert session["series"]["loss"]["steps"] == [1, 2, 3, 4]
    for bad in (
        "no json\n",
        "[]\n",
        line(3)[:-3] + "\n",
        '{"step": 1e999}\n',
        line(3, loss="x", kl=True | 1 << 2000),
        "[",
    ):
        write(bad)
        assert drawn() == {"loss": [1, 2, 3.0, 2.0]}, bad
    kept = Path(recorded.client.get_run(run_id).info.artifact_uri.removeprefix("file://")) / "stability.jsonl"
    kept.unlink()
    (tmp_path / "elsewhere.jsonl").write_text(rows[1])
    kept.symlink_to(tmp_path / "elsewhere.jsonl")
    assert drawn() == {"loss": [1, 2, 3.0, 2.0]}
    kept.unlink()
    write("".join(rows))
    recorded.client.set_terminated(run_id)
    assert drawn() == {"loss": [1, 2, 3.0, 2.0]}


def test_a_page_is_packed_for_a_browser_that_can_read_it(web: Any) -> None:
    plain = web.get("/canary/sessions")
    packed = web.get("/canary/sessions", headers={"Accept-Encoding": "gzip, br"})
    assert "Content-Encoding" not in plain.headers
    assert packed.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(packed.data) == plain.data
    assert len(packed.data) < len(plain.data) / 2


def test_peaks_stay_in_100_000_points() -> None:
    rng = np.random.default_rng(0)
    steps, values = np.arange(100_000), rng.normal(0, 1, 100_000)
    values[54_321], values[77] = 900.0, -900.0
    kept_steps, kept = keep_peaks(steps, values, 800)
    assert len(kept) <= 800
    assert {54_321, 77, 0, 99_999} <= set(kept_steps.tolist())
    assert kept[kept_steps == 54_321] == 900
    band = thinned(Band(steps=steps, low=values - 1, high=values + 1))
    assert (band.low.min(), band.high.max(), len(band.steps)) == (-901, 901, 400)


def test_a_verdict_shows_reason_evidence_runs_and_signature(web: Any, guarded: Any) -> None:
    second = guarded.version(slower=2.0)
    decision = gate(guarded.client, guarded.model, second, load_policy("smoke"))
    seq = last_row(web, guarded.model)
    page = text_of(web.get(f"/canary/verdict?row={seq}"))
    assert decision.verdict.reason[1:] in page
    assert page.index("Changed: ") < page.index("Hard gates and notes")
    assert "--despite-block" in page  # what to do next
    assert "signature holds" in page
    cost = page[page.index('<span class="metric">step_cost') :].split("</details>")[0]
    assert (cost.count('class="baseline"'), cost.count('class="candidate"')) == (3, 3)
    assert "beyond the limit" in cost or "worse with p" in cost


def test_a_forged_row_is_said_to_be_forged(
    shared: Any, guarded: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gate(guarded.client, guarded.model, guarded.version(), load_policy("smoke"))
    copy = tmp_path / "copy.db"
    with sqlite3.connect(shared.uri.removeprefix("sqlite:///")) as source, sqlite3.connect(copy) as target:
        source.backup(target)
    with sqlite3.connect(copy) as forged:
        for (name,) in forged.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            forged.execute(f'DROP TRIGGER "{name}"')
        forged.execute(
            "UPDATE canary_ledger SET body = replace(body, 'PASS', 'pass') WHERE model = ?", (guarded.model,)
        )
    web = site(f"sqlite:///{copy}", monkeypatch)
    page = text_of(web.get(f"/canary/verdict?row={last_row(web, guarded.model)}"))
    assert "does not hold" in page
    assert "Its text does not match the digest stored with it" in page


def test_a_history_has_champions_trends_and_what_was_decided_by_hand(web: Any, guarded: Any) -> None:
    second = guarded.version()
    gate(guarded.client, guarded.model, second, load_policy("smoke"))
    page = text_of(web.get("/canary/model", query_string={"name": guarded.model}))
    champions, by_hand = page.split('id="champions"')[1], page.split('id="overrides"')[1]
    assert champions.index(f"version {second}") < champions.index("version 1<")
    assert "a baseline for the test" in by_hand.split("</section>")[0]
    trends = web.get("/canary/model.json", query_string={"name": guarded.model}).get_json()
    assert [point[1] for trend in trends["trends"] if trend["name"] == "eval_loss" for point in trend["points"]] == [2]


def test_every_verdict_is_in_the_history_also_one_without_a_number_or_a_row(web: Any, guarded: Any) -> None:
    broken, slow = guarded.version(nan_at=5), guarded.version(slower=2.0)
    for version in (broken, slow):
        gate(guarded.client, guarded.model, version, load_policy("smoke"))
    override(guarded.client, guarded.model, slow, "slower on purpose")
    hostile = "<script>alert(1)</script>"
    alone = guarded.session(nan_at=5, tags={"canary.model_name": guarded.model, "mlflow.runName": hostile})
    gate_session(guarded.client, guarded.model, alone, load_policy("smoke"))
    answer = web.get("/canary/model", query_string={"name": guarded.model})
    page = text_of(answer)
    assert hostile not in answer.text
    rows = page.split('id="rows"')[1]
    for version in (broken, slow):
        assert f"BLOCK</span> version {version}" in rows
    assert f'href="/canary/session?id={alone}"' in page.split('id="others"')[1]
    assert f'Champion: version {slow}. <span class="badge hand">made champion by hand' in page
    found = web.get("/canary/model.json", query_string={"name": guarded.model}).get_json()
    assert [(one["version"], one["word"]) for one in found["verdicts"]] == [
        (int(broken), "BLOCK"),
        (int(slow), "BLOCK"),
    ]
    assert found["by_hand"] == [1, int(slow)]
    (cost,) = (trend["points"] for trend in found["trends"] if trend["name"] == "step_cost")
    assert [(point[0], point[1]) for point in cost] == [(found["verdicts"][1]["row"], int(slow))]


def test_a_session_without_a_version_shows_what_blocked_it(web: Any, recorded: Any) -> None:
    session = recorded.session(nan_at=5)
    gate_session(recorded.client, recorded.model, session, load_policy("smoke"))
    page = text_of(web.get(f"/canary/verdict?session={session}"))
    assert "loss is NaN at step 5" in page
    assert "nobody signed" in page
    assert f"/canary/verdict?session={session}" in text_of(web.get("/canary"))
    found = json.loads(Path(recorded.client.download_artifacts(session, "verdict.json")).read_text(encoding="utf-8"))
    recorded.client.log_text(session, json.dumps({**found, "question": "what?"}), "verdict.json")
    answer = web.get(f"/canary/verdict?session={session}")
    assert answer.status_code == 404
    assert f"session {session}: no verdict.json among its artifacts that this server can read" in answer.text


def test_a_session_that_left_a_version_is_shown_with_its_row(web: Any, guarded: Any) -> None:
    session = guarded.session()
    version = guarded.register(session)
    gate(guarded.client, guarded.model, version, load_policy("smoke"))
    page = text_of(web.get(f"/canary/verdict?session={session}"))
    assert f"{guarded.model} version {version} against champion version 1" in page
    assert "signature holds" in page
    found = json.loads(Path(guarded.client.download_artifacts(session, "verdict.json")).read_text(encoding="utf-8"))
    other = guarded.session()
    guarded.client.log_text(other, json.dumps(found), "verdict.json")  # that of another session
    assert "nobody signed" in text_of(web.get(f"/canary/verdict?session={other}"))


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({}, "this run has made no step"),
        ({"stability/loss": [1.5]}, 'loss</th><td class="number">1.50'),
        ({"stability/loss": [float("nan")] * 5}, "not finite"),
    ],
    ids=["0 steps", "1 step", "all NaN"],
)
def test_a_run_with_hardly_anything_in_it_is_shown_with_words(web: Any, recorded: Any, values: Any, says: str) -> None:
    run_id = a_run(recorded, values, end="FINISHED")
    page = text_of(web.get(f"/canary/run?id={run_id}"))
    assert says in page
    assert "No band of a champion: this run belongs to no session of a registered model." in page
    series = web.get(f"/canary/run.json?id={run_id}").get_json()["series"]
    if values and np.isnan(values["stability/loss"]).all():
        assert series["loss"]["said"] == "No finite number in 5 values (NaN or infinity), from step 1 on."
        assert series["loss"]["values"] == []


def test_a_hostile_name_is_text(web: Any, recorded: Any) -> None:
    hostile = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"
    run_id = a_run(recorded, {"stability/loss": [1.0]}, end="FINISHED", name=hostile)
    for address in ("/canary", f"/canary/run?id={run_id}"):
        page = web.get(address).text
        assert "<script>alert" not in page
        assert "<img src=x" not in page
        assert "&lt;script&gt;alert(1)" in page


@pytest.mark.parametrize(
    ("address", "code", "says"),
    [
        ("run?id=nosuchrun", 404, "run 'nosuchrun': not in this store"),
        ("run", 400, "id: missing"),
        ("run?id=" + "x" * 500, 400, "id: no such name"),
        ("run?id=%00", 400, "id: no such name"),
        ("verdict?row=999999", 404, "row 999999: not in the ledger"),
        ("verdict?row=99999999999999999", 400, "row: no whole number"),
        ("verdict?row=-1", 400, "row: no whole number"),
        ("verdict", 400, "session: missing"),
        ("model?name=<script>", 404, "model '<script>': not in the registry"),
        ("run.json?id=x", 404, "run 'x': not in this store"),
        ("run.json?id=x&after=y", 400, "after: no whole number"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_a_sentence(web: Any, address: str, code: int, says: str) -> None:
    answer = web.get(f"/canary/{address}")
    assert says in text_of(answer, code)
    assert "<script>" not in answer.text.replace("<script src=", "")
    assert "Traceback" not in answer.text


def test_a_deleted_run_says_how_to_bring_it_back(web: Any, recorded: Any) -> None:
    run_id = a_run(recorded, {"stability/loss": [1.0]}, end="FINISHED")
    recorded.client.delete_run(run_id)
    assert f"mlflow runs restore --run-id {run_id}" in text_of(web.get(f"/canary/run?id={run_id}"), 404)


def no_champion(store: Any) -> None:
    store.version()


def no_runs(store: Any) -> None:
    store.client.set_terminated(store.client.create_run(store.experiment, tags={"canary.role": "session"}).info.run_id)


def half_deleted(store: Any) -> None:
    session = store.session()
    gate(store.client, store.model, store.register(session), load_policy("smoke"))
    for run_id in store.children(session)[1:]:
        store.client.delete_run(run_id)


def all_deleted(store: Any) -> None:
    session = store.session()
    gate(store.client, store.model, store.register(session), load_policy("smoke"))
    for run_id in [session, *store.children(session)]:
        store.client.delete_run(run_id)


def no_version(store: Any) -> None:
    store.client.create_registered_model(store.model)


@pytest.fixture(scope="module")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from canary_mlflow.tracking.stores.store import prepare_store

    file = tmp_path_factory.mktemp("empty") / "mlflow.db"
    prepare_store(f"sqlite:///{file}")
    return file


@pytest.mark.parametrize("fill", [None, no_champion, no_runs, half_deleted, all_deleted, no_version])
def test_every_link_answers_however_little_is_there(
    empty_store: Path, tmp_path: Path, recorder: Any, monkeypatch: pytest.MonkeyPatch, fill: Any
) -> None:
    from canary_mlflow.tracking.stores.store import prepare_store

    shutil.copy(empty_store, tmp_path / "mlflow.db")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    client = prepare_store(uri)
    if fill:
        experiment = client.create_experiment("own", artifact_location=str(tmp_path / "mlruns"))
        fill(recorder(client=client, uri=uri, experiment=experiment, model="own"))
    web = site(uri, monkeypatch)
    seen: set[str] = set()
    waiting = ["/canary", *(f"/canary/model.json?name={model.name}" for model in client.search_registered_models())]
    while waiting:
        address = waiting.pop()
        seen.add(address)
        answer = web.get(address)
        assert answer.status_code == 200, f"{address}: {answer.text[:500]}"
        found = [unescape(link) for link in re.findall(r'href="([^"#]+)', answer.text)]
        waiting += [link for link in found if link.startswith("/canary") and link not in {*seen, *waiting}]
    assert len(seen) >= 2 or fill is None


def test_the_demo_is_whole_and_every_link_in_it_leads_to_a_file(
    empty_store: Path, tmp_path: Path, recorder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`make demo`, of sessions that were made up."""
    from canary_mlflow.tracking.stores.store import prepare_store

    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "docs"))
    import demo

    shutil.copy(empty_store, tmp_path / "mlflow.db")
    client = prepare_store(uri := f"sqlite:///{tmp_path}/mlflow.db")
    experiment = client.create_experiment("own", artifact_location=str(tmp_path / "mlruns"))
    store = recorder(client=client, uri=uri, experiment=experiment, model="own")
    sessions = [store.session(slower=slower) for slower in (1.0, 1.0, 2.0, 1.0, 1.0)]
    words = [gate(client, "own", store.register(one), load_policy("smoke")).word for one in sessions[:3]]
    assert words[1:] == ["PASS", "BLOCK"]
    monkeypatch.setenv("_MLFLOW_SERVER_FILE_STORE", "")
    monkeypatch.setenv("_MLFLOW_SERVER_REGISTRY_STORE", "")
    texts = dict.fromkeys((demo.UPGRADE, demo.COMPARED), "BLOCK <b>")
    demo.make(tmp_path, place := tmp_path / "demo", texts)
    (place / "report.html").touch()  # `canary report` writes it
    files = {path.relative_to(place).as_posix() for path in place.rglob("*")}
    found = {unescape(value) for page in place.glob("*.html") for _, value in demo.LINK.findall(page.read_text())}
    led = {re.split(r"[#?]", link)[0] for link in found if not link.startswith(("http", "#", "data:"))}
    assert led - files - {""} == set()
    assert {
        "wall.html",
        "sessions.html",
        "upgrade.html",
        "evals.html",
        *(f"session-{one}.html" for one in sessions),
    } <= led
    lines = json.loads((place / f"session-{sessions[2]}.json").read_text())["runs"][0]["series"]
    assert {"loss", "eval_loss"} <= set(lines)
    assert "BLOCK &lt;b&gt;" in (place / "upgrade.html").read_text()
    assert "data-every" not in "".join(page.read_text() for page in place.glob("*.html"))


def test_evidence_whose_runs_are_deleted_leaves_the_verdict_readable(web: Any, guarded: Any) -> None:
    session = guarded.session(slower=2.0)
    gate(guarded.client, guarded.model, guarded.register(session), load_policy("smoke"))
    gone = guarded.children(session)[0]
    guarded.client.delete_run(gone)
    page = text_of(web.get(f"/canary/verdict?row={last_row(web, guarded.model)}"))
    assert f"1 of the runs that were judged is no longer in the store; dots are missing: {gone}" in page
    assert "signature holds" in page


def test_a_database_without_our_tables_or_from_another_time_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sqlite3.connect(tmp_path / "old.db") as old:
        old.execute(
            "CREATE TABLE runs (run_uuid TEXT, status TEXT, lifecycle_stage TEXT)"
        )  # MLflow 0.9 had few columns
    web = site(f"sqlite:///{tmp_path}/old.db", monkeypatch)
    for address in ("", "/run?id=x", "/verdict?row=1", "/model?name=m"):
        answer = web.get(f"/canary{address}")
        assert answer.status_code in (404, 503)
        assert "Traceback" not in answer.text
    assert "the database cannot be read" in text_of(web.get("/canary"), 503)
    assert "mlflow db upgrade" in web.get("/canary").text


def test_the_pages_can_only_read(web: Any, shared: Any) -> None:
    for path in ROUTES:
        for method in ("post", "put", "patch", "delete"):
            assert getattr(web, method)(f"/canary{path}").status_code == 405
    with pytest.raises(StoreError, match="readonly"), reading(shared.uri) as connection:
        connection.exec_driver_sql("UPDATE runs SET name = 'x'")


def test_no_script_or_request_but_our_own_is_allowed(web: Any) -> None:
    answer = web.get("/canary")
    rules = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'; script-src 'self'; style-src 'self'" in rules
    assert "unsafe" not in rules
    tags = Tags()
    tags.feed(answer.text)
    assert not {name for _, found in tags.seen for name in found if name == "style" or name.startswith("on")}
    assert all("src" in found for tag, found in tags.seen if tag == "script")
    addresses = {found[name] for _, found in tags.seen for name in ("src", "href") if name in found}
    assert all(one.startswith(("/", "#")) and not one.startswith("//") for one in addresses)
    assets = {one for one in addresses if "/static/" in one}
    assert len(assets) == 5
    for asset in assets:
        assert web.get(asset).status_code == 200


class Tags(HTMLParser):
    """Every tag of a page with its attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, {name: value or "" for name, value in attrs}))


def test_a_run_that_names_another_session_or_model_shows_nothing_of_it(
    guarded: Any, shared: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tags are anybody's: those of one's own run lead to no band, and put no run among those of somebody else."""
    champion = str(guarded.tags("1")["canary.session_id"])
    own = replace(guarded, experiment=guarded.client.create_experiment(f"own {guarded.model}"))
    mine = own.children(own.session(runs=1, tags={"canary.model_name": guarded.model}))[0]
    stray = own.run(champion, 9, slower=1.0, tags={}, nan_at=None, without=())
    may = Readers(model=lambda name: False, experiment=lambda number: number == own.experiment)
    web = site(shared.uri, monkeypatch, may)
    assert web.get(f"/canary/band.json?id={mine}").get_json()["series"] == {}
    assert f"you may not read that of {guarded.model}" in text_of(web.get(f"/canary/run?id={mine}"))
    page = web.get(f"/canary/run?id={stray}").text
    assert not [one for one in (champion, *guarded.children(champion)) if one in page]
    assert stray not in site(shared.uri, monkeypatch).get(f"/canary/session?id={champion}").text


def test_who_may_not_read_sees_nothing(guarded: Any, shared: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gate(guarded.client, guarded.model, guarded.version(), load_policy("smoke"))
    seq = last_row(site(shared.uri, monkeypatch), guarded.model)
    run_id = a_run(guarded, {"stability/loss": [1.0]}, name="secret run")
    web = site(shared.uri, monkeypatch, Readers(model=lambda name: False, experiment=lambda number: False))
    page = text_of(web.get("/canary"))
    assert guarded.model not in page
    assert "secret run" not in page
    for address in (f"run?id={run_id}", f"run.json?id={run_id}", f"band.json?id={run_id}", f"verdict?row={seq}",
                    f"model?name={guarded.model}", f"model.json?name={guarded.model}"):  # fmt: skip
        assert web.get(f"/canary/{address}").status_code == 403
    guarded.client.set_terminated(run_id)
