"""Eight questions that people have, answered from the overview in at most two clicks, by mouse and by keyboard.

A click is a click, a drag, or Enter; typing and walking with Tab or arrow keys are none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from browser import CHROMIUM, MISSING, Window, canary_ui, chromium, window
from ledger_rows import nightlies
from recorded import STEPS, write

from canary_mlflow.policies import load_policy
from canary_mlflow.registry.judging.gatekeeper import gate

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator

pytestmark = pytest.mark.skipif(not CHROMIUM, reason=MISSING)
DAY = 86_400_000  # ms
MODEL = "asked-about"
WRONG_FROM = {0: 30, 1: 20}  # seed → step from which its KL grows, in version 4
WORST = "<b>no</b> answer at all"
KL = {
    "step": 30, "stream": "kl", "level": "CRITICAL", "rule": "r", "seen": "KL 12 is twice its target of 6",
    "meaning": "the penalty is too weak", "advice": "raise init_kl_coef",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A server over a model with five versions, version 4 of which was blocked, and a PPO run that goes on."""

    browser: Browser
    address: str
    sessions: Mapping[int, str]
    running: str


@pytest.fixture(scope="module")
def scene(shared: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    from canary_mlflow.registry.acts.by_hand import bless

    store = replace(shared, model=MODEL, seed=4000)
    sessions = {}
    for number, session in enumerate(
        [
            made(store, "nightly of last week", days=7),
            *(store.session(runs=2, tags={"canary.model_name": MODEL}) for _ in range(2)),
            made(store, "four", rate="0.02", wrong=WRONG_FROM, samples=True),
            made(store, "nightly of tonight", slower=2.0),
        ],
        1,
    ):
        sessions[number], version = session, store.register(session)
        if number == 1:
            bless(store.client, MODEL, version, "the first one, looked at by hand")
        elif number > 3:
            gate(store.client, MODEL, version, load_policy("smoke"))
    running = ppo(store)
    with canary_ui(store.uri, tmp_path_factory.mktemp("tasks")) as address, chromium() as browser:
        yield Scene(browser=browser, address=address, sessions=sessions, running=running)
    store.client.set_terminated(running)
    store.client.set_terminated(store.client.get_run(running).data.tags["mlflow.parentRunId"])


def made(
    store: Any,
    name: str,
    *,
    days: int = 0,
    rate: str = "0.002",
    slower: float = 1.0,
    wrong: Mapping[int, int] | None = None,
    samples: bool = False,
) -> str:
    """A session with a KL curve and a learning rate; `wrong`: seeds whose KL grows, and from which step."""
    tags = {"canary.model_name": MODEL, "mlflow.runName": name}
    session: str = store.session(slower=slower, tags=tags, without=("quality/eval_loss",))
    runs = store.children(session)
    for run in runs:
        seed = int(store.client.get_run(run).data.tags["canary.seed"])
        store.seed += 1
        kl = np.random.default_rng(store.seed).normal(0.1, 0.01, STEPS)
        kl[(wrong or {}).get(seed, STEPS + 1) - 1 :] += 3
        write(store.uri, run, {"stability/kl": kl, "quality/eval_loss": np.array([0.9 if wrong else 0.45])})
        store.client.log_param(run, "cfg/train.learning_rate", rate)
        if samples:
            answers = [{"step": STEPS, "kind": kind, "prompt": "why", "answer": text, "reward": reward}
                       for kind, text, reward in (("worst", WORST, -3.5), ("best", "because", 2.0))]  # fmt: skip
            store.client.log_text(run, "".join(json.dumps(one) + "\n" for one in answers), "samples.jsonl")
    backdate(store.uri, [session, *runs], days)
    return session


def backdate(uri: str, runs: list[str], days: int) -> None:
    """As if they had been made days ago."""
    from mlflow.store.tracking.dbmodels.models import SqlRun
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
    from sqlalchemy import update

    with SqlAlchemyStore._engine_map[uri].begin() as connection:
        earlier = {"start_time": SqlRun.start_time - days * DAY, "end_time": SqlRun.end_time - days * DAY}
        connection.execute(update(SqlRun).where(SqlRun.run_uuid.in_(runs)).values(earlier))


def ppo(store: Any) -> str:
    """A run whose KL has left its target, and which goes on."""
    session = store.client.create_run(
        store.experiment, tags={"canary.role": "session", "mlflow.runName": "PPO session"}
    )
    tags = {
        "canary.role": "run", "canary.seed": "7", "canary.algo": "ppo", "mlflow.parentRunId": session.info.run_id,
        "mlflow.runName": "PPO seed 7", "canary.max_steps": "400", "canary.watch.level": "critical",
        "canary.watch.warnings": "1", "canary.watch.found": json.dumps([KL]),
    }  # fmt: skip
    run_id: str = store.client.create_run(store.experiment, tags=tags).info.run_id
    write(
        store.uri,
        run_id,
        {"stability/kl": np.linspace(5, 12, STEPS), "stability/reward_mean": np.linspace(-6, -16, STEPS)},
    )
    store.client.log_param(run_id, "cfg/algo.target_kl", "6")
    return run_id


@dataclass
class Hand:
    """Somebody who looks for an answer, and the clicks so far. `keyboard`: without a mouse."""

    seen: Window
    keyboard: bool
    clicks: int = field(default=0)

    def start(self) -> None:
        self.seen.open("/canary")

    def reach(self, what: Locator) -> None:
        """Tab until it has the focus."""
        what.first.evaluate("(one) => { window.wanted = one; }")
        for _ in range(600):
            self.seen.page.keyboard.press("Tab")
            if self.seen.page.evaluate("document.activeElement === window.wanted"):
                return
        raise AssertionError(f"Tab never reaches {what}")

    def click(self, what: Locator) -> None:
        self.clicks += 1
        if self.keyboard:
            self.reach(what)
            before, away = self.seen.page.url, "#" not in (what.first.get_attribute("href") or "")
            self.seen.page.keyboard.press("Enter")
            if away:
                self.seen.page.wait_for_url(lambda url: url != before)
        else:
            what.first.click()
        self.seen.page.wait_for_load_state("networkidle")

    def link(self, name: str) -> None:
        """By the beginning of its name: a session's is followed by its verdict."""
        self.click(self.seen.page.locator("main").get_by_role("link", name=re.compile(f"^{name}")))

    def search(self, words: str) -> None:
        """Into the first search box of the page, and Enter."""
        box = self.seen.page.locator("main input[type=search]").first
        if self.keyboard:
            self.reach(box)
        else:
            self.clicks += 1
            box.click()
        self.seen.page.keyboard.type(words)
        self.clicks += 1
        self.seen.page.keyboard.press("Enter")
        self.seen.page.wait_for_url("**/canary/sessions?*")
        self.seen.page.wait_for_load_state("networkidle")

    def text(self, place: str = "main") -> str:
        return " ".join(self.seen.page.locator(place).first.inner_text().split())


@pytest.fixture(scope="module")
def seen(scene: Scene) -> Iterator[Window]:
    """One window for all: another one costs more than what is done in it."""
    with window(scene.browser, scene.address) as made:
        made.page.set_default_timeout(10_000)
        yield made


# The mouse with --full: it clicks the same links, and test_pages_browser.py clicks every day.
@pytest.fixture(params=[pytest.param(False, id="mouse", marks=pytest.mark.full), pytest.param(True, id="keyboard")])
def hand(seen: Window, request: pytest.FixtureRequest) -> Iterator[Hand]:
    """At the overview; nothing may go wrong in its window, and two clicks are enough."""
    seen.troubles.clear()
    seen.page.goto("about:blank")
    made = Hand(seen=seen, keyboard=request.param)
    made.start()
    yield made
    assert seen.troubles == []
    assert 0 < made.clicks <= (2 if made.keyboard else 3)  # a mouse has to reach a search box too


def test_why_was_version_4_blocked(hand: Hand) -> None:
    hand.link(MODEL)
    hand.link("BLOCK version 4")
    card = hand.text(".verdict")
    assert "BLOCK v4: learning rate \N{MULTIPLICATION SIGN} 10 made the evaluation loss 100 % worse" in card
    assert f"{MODEL} version 4 against champion version 1" in card


def test_which_setting_differs(hand: Hand) -> None:
    hand.link("lr 0.002 → 0.02")
    assert "Changed: train.learning_rate 0.002 → 0.02" in hand.text(".verdict")
    hand.link("What differs")
    hand.seen.until("location.hash === '#open=differences'", 10)
    row = hand.text("h3 + .scroll tbody tr:has-text('train.learning_rate')")
    assert row == "train.learning_rate 0.002 0.02 configuration"


def test_which_seed_went_wrong_first_and_when(hand: Hand) -> None:
    hand.link("lr 0.002 → 0.02")
    hand.seen.until("document.querySelector('#gone').textContent !== ''", 10)
    said = hand.text("#gone")
    assert said.startswith(
        "First out of the band: seed 1 at step 20 (KL, now above); seed 0 at step 30 (KL, now above)"
    )


def test_show_me_its_worst_answer(hand: Hand) -> None:
    hand.link("lr 0.002 → 0.02")
    hand.link("Samples")
    worst = hand.seen.page.locator("tr.worst").first
    assert worst.locator("td").all_inner_texts() == [f"why {WORST} step {STEPS}, reward -3.50"] * 3  # a seed each
    assert hand.seen.page.evaluate("document.querySelector('tr.worst').getBoundingClientRect().top < innerHeight")


def test_is_tonights_nightly_worse_than_last_weeks(hand: Hand) -> None:
    hand.link("no recorded change")
    hand.link("a week before")
    card = hand.text(".verdict")
    assert "COMPARISON, a gate would say BLOCK" in card
    assert "b, nightly of tonight (candidate) against a, nightly of last week (baseline)" in card
    assert "The step cost is 98 % worse, with no recorded change" in card


def test_find_the_run_with_a_learning_rate_of_2e_2(hand: Hand, scene: Scene) -> None:
    hand.search("learning_rate=2e-2")
    hand.link("lr 0.002 → 0.02")
    assert scene.sessions[4] in hand.seen.page.url


def test_send_a_colleague_exactly_this_view(hand: Hand, scene: Scene) -> None:
    hand.link("lr 0.002 → 0.02")
    chart = hand.seen.page.locator("figure.large .plot")
    hand.seen.until("charts.length === 1 && all.figures[0].large && all.figures[0].chart !== null", 10)
    hand.clicks += 1
    if hand.keyboard:
        hand.reach(chart)
        for key in ("End", "ArrowLeft", "+"):
            hand.seen.page.keyboard.press(key)
        hand.seen.until(f"document.querySelector('#answers').innerText.includes('{WORST}')", 10)
    else:
        over = chart.locator(".u-over")
        over.scroll_into_view_if_needed()
        place = over.bounding_box()
        assert place is not None
        hand.seen.page.mouse.move(place["x"] + place["width"] / 2, place["y"] + 50)
        hand.seen.page.mouse.down()
        hand.seen.page.mouse.move(place["x"] + place["width"] - 5, place["y"] + 60)
        hand.seen.page.mouse.up()
    hand.seen.until("view.zoom !== null", 10)
    loss = "all.figures[0].chart"
    zoom = [float(number) for number in re.search(r"zoom=(\d+)%2C(\d+)", hand.seen.page.url).groups()]  # type: ignore[union-attr]
    assert zoom[0] > 15
    shown = f"JSON.stringify([{loss}.scales.x.min, {loss}.scales.x.max]) === '[{zoom[0]:.0f},{zoom[1]:.0f}]'"
    hand.seen.until(shown, 10)
    with window(scene.browser, scene.address) as colleague:
        colleague.open(hand.seen.page.url.removeprefix(scene.address))
        colleague.until(f"charts.length === 1 && {loss} !== null && {shown}", 10)
        if hand.keyboard:  # who stepped along the chart; the step is sent too
            assert colleague.page.locator("#answers p").inner_text().startswith(f"Answers nearest to step {STEPS - 1}")
        assert colleague.troubles == []


def test_is_the_running_ppo_in_trouble(hand: Hand, scene: Scene) -> None:
    banner = hand.seen.page.locator(f"[data-part=warnings] a[href*='{scene.running}']")
    assert "CRITICAL PPO seed 7: kl at step 30, KL 12 is twice its target of 6" in " ".join(banner.inner_text().split())
    hand.click(banner)
    hand.seen.until("charts.length === 1 && charts[0].figures[1].warnings.length === 1", 10)
    assert "Try: raise init_kl_coef" in hand.text("[data-banners]")


def test_a_jump_to_a_part_of_the_page_keeps_what_the_address_says(scene: Scene, seen: Window) -> None:
    seen.open(f"/canary/session/{scene.sessions[4]}#zoom=20,30")
    seen.until("charts.length === 1")
    seen.page.get_by_role("link", name="Samples").click()
    assert seen.page.evaluate("document.activeElement.id") == "samples"
    seen.until("location.hash === '#zoom=20%2C30&open=samples'")  # a fold tells of it in a moment
    seen.page.goto("about:blank")
    seen.open(f"/canary/session/{scene.sessions[4]}#samples")
    seen.until("charts.length === 1")
    assert seen.page.evaluate("view.zoom") is None
    assert seen.troubles == []


def test_a_model_of_thirty_and_of_three_hundred_nights_is_readable(scene: Scene, seen: Window, shared: Any) -> None:
    """Each verdict has a mark that can be seen, and what was changed is said on it; the wall has the last thirty."""
    store, page = replace(shared, model="nightly", seed=5000), "/canary/model?name=nightly"
    gate(store.client, store.model, store.version(runs=2), load_policy("smoke"))
    gate(store.client, store.model, store.version(runs=2), load_policy("smoke"))
    last = 2
    for nights in (30, 270):
        nightlies(store.uri, store.model, nights)
        last += nights
        seen.open(page)
        assert narrowest(seen, last) > 2
        assert seen.page.locator(".card .strip-of title").last.text_content() == f"BLOCK version {last}, trl {nights}"
        row = seen.open("/canary").page.locator("tr", has=seen.page.get_by_role("link", name="nightly", exact=True))
        assert " ".join(row.inner_text().split()).startswith(f"nightly BLOCK version {last} trl {nights} step_cost ")
        assert row.locator(".strip-of").get_attribute("aria-label") == "3 BLOCK, 27 PASS"
        assert row.locator(".strip-of rect").count() == 30
    assert seen.troubles == []
    with window(scene.browser, scene.address, width=390) as phone:
        phone.open(page)
        assert narrowest(phone, last) > 2
        newest = phone.page.locator(".card .strip-of rect").last.bounding_box()
        assert newest is not None
        assert 0 < newest["x"] < 390  # seen first
        assert phone.too_wide() <= 0
        assert phone.faults("scrollable-region-focusable", "svg-img-alt") == []


def narrowest(seen: Window, marks: int) -> float:
    """The width of the narrowest mark of a model's timeline, of so many."""
    found = seen.page.evaluate(
        "[...document.querySelectorAll('.card .strip-of rect')].map((one) => one.getBoundingClientRect())"
        ".map((box) => Math.min(box.width, box.height))"
    )
    assert len(found) == marks
    return float(min(found))
