"""The verdict card has the same numbers on a terminal, the pages, in HTML, Markdown, JSON, MLflow's description."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from reported import canary, report

from canary_mlflow.gates.model.verdict import Evidence
from canary_mlflow.reports.decision import decision_from_dict
from canary_mlflow.reports.forest import COLUMNS, forest, in_letters
from canary_mlflow.reports.view import view_of

CELLS = ("word", "metric", "baseline", "candidate", "change", "limit")


@pytest.fixture(scope="module")
def forms(shared: Any, usual_session: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What each form shows of one blocked version: cells of its deciding rows, and all its words."""
    from flask import Flask

    from canary_mlflow.pages.blueprint import add_pages
    from canary_mlflow.registry.acts.by_hand import bless

    store = replace(shared, model="carded", seed=4711)
    bless(store.client, store.model, store.register(usual_session), "a baseline for the test")
    session = store.session(slower=2.0, tags={"canary.env.torch": "9.9"})
    version = store.register(session)
    gated = canary("gate", store.model, version, "--json", "--tracking-uri", store.uri)
    files = report(store, f"{store.model}/{version}", tmp_path_factory.mktemp("report"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("_MLFLOW_SERVER_FILE_STORE", store.uri)
        patch.setenv("_MLFLOW_SERVER_REGISTRY_STORE", f"canary+{store.uri}")
        app = Flask("server")
        add_pages(app)
        page = app.test_client().get(f"/canary/verdict?session={session}").text
    return {
        "json": json.loads(gated.stdout)["card"],
        "terminal": gated.stderr,
        "html": files["html"],
        "comment": files["md"],
        "description": store.description(version),
        "page": page,
    }


def of_html(text: str) -> list[dict[str, str]]:
    table = re.search(r'<table class="deciding">.*?</table>', text, re.DOTALL)
    assert table is not None
    found = []
    for row in re.findall("<tr>(<td>.*?)</tr>", table.group(), re.DOTALL):
        cells = re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row, re.DOTALL)
        word, metric, sides, _, change, limit = (" ".join(unescape(re.sub("<[^>]*>", "", c)).split()) for c in cells)
        baseline, _, candidate = sides.partition(" → ")
        values = (word, metric, baseline, candidate, change, limit.removeprefix("limit "))
        found.append(dict(zip(CELLS, values, strict=True)))
    return found


def of_markdown(text: str) -> list[dict[str, str]]:
    rows = [line for line in text.partition("**Next:**")[0].splitlines() if line.startswith("| ")][1:]
    cells = [[cell.strip() for cell in row.replace("\\", "").strip("|").split("|")] for row in rows]
    found = [[row[0].strip("*"), row[1], *row[2].split(" → "), *row[3:5]] for row in cells]
    return [dict(zip(CELLS, row, strict=True)) for row in found]


def of_terminal(text: str, card: dict[str, Any]) -> list[dict[str, str]]:
    names = {row["metric"] for row in card["rows"]}
    lines = [re.split(r"\s{2,}", line.strip()) for line in text.splitlines()]
    return [dict(zip(CELLS, line[:6], strict=True)) for line in lines if len(line) > 5 and line[1] in names]


def expected(card: dict[str, Any]) -> list[dict[str, str]]:
    return [{**row, "change": f"{row['change']} {row['range']}".rstrip()} for row in card["rows"]]


def cells(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    return [{name: row[name] for name in CELLS} for row in rows]


def test_the_numbers_of_the_card_are_equal_in_all_its_forms(forms: dict[str, Any]) -> None:
    card = forms["json"]
    assert "step_cost" in [row["metric"] for row in card["rows"]]
    wanted = cells(expected(card))
    assert of_terminal(forms["terminal"], card) == wanted
    for name in ("html", "page"):
        assert of_html(forms[name]) == wanted, name
    for name in ("comment", "description"):
        assert of_markdown(forms[name]) == wanted, name
    other = forms["page"].replace(card["rows"][0]["candidate"], "1.00 kernels")
    assert of_html(other) != wanted  # that it would be seen


def test_every_form_has_the_sentences_the_command_and_the_way_to_the_page(forms: dict[str, Any]) -> None:
    card = forms["json"]
    (command,) = card["commands"]
    assert command.startswith("canary bless carded 2 --reason")
    for name in ("terminal", "html", "comment", "description", "page"):
        words = unescape(re.sub("<[^>]*>", "", forms[name])).replace("\\", "").replace("`", "")
        words = " ".join(words.split())
        for said in (card["reason"], card["changed"], command):
            assert said in words, (name, said)
        assert name == "page" or card["links"][0]["address"] in words, name
    assert f"`{command}`" in forms["comment"]
    assert f"<code>{command}</code>" in unescape(forms["html"])


def drawn(change: float, low: float | None, high: float | None, *, both: bool = False, margin: float = 0.1) -> str:
    found = Evidence(unit="", baseline=1.0, candidate=1.0, baseline_runs=3, candidate_runs=3, relative=True,
                     change=change, change_low=low, change_high=high, margin=margin)  # fmt: skip
    return in_letters(forest(found, both=both))


def test_harm_is_drawn_to_the_right_whichever_way_a_metric_gets_worse() -> None:
    more = drawn(0.15, 0.12, 0.18)
    less = drawn(-0.15, -0.18, -0.12, margin=-0.1)
    assert more == less
    assert len(more) == COLUMNS
    assert more.index("│") < more.index("┃") < more.index("●")
    assert drawn(0.0, None, None, both=True).count("┃") == 2
    assert drawn(0.9, 0.5, 2.0).endswith("▸")
    assert drawn(-0.9, -2.0, -0.5).startswith("◂")
    assert "━" not in drawn(0.05, None, None)


def test_a_share_is_said_only_where_there_is_one() -> None:
    plain = json.loads((Path(__file__).parents[1] / "data/verdicts/unclear_harm.json").read_text(encoding="utf-8"))
    plain["verdict"]["causes"] = [
        {"rule": "time.data_wait", "said": "waiting for data 4 → 29 ms explains 92 % of the slower step",
         "rank": 0.92, "share": 0.92},
        {"rule": "learning.rate", "said": "the rate rose", "rank": 0.5, "share": None},
    ]  # fmt: skip
    card = view_of(decision_from_dict(plain)).card_to_dict()
    assert [one["share"] for one in card["causes"]] == [0.92, None]
    assert card["because"].startswith("Measured causes: waiting for data 4 → 29 ms explains 92 % of the slower step")
