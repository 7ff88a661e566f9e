"""A session's page and the comparison of several, as a server in this process gives them."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from mlflow.entities import Metric
from paged import a_run, last_row, site, text_of

from canary_mlflow.analysis.subject import find_subject
from canary_mlflow.gates.model.records import Series
from canary_mlflow.pages import session as session_page
from canary_mlflow.pages.curves import strips_of
from canary_mlflow.pages.reference import band_of, departure, shipped_rules
from canary_mlflow.policies import load_policy
from canary_mlflow.registry.acts.accepting import accept_facts
from canary_mlflow.registry.acts.by_hand import bless
from canary_mlflow.registry.judging.gatekeeper import gate
from canary_mlflow.reports.charts import keep_means
from canary_mlflow.reports.decision import decision_to_dict
from canary_mlflow.reports.view import view_of


@pytest.fixture
def web(shared: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    return site(shared.uri, monkeypatch)


def blocked(store: Any) -> tuple[str, str]:
    """A session that is twice as slow, and its version."""
    session = store.session(slower=2.0, tags={"canary.model_name": store.model, "canary.env.torch": "9.9"})
    version = store.register(session)
    gate(store.client, store.model, version, load_policy("smoke"))
    return session, version


def test_a_session_shows_its_card_runs_differences_and_evidence(web: Any, guarded: Any) -> None:
    session, _ = blocked(guarded)
    page = text_of(web.get(f"/canary/session?id={session}"))
    assert page.index('<span class="word">BLOCK</span>') < page.index('class="chart large"') < page.index('id="curves"')
    assert page.index('id="runs"') < page.index("seed 0")
    assert "the range of 3 runs of the champion, version 1" in page
    assert "of the ledger</a>" in page
    table = page[page.index('id="differences"') :]
    assert table.index("torch") < table.index("2.13.0") < table.index("9.9")


def test_whatever_names_a_session_finds_its_page(web: Any, guarded: Any, usual_session: str) -> None:
    session, version = blocked(guarded)
    guarded.client.update_run(session, name=f"night of {guarded.model}")
    run = guarded.children(session)[0]
    words = (session, run, f"{guarded.model}/{version}", f"models:/{guarded.model}/{version}", session[:12],
             f"night of {guarded.model}")  # fmt: skip
    for word in words:
        answer = web.get(f"/canary/session/{word}", follow_redirects=True)
        assert session in text_of(answer), word
    champion = web.get(f"/canary/session/{guarded.model}@champion", follow_redirects=True)
    assert usual_session in text_of(champion)
    model = web.get(f"/canary/session/{guarded.model}", follow_redirects=True)
    assert "Champion: version 1" in text_of(model)


@pytest.mark.parametrize(
    ("address", "code", "says"),
    [
        ("session?id=nosuch", 404, "'nosuch': no run, session, version, model or name"),
        ("session", 400, "id: missing"),
        ("session?id=%00", 400, "id: no such name"),
        ("session?id=" + "x" * 500, 400, "id: no such name"),
        ("session.json?id=nosuch", 404, "no run, session"),
        ("session.json", 400, "found 0 to compare; expected two to six"),
        ("compare?a=x", 400, "found 1 to compare"),
        ("compare?a=x&b=<script>", 404, "'x': no run"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_a_sentence(web: Any, address: str, code: int, says: str) -> None:
    answer = web.get(f"/canary/{address}")
    assert says in text_of(answer, code)
    assert "<script>" not in answer.text.replace("<script src=", "")


def test_a_model_with_a_blank_in_its_name_is_found_and_one_with_a_slash_is_none(web: Any, recorded: Any) -> None:
    from dataclasses import replace

    spaced = replace(recorded, model=f"my {recorded.model} & more")
    version = spaced.register(session := spaced.session(runs=1))
    for word in (spaced.model, f"models:/{spaced.model}"):
        answer = web.get(f"/canary/session/{quote(word)}", follow_redirects=True)
        assert f"<h1>{spaced.model}</h1>" in text_of(answer), word
    answer = web.get(f"/canary/session/{quote(spaced.model)}/{version}", follow_redirects=True)
    assert session in text_of(answer)
    for word in (f"org/{spaced.model}", f"{spaced.model}/x/y", "no such", "<script>alert(404)</script>", "a%2Fb"):
        answer = web.get(f"/canary/session/{quote(word)}", follow_redirects=True)
        page = text_of(answer, 404)
        assert "<h1>Nothing to show</h1>" in page, word
        assert f"{word!r}: no run, session, version, model or name of one in this store" in page
        assert "<script>alert" not in answer.text
    assert "id: missing" in text_of(web.get("/canary/session/"), 400)
    assert "an address of 301 characters" in text_of(web.get(f"/canary/session/{'x' * 301}"), 400)


def test_a_version_that_is_not_there_is_said_to_be_none(web: Any, guarded: Any) -> None:
    for word in (f"{guarded.model}/99", f"{guarded.model}@nobody"):
        assert "no such version with a session" in text_of(web.get("/canary/session", query_string={"id": word}), 404)


def test_all_runs_are_in_the_answer_and_ranked_by_how_far_they_went(web: Any, guarded: Any) -> None:
    session, _ = blocked(guarded)
    found = web.get(f"/canary/session.json?id={session}").get_json()
    assert [run["name"] for run in found["runs"]] == ["seed 0", "seed 1", "seed 2"]
    assert found["whole"]
    assert found["bands"]["step_time"]["steps"] == list(range(1, 41))
    for run in found["runs"]:
        assert run["away"]["step_time"]["step"] == 1
        assert run["away"]["step_time"]["now"] == "above"
        assert run["away"]["step_time"]["far"] > 2 > run["away"]["loss"]["far"]
        assert run["away"]["loss"]["step"] is None
    rest = web.get(f"/canary/session.json?id={session}&after=30").get_json()
    assert (rest["whole"], rest["bands"]) == (False, {})
    one = web.get(f"/canary/session.json?id={session}&names=eval_margin").get_json()
    assert {name for run in one["runs"] for name in run["series"]} == {"eval_margin"}


def test_a_series_that_the_watch_spoke_of_has_a_chart(web: Any, recorded: Any) -> None:
    said = [
        {
            "step": 2,
            "stream": "truncated_share",
            "level": "WARN",
            "rule": "r",
            "seen": "s",
            "meaning": "m",
            "advice": "a",
        }
    ]
    tags = {"canary.watch.level": "warned", "canary.watch.warnings": "1", "canary.watch.found": json.dumps(said)}
    values = {"stability/truncated_share": [0.1, 0.9], "stability/loss": [1.0, 0.9], "own/thing": [1.0, 2.0]}
    page = text_of(web.get(f"/canary/session?id={a_run(recorded, values, end='FINISHED', tags=tags)}"))
    assert 'data-lines="truncated_share"' in page
    assert 'data-series="own/thing"' in page


def test_samples_are_shown_with_the_worst_first(web: Any, recorded: Any) -> None:
    hostile = "<script>alert(1)</script>"
    rows = [
        {"step": 5, "kind": "fixed", "prompt": "say hello", "answer": "hello"},
        {"step": 9, "kind": "fixed", "prompt": "say hello", "answer": "hallo"},
        {"step": 9, "kind": "worst", "prompt": "why", "answer": hostile, "reward": -3.5},
        {"step": 9, "kind": "best", "prompt": "why", "answer": "because", "reward": 2.0},
    ]
    run = a_run(recorded, {"stability/loss": [1.0]}, end="FINISHED")
    recorded.client.log_text(run, "".join(json.dumps(row) + "\n" for row in rows), "samples.jsonl")
    answer = web.get(f"/canary/session?id={run}")
    page = text_of(answer)
    assert page.index('<th scope="row">worst') < page.index("-3.5") < page.index("because") < page.index("hallo")
    assert hostile not in answer.text
    for step, said in ((0, "hello"), (6, "hello"), (8, "hallo"), (99, "hallo")):  # the nearest
        found = text_of(web.get(f"/canary/answers?id={run}&step={step}"))
        assert [word in found for word in ("hello <small>step 5", "hallo <small>step 9")] == [
            said == "hello",
            said == "hallo",
        ]
    other = a_run(recorded, {"stability/loss": [1.0]}, end="FINISHED")
    recorded.client.log_text(other, json.dumps(rows[0] | {"answer": "bonjour"}), "samples.jsonl")
    both = text_of(web.get(f"/canary/compare?a={run}&b={other}"))
    assert re.search(r"<td>hallo .{9,60}</td><td>bonjour ", both[both.index('id="samples"') :])
    recorded.client.log_text(run, "no json", "samples.jsonl")
    assert 'id="samples"' not in text_of(web.get(f"/canary/session?id={run}"))


def test_a_champions_answers_are_those_of_the_same_rollout(web: Any, guarded: Any) -> None:
    """It made half as many steps on each; so did its rows of `iteration_time` come twice as often."""

    def policy(updates: int) -> str:
        session = guarded.session(runs=1, tags={"canary.model_name": guarded.model})
        (run,) = guarded.children(session)
        metrics = [Metric("perf/iteration_time", 1.0, 1_700_000_000_000, at * updates) for at in range(1, 6)]
        guarded.client.log_batch(run, metrics=metrics)
        rows = (
            {"step": at * updates, "kind": "fixed", "prompt": "p", "answer": f"of rollout {at}"} for at in range(1, 6)
        )
        guarded.client.log_text(run, "".join(json.dumps(row) + "\n" for row in rows), "samples.jsonl")
        return session

    bless(guarded.client, guarded.model, guarded.register(policy(4)), "whose answers are known")
    found = text_of(web.get(f"/canary/answers?id={policy(8)}&step=16"))
    cells = re.findall(r"<td>(.*?) <small>step (\d+)", found)
    assert cells == [("of rollout 2", "8"), ("of rollout 2", "16")]


def test_several_are_compared_with_the_first(web: Any, guarded: Any) -> None:
    session, version = blocked(guarded)
    address = f"a={guarded.model}/1&b={session}"
    page = text_of(web.get(f"/canary/compare?{address}"))
    assert "COMPARISON, a gate would say BLOCK " in re.sub("<[^>]+>", "", page)
    assert "2 beside each other" not in page  # the verdict says it
    assert "the others are ranked by how far they go from it" in page
    found = web.get(f"/canary/session.json?{address}").get_json()
    assert [run["side"] for run in found["runs"]] == [0, 0, 0, 1, 1, 1]
    assert found["runs"][0]["away"] == {}
    assert found["runs"][5]["away"]["step_time"]["step"] == 1
    assert version


@pytest.mark.parametrize(
    ("recorded_series", "expected"),
    [
        (set(), []),
        ({"loss", "time_forward"}, []),  # one part alone is no whole
        ({"time_forward", "time_backward"}, ["Time of a step, by phase"]),
        (
            {"time_generate", "time_update", "time_forward", "reward_mean"},
            ["Time of an iteration, by phase", "mean reward"],
        ),
    ],
)
def test_strips_are_of_what_was_recorded(recorded_series: set[str], expected: list[str]) -> None:
    found = strips_of(recorded_series)
    assert [one.title for one in found] == expected
    assert all(set(one.names) <= recorded_series and one.inside is None for one in found)


def test_two_sessions_are_judged_as_the_command_judges_them(web: Any, guarded: Any, usual_session: str) -> None:
    from canary_mlflow.api import compare

    session, _ = blocked(guarded)
    rows = last_row(web, guarded.model)
    page = text_of(web.get(f"/canary/compare?a={usual_session}&b={session}"))
    said = view_of(compare(usual_session, session, tracking_uri=guarded.uri))
    assert said.shown
    for row in said.shown:
        assert f"{row.baseline} → {row.candidate}" in page
        assert f"{row.change} {row.range}" in page
    assert all(text in page for text in said.paragraphs)
    assert last_row(web, guarded.model) == rows  # nothing was written


def test_facts_that_somebody_accepted_block_no_comparison(web: Any, recorded: Any) -> None:
    def made(trainable: int) -> tuple[str, str]:
        facts = json.dumps({"trainable": str(trainable)})
        tags = {"canary.facts.parameters": facts, "canary.workload.data_digest": "ab12"}
        session = recorded.session(runs=2, tags={**tags, "canary.model_name": recorded.model})
        for run in recorded.children(session):
            recorded.client.log_param(run, "cfg/train.learning_rate", "0.002")
        return session, recorded.register(session)

    (before, first), (after, second) = made(14080), made(512)
    bless(recorded.client, recorded.model, first, "a baseline with facts")
    address = f"/canary/compare?a={before}&b={after}"
    assert "a gate would say BLOCK" in text_of(web.get(address))
    accept_facts(recorded.client, recorded.model, second, "frozen on purpose", load_policy("smoke"))
    assert "a gate would say BLOCK" not in text_of(web.get(address))


def test_what_cannot_be_judged_says_why(web: Any, recorded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there, plain = (recorded.session(runs=1, tags={"canary.tier": tier}) for tier in ("smoke", "smoke", ""))
    child = recorded.children(there)[0]

    def said(a: str, b: str) -> str:
        return text_of(web.get(f"/canary/compare?a={a}&b={b}")).split("<h1>")[1]

    assert said(here, there).startswith('<span class="word">COMPARISON, a gate would say')
    assert "Not judged: a verdict needs two sessions." in said(here, child)
    for one in recorded.children(plain):
        recorded.client.set_tag(one, "canary.workload.tier", "")
    assert "COMPARISON" in said(here, plain)  # the other side has a tier
    monkeypatch.setattr(session_page, "MOST", 10)
    assert f"Not judged here, where it would take too long: canary compare {here} {there}" in said(here, there)
    monkeypatch.undo()


def test_a_session_that_goes_on_or_has_no_tier_is_not_judged(web: Any, recorded: Any) -> None:
    one, other = (recorded.session(runs=1, tags={"canary.tier": ""}) for _ in range(2))
    page = text_of(web.get(f"/canary/compare?a={one}&b={other}"))
    assert (
        f"Not judged: these runs carry no tier, which chooses the rules; canary compare {one} {other} --policy" in page
    )
    recorded.client.update_run(other, status="RUNNING")
    assert "Not judged: one of them has not ended." in text_of(web.get(f"/canary/compare?a={one}&b={other}"))
    recorded.client.set_terminated(other)


def test_two_sides_show_what_differs_first_and_what_is_equal_folded(web: Any, recorded: Any) -> None:
    hostile = "<script>alert(1)</script>"
    tags = {"canary.facts.defaults": json.dumps({"optim": "adamw_torch", "bf16": "false"}),
            "canary.env.git_commit": "a" * 40, "canary.env.git_dirty": "false"}  # fmt: skip
    here, there = (
        recorded.session(runs=1, tags={**tags, "canary.env.git_commit": commit * 40, "canary.env.trl": trl})
        for commit, trl in (("a", "1.15.0"), ("b", "1.16.0"))
    )
    for session, rate, note in ((here, "0.002", hostile), (there, "0.02", "plain")):
        settings = {"train.learning_rate": rate, "bf16": "false", "note": note, "data.path": "None"}
        for key, value in settings.items():
            recorded.client.log_param(recorded.children(session)[0], f"cfg/{key}", value)
    answer = web.get(f"/canary/compare?a={here}&b={there}")
    page = text_of(answer)
    assert hostile not in answer.text
    differing = page[page.index('id="differences"') : page.index('class="equal"')]
    for row in (
        ("train.learning_rate", "0.002", "0.02", "configuration"),
        ("commit", "aaaaaaa", "bbbbbbb", "code"),
        ("trl", "1.15.0", "1.16.0", "packages"),
        ("note", hostile, "plain", "configuration"),
    ):
        cells = [f'<th scope="row">{row[0]}</th>', *(f"<td>{cell}</td>" for cell in row[1:])]
        assert " ".join(cells).replace("> <", "><") in differing.replace("> <", "><"), row
    assert "bf16" not in differing
    equal = page[page.index('class="equal"') : page.index('id="watch"')]
    assert "torch" in equal
    assert '<th scope="row">bf16</th><td>false <small class="badge">default</small></td>' in equal
    assert '<th scope="row">data.path</th><td><span class="quiet">not set</span></td>' in equal
    assert page.index('id="differences"') < page.index('id="curves"')


def test_a_verdict_leads_to_both_sides_beside_each_other(web: Any, guarded: Any, usual_session: str) -> None:
    session, _ = blocked(guarded)
    link = f'href="/canary/compare?a={usual_session}&b={session}"'
    assert link in text_of(web.get(f"/canary/verdict?row={last_row(web, guarded.model)}"))
    assert link in text_of(web.get(f"/canary/verdict?session={session}"))
    first = int(last_row(web, guarded.model)) - 1
    assert "/canary/compare" not in web.get(f"/canary/verdict?row={first}").text  # an act by hand has no sides


def test_a_run_says_when_it_was_at_which_step_and_how_many_tokens_it_had_seen(web: Any, guarded: Any) -> None:
    session, _ = blocked(guarded)
    found = web.get(f"/canary/clock.json?id={session}").get_json()
    clock = found["runs"][guarded.children(session)[0]]
    assert clock["steps"] == list(range(1, 41))
    assert clock["seconds"][::39] == [0.0, 0.039]  # as they were recorded
    assert clock["tokens"][::39] == [1024, 40 * 1024]
    assert found["reference"]["steps"] == clock["steps"]


def test_a_run_without_rows_has_no_clock_and_one_without_tokens_says_so(web: Any, recorded: Any) -> None:
    bare, some = a_run(recorded, {}), a_run(recorded, {"stability/loss": [1.0, 0.5]})
    assert web.get(f"/canary/clock.json?id={bare}").get_json() == {"runs": {}, "reference": None}
    clock = web.get(f"/canary/clock.json?id={some}").get_json()["runs"][some]
    assert (clock["seconds"], clock["tokens"]) == ([0.0, 0.001], None)


def test_a_chart_is_given_as_csv_with_every_value(web: Any, recorded: Any) -> None:
    run = a_run(recorded, {"stability/loss": [1.5, float("nan"), 0.25], "-1.x": [1.0]}, tags={"canary.seed": ""},
                name="=HYPERLINK(1)")  # fmt: skip
    answer = web.get("/canary/session.csv", query_string={"id": run, "names": "loss,-1.x,nosuch"})
    assert answer.mimetype == "text/csv"
    assert list(csv.reader(io.StringIO(answer.text))) == [
        ["run", "name", "step", "loss", "'-1.x", "nosuch"],
        [run, "'=HYPERLINK(1)", "1", "1.5", "1.0", ""],
        [run, "'=HYPERLINK(1)", "2", "nan", "", ""],
        [run, "'=HYPERLINK(1)", "3", "0.25", "", ""],
    ]
    assert "names: missing" in text_of(web.get(f"/canary/session.csv?id={run}"), 400)


def test_a_long_series_is_its_mean_beside_its_range_and_a_stretch_of_it_comes_whole(web: Any, recorded: Any) -> None:
    values = np.random.default_rng(0).normal(1, 0.1, 3000)
    values[1234] = 50.0
    run = a_run(recorded, {"stability/loss": values})
    whole = web.get(f"/canary/session.json?id={run}").get_json()["runs"][0]["series"]["loss"]
    assert len(whole["steps"]) <= 400
    assert max(whole["high"]) == 50
    assert max(whole["values"]) < 10
    assert (whole["steps"][-1], whole["values"][-1]) == (3000, float(f"{values[-1]:.6g}"))
    stretch = web.get(f"/canary/session.json?id={run}&from=1200&to=1300&names=loss").get_json()
    part = stretch["runs"][0]["series"]["loss"]
    assert part["steps"] == list(range(1200, 1301))
    assert part["values"][35] == 50
    assert "to: no whole number" in text_of(web.get(f"/canary/session.json?id={run}&to=x"), 400)


def test_means_of_stretches_add_up() -> None:
    steps, values = np.arange(1, 10_008), np.random.default_rng(0).normal(0, 1, 10_007)
    kept, mean, low, high = keep_means(steps, values, 400)
    assert (len(kept), kept[-1], mean[-1]) == (400, 10_007, values[-1])
    counts = np.diff(kept, prepend=0)
    assert float((mean * counts).sum()) == pytest.approx(values.sum())
    assert (low.min(), high.max()) == (values.min(), values.max())
    assert ((low <= mean) & (mean <= high)).all()


def test_every_page_about_a_session_leads_to_its_page(web: Any, guarded: Any) -> None:
    session, _ = blocked(guarded)
    link = f'href="/canary/session?id={session}"'
    assert link in web.get("/canary").text
    assert link in web.get(f"/canary/run?id={guarded.children(session)[0]}").text
    assert link in web.get(f"/canary/verdict?session={session}").text
    guarded.client.delete_run(session)
    assert link not in web.get(f"/canary/verdict?row={last_row(web, guarded.model)}").text
    assert link not in web.get(f"/canary/run?id={guarded.children(session)[0]}").text


def line(values: Any, first: int = 1) -> Series:
    values = np.asarray(values, dtype=float)
    return Series(name="loss", steps=np.arange(first, first + len(values)), values=values)


@pytest.mark.parametrize("runs", [1, 3])
def test_a_series_leaves_where_it_stays_outside_whether_one_run_or_three_are_the_band(runs: int) -> None:
    rng = np.random.default_rng(0)
    noise = [rng.normal(0, 0.1, 300) for _ in range(runs + 2)]
    usual = band_of([line(1 + one) for one in noise[:runs]])
    assert usual is not None
    assert departure(usual, line(1 + noise[-1])).step is None
    moved = 1 + noise[-2] + np.where(np.arange(300) >= 200, 2.0, 0.0)
    moved[50] += 9  # one row is no departure
    found = departure(usual, line(moved))
    assert found.step is not None
    assert 198 <= found.step <= 203
    assert found.now == "above"
    assert departure(usual, line(2 - moved)).now == "below"
    back = departure(usual, line(np.where(np.arange(300) < 250, moved, 1 + noise[-2])))
    assert (back.step, back.now) == (found.step, "inside")
    under = departure(usual, line(np.where(np.arange(300) < 250, moved, 2 - moved)))
    assert (under.step, under.now) == (found.step, "below"), "where it is, not where it left"
    late = departure(usual, line(moved[150:], first=151))
    assert late.step == found.step  # of a stretch as of the whole
    better = departure(usual, line(2 - moved), "higher")
    assert (better.step, better.ahead, better.now) == (None, found.step, "better")
    crossed = departure(usual, line(np.where(np.arange(300) < 250, 2 - moved, moved)), "higher")
    assert (crossed.step, crossed.ahead, crossed.now) == (251, found.step, "above"), "better first is no harm"
    lost = departure(usual, line([1.0, np.nan]))
    assert (lost.step, lost.now) == (2, "not a number")
    assert departure(usual, line([5.0] * 9, first=1000)).far == 0  # the champion never came so far


@pytest.mark.parametrize(("share", "leaves"), [(0.15, False), (0.3, True)])
def test_a_series_within_what_the_gate_tolerates_has_not_left(share: float, leaves: bool) -> None:
    usual = band_of([line(np.full(100, 700.0))], shipped_rules("smoke")["peak_memory"])  # which tolerates a fifth
    assert usual is not None
    assert (departure(usual, line(np.full(100, 700 * (1 + share)))).step is not None) == leaves


def test_a_share_that_was_always_0_has_a_width_too() -> None:
    usual = band_of([line(np.zeros(100))])
    assert usual is not None
    assert departure(usual, line(np.full(100, 0.2))).far == pytest.approx(4)
    assert departure(usual, line(np.full(100, 0.02))).step is None


def test_a_sweep_is_a_grid_named_by_what_differs(web: Any, guarded: Any) -> None:
    """Running, then judged: its cells, their metrics and their verdicts; on the overview it is one line."""

    def cell(rate: str, number: int, loss: float) -> str:
        tags = {"mlflow.parentRunId": sweep, "canary.cell_name": f"train.learning_rate={rate}"}
        tags |= {"canary.seed": str(number), "canary.model_name": guarded.model}
        return a_run(guarded, {"quality/eval_loss": [loss], "stability/loss": [1.0, loss]}, end="FINISHED", tags=tags)

    def rows(page: str) -> dict[str, str]:
        return dict(re.findall(r'<tr><th scope="row">train.learning_rate=(.*?)</th>(.*?)</tr>', page))

    named = f"sweep train.learning_rate=1e-3,2e-3 of {guarded.model}"
    sweep = guarded.client.create_run(guarded.experiment, tags={"canary.role": "sweep"}, run_name=named).info.run_id
    bad = [cell("0.001", 1, 1.5), cell("0.001", 2, 1.7)]
    cell("0.002", 1, 0.25)
    page = text_of(web.get(f"/canary/session?id={sweep}"))
    assert "No run has begun yet" not in page
    assert "train.learning_rate=0.001, seed 2" in page
    going = rows(page)
    assert list(going) == ["0.001", "0.002"]
    assert ">2 runs<" in going["0.001"]
    assert (going["0.001"].count(">1.60 <small>worst<"), going["0.002"].count(">0.250 <small>best<")) == (2, 2)
    for run_id in (*bad, sweep):
        guarded.client.set_tag(run_id, "canary.verdict", "BLOCK")
        guarded.client.set_tag(run_id, "canary.verdict_reason", "Evaluation loss is worse.")
    guarded.client.set_terminated(sweep)
    ended = rows(text_of(web.get(f"/canary/session?id={sweep}")))
    assert [">BLOCK<" in ended["0.001"], "Evaluation loss is worse" in ended["0.001"]] == [True] * 2
    assert [">BLOCK<" in ended["0.002"], "not judged" in ended["0.002"]] == [False, True]
    overview = text_of(web.get("/canary"))
    before, _, after = overview.partition(f">{named}<")
    line = before.rpartition("<tr>")[2] + after.partition("</tr>")[0]
    assert line.index(">BLOCK<") < line.index("train.learning_rate=0.001, seed 1")
    index = text_of(web.get("/canary/sessions", query_string={"q": guarded.model}))
    assert f">{named}<" in index


def test_a_verdict_is_the_versions_whatever_its_session_says(web: Any, guarded: Any, tmp_path: Path) -> None:
    """Who may edit a session's run can write another word into its tag, and another verdict.json."""
    session, _ = blocked(guarded)
    good = gate(guarded.client, guarded.model, guarded.version(), load_policy("smoke"))
    guarded.client.log_dict(session, decision_to_dict(replace(good, version=None)), "verdict.json")
    guarded.client.set_tag(session, "canary.verdict", "PASS")
    for address in (f"/canary/session?id={session}", f"/canary/verdict?session={session}"):
        page = text_of(web.get(address))
        assert ('<span class="word">BLOCK</span>' in page, '<span class="word">PASS</span>' in page) == (True, False)
    guarded.client.delete_tag(session, "canary.version")
    assert find_subject(guarded.client, session).decision.word == "BLOCK"  # what `canary report` shows
    for address in ("/canary/", f"/canary/sessions?q={session}"):
        page = text_of(web.get(address))
        rows = [row for row in page.split("<tr")[1:] if session in row]
        assert ["PASS" in row or "BLOCK" not in row for row in rows] == [False], address


def test_a_version_keeps_what_it_was_compared_with_also_as_champion(web: Any, guarded: Any) -> None:
    session = guarded.session(tags={"canary.model_name": guarded.model})
    won = gate(guarded.client, guarded.model, guarded.register(session), load_policy("smoke"))
    assert won.champion_after == won.version, "a PASS makes it champion"
    page = text_of(web.get(f"/canary/session?id={session}"))
    assert "the range of 3 runs of the champion then, version 1" in page
    assert "There is nothing to compare with" not in page
    assert web.get(f"/canary/session.json?id={session}").get_json()["bands"]["loss"]["steps"]
    run_id = guarded.children(session)[0]
    assert web.get(f"/canary/band.json?id={run_id}").get_json()["series"]["loss"]["steps"]


def test_what_decided_comes_first_and_what_was_set_is_no_surprise(web: Any, guarded: Any) -> None:
    session, _ = blocked(guarded)
    page = web.get(f"/canary/session?id={session}").text
    figures = re.findall(r'<figure class="chart(?: large)?" hidden data-lines="(.*?)"(.*?)data-marked', page)
    decided = [lines for lines, rest in figures if "data-decides" in rest]
    assert decided
    assert [lines for lines, _ in figures][: len(decided)] == decided
    assert all(("data-given" in rest) == (lines == "learning_rate") for lines, rest in figures)


def test_of_a_hard_check_what_the_watch_warned_of_comes_first(web: Any, guarded: Any) -> None:
    said = {"step": 9, "level": "CRITICAL", "rule": "r", "seen": "s", "meaning": "m", "advice": "a"}
    found = json.dumps([{**said, "stream": "grad_norm"}])
    tags = {"canary.model_name": guarded.model, "canary.watch.level": "critical", "canary.watch.found": found}
    session = guarded.session(runs=2, nan_at=9, tags=tags)
    gate(guarded.client, guarded.model, guarded.register(session), load_policy("smoke"))
    page = web.get(f"/canary/session?id={session}").text
    first, then = re.findall(r'<figure class="chart(?: large)?" hidden data-lines="(\w+)', page)[:2]
    assert (first, then) == ("grad_norm", "loss")


def test_a_policys_band_lies_at_the_same_rollouts(web: Any, recorded: Any) -> None:
    """Twice as many steps on each rollout: the champion's tenth rollout is at step 40, this run's at step 80."""

    def policy(updates: int, session: str) -> str:
        at = range(1, 20 * updates + 1)
        tags = {"mlflow.parentRunId": session, "canary.workload.algo": "ppo", "canary.completed": "true"}
        run_id = a_run(recorded, {"stability/learning_rate": [1e-3 for _ in at]}, end="FINISHED", tags=tags)
        rows = [(key, float(n)) for n in range(1, 21) for key in ("stability/kl", "perf/iteration_time")]
        metrics = [Metric(key, value, 1_700_000_000_000, int(value) * updates) for key, value in rows]
        recorded.client.log_batch(run_id, metrics=metrics)
        return run_id

    before, now = (recorded.client.create_run(recorded.experiment, tags={"canary.role": "session"}) for _ in "ab")
    policy(4, before.info.run_id)
    policy(8, now.info.run_id)
    found = web.get(f"/canary/session.json?a={before.info.run_id}&b={now.info.run_id}").get_json()
    assert found["bands"]["kl"]["steps"] == list(range(8, 161, 8))
    assert found["runs"][1]["away"]["kl"] == {"far": 0.0, "step": None, "ahead": None, "now": "inside"}


def test_a_policys_band_is_drawn_once_its_place_is_known(web: Any, recorded: Any) -> None:
    """A run that has made no rollout yet: a band at the champion's own steps would stay where it does not belong."""

    def closing(run_id: str, updates: int, rollouts: int) -> None:
        rows = [("perf/iteration_time", n) for n in range(1, rollouts + 1)]
        recorded.client.log_batch(run_id, metrics=[Metric(key, 1.0, 1_700_000_000_000, n * updates) for key, n in rows])

    champion = recorded.session()  # of its own: what ended runs did is read once
    for run_id in recorded.children(champion):
        closing(run_id, 4, 10)
    bless(recorded.client, recorded.model, recorded.register(champion), "a baseline for the test")
    mine = recorded.session(runs=1, tags={"canary.model_name": recorded.model})
    tags = recorded.client.get_run(recorded.children(mine)[0]).data.tags
    own = {key: value for key, value in tags.items() if key.startswith("canary.")}
    run_id = a_run(recorded, {}, tags={**own, "mlflow.parentRunId": mine})
    waiting = web.get(f"/canary/band.json?id={run_id}").get_json()
    assert (waiting["waits"], waiting["series"]) == (True, {})
    closing(run_id, 8, 2)
    placed = web.get(f"/canary/band.json?id={run_id}").get_json()
    assert (placed["waits"], placed["series"]["iteration_time"]["steps"]) == (False, list(range(8, 81, 8)))
    recorded.client.set_terminated(run_id)
