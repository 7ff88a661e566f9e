"""The index of sessions and runs: what a search, a filter and a page of it show."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from paged import a_run, site, text_of
from recorded import write

from canary_mlflow.pages import index
from canary_mlflow.pages.filters import written
from canary_mlflow.pages.requests import Readers


@pytest.fixture
def web(shared: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    return site(shared.uri, monkeypatch)


def a_session(
    store: Any, name: str, tags: Mapping[str, str], *, level: str = "healthy", rate: str = "0.002", end: bool = True
) -> str:
    """A session of one run."""
    own = {"canary.role": "session", "canary.model_name": store.model, "canary.tier": "smoke", **tags}
    session: str = store.client.create_run(store.experiment, tags=own, run_name=name).info.run_id
    run = a_run(store, {}, tags={"mlflow.parentRunId": session, "canary.watch.level": level, "canary.tier": "smoke"})
    store.client.log_param(run, "cfg/train.learning_rate", rate)
    for one in (run, session) if end else ():
        store.client.set_terminated(one)
    return session


def listed(web: Any, **asked: Any) -> list[str]:
    """The ids on a page, in their order."""
    page = web.get("/canary/sessions", query_string=asked)
    return re.findall(r'name="with" value="(\w+)"', text_of(page))


@pytest.fixture
def four(recorded: Any) -> dict[str, str]:
    """Sessions of a model of the test's own."""
    model = recorded.model
    return {
        "good": a_session(recorded, f"{model} one", {"canary.verdict": "PASS"}),
        "bad": a_session(recorded, f"{model} two", {"canary.verdict": "BLOCK", "canary.tier": "nightly"}, rate="0.02"),
        "warned": a_session(recorded, f"{model} 100%_", {}, level="warned"),
        "open": a_session(recorded, "<b>going on</b>", {}, end=False),
    }


def test_filters_show_what_they_name(web: Any, recorded: Any, four: dict[str, str]) -> None:
    mine = {"q": recorded.model}
    newest = [four[name] for name in ("open", "warned", "bad", "good")]
    assert listed(web, **mine) == newest
    assert listed(web)[:4] == newest
    assert listed(web, **mine, sort="old") == newest[::-1]
    for name, changed in (("bad", "lr 1 → 2"), ("good", "lr 1 → 2"), ("warned", "a"), ("open", "b")):
        recorded.client.set_tag(four[name], "canary.changed", changed)
    assert listed(web, **mine, sort="changed") == [four[name] for name in ("warned", "open", "bad", "good")]
    grouped = web.get("/canary/sessions", query_string={**mine, "sort": "changed"}).text
    headings = re.findall(r'scope="rowgroup">([^<]*)<', grouped)
    assert headings == ["a", "b", "lr 1 → 2"]
    assert set(listed(web, sort="model")) >= set(four.values())
    assert re.findall(r'scope="rowgroup">([^<]*)<', web.get("/canary/sessions?what=runs&sort=seed").text)[0] == "seed 7"
    assert listed(web, **mine, verdict="BLOCK") == [four["bad"]]
    assert listed(web, model=recorded.model, verdict="BLOCK") == [four["bad"]]
    assert listed(web, **mine, verdict="none") == [four["open"], four["warned"]]
    assert listed(web, model=recorded.model, verdict="RUNNING") == [four["open"]]
    assert listed(web, **mine, tier="nightly") == [four["bad"]]
    assert listed(web, model=recorded.model, warned="1") == [four["warned"]]
    assert listed(web, model=recorded.model, tier="perf") == []
    assert set(four.values()).isdisjoint(listed(web, what="runs"))
    assert len(listed(web, **mine, what="runs")) == 0  # their names are others
    recorded.client.set_terminated(four["open"])


def test_a_search_finds_part_of_a_name_an_id_and_a_setting(web: Any, recorded: Any, four: dict[str, str]) -> None:
    assert listed(web, q=f"{recorded.model} t") == [four["bad"]]
    assert listed(web, q="100%_")[0] == four["warned"]
    assert listed(web, q="100_%") == []  # no wildcards
    assert listed(web, q=four["bad"][:10]) == [four["bad"]]
    for setting in ("learning_rate=2e-2", "train.learning_rate = 0.02", "cfg/train.learning_rate=0.020"):
        assert four["bad"] in listed(web, q=setting), setting
        assert four["good"] not in listed(web, q=setting), setting
    said = text_of(web.get("/canary/sessions?q=learning_rate%3D0.02"))
    assert "<code>cfg/train.learning_rate</code>" in said
    recorded.client.log_param(four["good"], "mine/learning_rate", "3")  # two params end so: the page names both
    said = text_of(web.get("/canary/sessions?q=learning_rate%3D0.02"))
    assert re.search("<code>cfg/train.learning_rate</code>.* or .*<code>mine/learning_rate</code>", said)
    recorded.client.log_param(four["warned"], "cfg/lr", "0.3")  # as a loop of one's own calls it
    for setting in ("lr>1e-1", "learning_rate>1e-1", "lr=0.3"):
        assert four["warned"] in listed(web, q=setting), setting
    assert listed(web, q="learning_rate=7") == []
    page = web.get("/canary/sessions", query_string={"q": "<b>"})
    assert "<b>" not in page.text.split("<h1>")[1].replace("<b>going", "")  # names and words are text
    recorded.client.set_terminated(four["open"])


def test_terms_find_settings_and_metrics_also_at_their_default(web: Any, recorded: Any, four: dict[str, str]) -> None:
    good, bad = (recorded.children(four[name])[0] for name in ("good", "bad"))
    write(recorded.uri, good, {"quality/eval_loss": np.array([1.1])})
    write(recorded.uri, bad, {"quality/eval_loss": np.array([1.3])})
    recorded.client.set_tag(good, "canary.more.settings", json.dumps({"cfg/data.name": "own", "cfg/no": "1"}))
    for terms, found in {
        "lr>1e-2": ["bad"], "learning_rate<=0.002": ["open", "warned", "good"], "lr > 0.001 eval_loss<1.2": ["good"],
        "eval_loss>=1.1": ["bad", "good"], "eval_loss<1.2 lr=2e-2": [], "name=own": ["good"], "name!=own": [],
    }.items():  # fmt: skip
        assert [one for one in listed(web, q=terms) if one in four.values()] == [four[name] for name in found], terms
    page = text_of(web.get("/canary/sessions", query_string={"q": "lr>1e-3 eval_loss<1.2"}))
    assert 'aria-label="Remove lr&gt;1e-3"' in web.get("/canary/sessions?q=lr%3E1e-3").text
    row = page[page.index(f'value="{four["good"]}"') :].partition("</tr>")[0]
    assert [">0.002<" in row, ">1.10<" in row] == [True, True]
    recorded.client.set_terminated(four["open"])


@pytest.mark.parametrize(("given", "ways"), [("2e-2", {"0.02", "2e-2", "2e-02"}), ("8", {"8", "8.0"}), ("x", {"x"})])
def test_a_number_is_found_however_it_was_written(given: str, ways: set[str]) -> None:
    assert ways <= set(written(given))


def test_pages_follow_each_other_without_a_gap(
    web: Any, recorded: Any, four: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "PAGE", 1)
    for asked in ({"q": recorded.model}, {"model": recorded.model}, {"tier": "smoke"}):
        seen: list[str] = []
        address = None
        while len(seen) < 3:
            answer = web.get(address) if address else web.get("/canary/sessions", query_string=asked)
            seen += re.findall(r'name="with" value="(\w+)"', answer.text)
            found = re.search(r'rel="next" href="([^"]+)"', answer.text)
            if found is None:
                break
            address = found[1].replace("&amp;", "&")
        expected = [four[name] for name in ("open", "warned", "bad", "good")]
        assert seen[:3] == [one for one in expected if "tier" not in asked or one != four["bad"]][:3], asked
    recorded.client.set_terminated(four["open"])


def test_a_search_that_has_not_seen_all_says_so(
    web: Any, monkeypatch: pytest.MonkeyPatch, four: dict[str, str]
) -> None:
    assert four
    monkeypatch.setattr(index, "CHUNKS", (2,))
    page = text_of(web.get("/canary/sessions?tier=nosuch"))
    assert "Nothing like that so far." in page
    assert "What was looked through is not all there is." in page


def test_the_chosen_are_compared_oldest_first(web: Any, four: dict[str, str]) -> None:
    answer = web.get("/canary/compare", query_string={"with": [four["bad"], four["good"]]})
    assert answer.headers["Location"].endswith(f"/canary/compare?a={four['good']}&b={four['bad']}")
    assert "1 chosen to compare; expected two to six" in text_of(
        web.get("/canary/compare", query_string={"with": four["bad"]}), 400
    )


@pytest.mark.parametrize(
    ("asked", "says"),
    [("what=all", "what: found 'all'"), ("sort=x", "sort: found 'x'"), ("q=" + "x" * 201, "q: 201 characters"),
     ("skip=-1", "skip: no whole number"), ("q=%00", "q: 1 characters")],
)  # fmt: skip
def test_what_cannot_be_asked_is_refused_in_a_sentence(web: Any, asked: str, says: str) -> None:
    assert says in text_of(web.get(f"/canary/sessions?{asked}"), 400)


def test_only_what_the_reader_may_see_is_listed(
    recorded: Any, four: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = recorded.experiment
    hidden = site(recorded.uri, monkeypatch, Readers(experiment=lambda number: number != mine))
    assert set(listed(hidden)).isdisjoint(four.values())
    assert set(listed(hidden, q=recorded.model)).isdisjoint(four.values())
