"""The pages in a real browser, over `canary ui`: what a person would check with eyes, mouse and keyboard."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from browser import CHROMIUM, MISSING, Window, canary_ui, chromium, window
from paged import a_run

from canary_mlflow.policies import load_policy
from canary_mlflow.registry.judging.gatekeeper import gate

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.skipif(not CHROMIUM, reason=MISSING)
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>"
POLICY = "smoke"
LAST = 260  # step of a training that is looked at: long enough for the watch, short enough for whoever waits


@dataclass(frozen=True, kw_only=True)
class Site:
    """A running server, the browser, and the addresses of what is in its store."""

    browser: Browser
    address: str
    store: Any
    folder: Path
    run: str
    session: str
    blocked: int

    @property
    def paths(self) -> list[str]:
        """One of each page."""
        return ["/canary", "/canary/sessions", f"/canary/run?id={self.run}", f"/canary/verdict?row={self.blocked}",
                f"/canary/model?name={self.store.model}", f"/canary/session/{self.session}",
                f"/canary/compare?a={self.store.model}/1&b={self.session}", "/canary/run?id=nosuchrun"]  # fmt: skip


@pytest.fixture(scope="module")
def site(shared: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """One server and one browser for all tests here, over a model with a champion, a PASS and a BLOCK."""
    from dataclasses import replace

    from canary_mlflow.ledger.table import last
    from canary_mlflow.registry.acts.by_hand import bless
    from canary_mlflow.registry.backends import registry_of

    folder = tmp_path_factory.mktemp("site")
    store = replace(shared, model="looked-at", seed=1000)
    bless(store.client, store.model, store.register(store.session()), "a baseline for the pages")
    store.client.create_registered_model("a-model-whose-name-is-" + "long-" * 12)  # wider than a phone, in every list
    gate(store.client, store.model, store.version(), load_policy(POLICY))
    session = store.session(slower=2.0, tags={"canary.model_name": store.model, "mlflow.runName": HOSTILE})
    gate(store.client, store.model, store.register(session), load_policy(POLICY))
    with registry_of(store.client).store.engine.connect() as connection:
        row = last(connection)
    assert row is not None
    with canary_ui(store.uri, folder) as address, chromium() as browser:
        run = store.children(session)[0]
        yield Site(
            browser=browser, address=address, store=store, folder=folder, run=run, session=session, blocked=row.seq
        )


@pytest.fixture(scope="module")
def opened(site: Site) -> Iterator[Window]:
    """One window for all: another one costs more than what is done in it."""
    with window(site.browser, site.address) as made:
        yield made


@pytest.fixture
def seen(opened: Window) -> Iterator[Window]:
    """The window, empty, in which nothing may go wrong."""
    opened.page.goto("about:blank")
    opened.troubles.clear()
    yield opened
    assert opened.troubles == []


class Listener(logging.Handler):
    """When the watch spoke."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[float] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "at step" in record.getMessage():
            self.said.append(time.monotonic())


def test_a_curve_grows_and_a_banner_comes_while_a_run_trains(site: Site, seen: Window) -> None:
    from line_training import RaiseTheRate, Slowly, fit

    from canary_mlflow import CanaryCallback

    listener = Listener()
    logging.getLogger("canary_mlflow").addHandler(listener)
    canary = CanaryCallback(tracking_uri=site.store.uri, experiment="looked-at", folder=site.folder / "canary")
    steps = (LAST, Slowly(0.06), RaiseTheRate(LAST - 80))
    training = threading.Thread(target=fit, args=(site.folder, canary, *steps), daemon=True)
    training.start()
    try:
        seen.page.goto(site.address + "/canary")
        while canary.run_id is None and training.is_alive():
            time.sleep(0.1)
        # Other tests may have left runs in this store that never ended.
        seen.page.locator(f"[data-part=running] a[href*='{canary.run_id}']").first.wait_for(timeout=60_000)
        seen.page.goto(f"{site.address}/canary/run?id={canary.run_id}")
        loss = seen.page.locator("figure", has_text="Loss").first
        loss.wait_for(timeout=60_000)
        before = points(seen)
        seen.until(f"charts[0].lines.loss.steps.length > {before + 20}")
        drawn = seen.page.evaluate("charts[0].figures[0].chart.data[0].length")
        assert drawn >= before + 20
        assert seen.page.locator(".banner").count() == 0 or listener.said
        seen.page.locator("[data-banners] .banner").first.wait_for(timeout=60_000)
        assert time.monotonic() - listener.said[0] < 5
        seen.until("charts[0].figures[0].warnings.length > 0", 5)  # and its mark on the curve
        text = seen.page.locator("[data-banners]").inner_text()
        assert "Try:" in text
    finally:
        training.join(120)
        logging.getLogger("canary_mlflow").removeHandler(listener)
    site.store.client.set_tag(canary.run_id, "canary.watch.found", "[]")
    seen.until("!document.querySelector('#status[data-running]')", 30)
    seen.until(f"charts[0].lines.loss.steps.at(-1) === {LAST}", 10)  # what came late is there too
    assert text.split("\n")[0] in seen.page.locator("[data-banners]").inner_text()  # a banner stays


def points(seen: Window) -> int:
    return int(seen.page.evaluate("charts[0].lines.loss.steps.length"))


def test_a_click_on_a_check_opens_its_evidence(site: Site, seen: Window) -> None:
    seen.open(f"/canary/verdict?row={site.blocked}")
    check = seen.page.locator(".check", has_text="step_cost").first  # its growth is another
    evidence = check.locator(".evidence")
    assert not evidence.is_visible()
    check.locator("summary").click()
    assert "smallest harm these runs would show" in evidence.inner_text()
    assert evidence.locator("tbody tr").count() == 6  # three runs of each side
    seen.page.keyboard.press("Enter")  # the check has the focus
    assert not evidence.is_visible()
    check.locator("summary").click()
    evidence.locator("a").first.click()
    seen.page.wait_for_url("**/canary/run?id=*")


def test_the_keyboard_reaches_and_reads_a_chart(site: Site, seen: Window) -> None:
    seen.open(f"/canary/run?id={site.run}")
    seen.page.keyboard.press("Tab")
    assert seen.page.evaluate("document.activeElement.textContent") == "Skip to the content"
    seen.page.locator(".plot:visible").first.focus()
    seen.page.keyboard.press("Home")
    seen.page.keyboard.press("ArrowRight")
    seen.until("document.querySelector('.u-legend .u-value').textContent.trim() === '2'", 10)


def test_a_hostile_name_is_read_and_not_run(site: Site, seen: Window) -> None:
    seen.open(f"/canary/run?id={site.run}")
    assert seen.page.locator("h1").inner_text() == HOSTILE
    seen.open("/canary")
    assert seen.page.get_by_text(HOSTILE).count() > 0
    assert seen.page.locator("main img").count() == 0


def test_the_champions_band_lies_behind_the_curve(site: Site, seen: Window) -> None:
    seen.open(f"/canary/run?id={site.run}")
    assert "the range of 3 runs of the champion, version 2" in seen.page.locator("main").inner_text()
    assert seen.page.evaluate("charts[0].figures[0].chart.bands.length") == 1
    gone = seen.page.locator("#gone").inner_text()
    assert gone.startswith("Out of the champion's band: ")
    assert "Step time at step 1 (now above)" in gone
    assert "Loss" not in gone  # it is as it was
    assert "Left the band at step 1, now above." in seen.page.locator("figure[data-lines='step_time']").inner_text()


def test_a_session_shows_all_its_seeds_with_what_left_the_band_first(site: Site, seen: Window) -> None:
    seen.open(f"/canary/session/{site.session}#open=curves")
    seen.until("charts.length === 1 && all.figures[0].chart !== null")
    first = seen.page.locator(".charts figure:visible").first
    assert "Left the band: seed 0 at step 1, now above; seed 1 at step 1" in first.inner_text()
    ranks = seen.page.evaluate("all.figures.map((one) => one.far())")
    assert ranks == sorted(ranks, reverse=True)
    assert ranks[0] > 1 > ranks[-1]
    drawn = seen.page.evaluate("all.figures[0].chart.series.map((one) => one.label)")
    assert drawn == ["step", "champion", "low", "seed 0", "seed 1", "seed 2"]
    loss = seen.page.locator("figure[data-lines^='loss']")
    assert "Left" not in loss.inner_text()  # it is as it was


def test_every_series_is_found_and_the_address_keeps_what_is_seen(site: Site, seen: Window) -> None:
    seen.open(f"/canary/session/{site.session}#open=curves")
    seen.until("charts.length === 1")
    seen.page.locator("#search").fill("eval_m")
    assert seen.page.locator(".charts figure:visible").count() == 0
    seen.page.get_by_role("button", name="eval_margin").click()
    seen.until("all.added('eval_margin')")
    assert seen.page.locator(".charts figure:visible figcaption").all_inner_texts() == ["eval_margin"]
    seen.page.evaluate("zoomTo([5, 20])")
    address = seen.page.url.removeprefix(site.address)
    assert "q=eval_m" in address
    with window(site.browser, site.address) as colleague:
        colleague.open(address)
        colleague.until("charts.length === 1 && all.added('eval_margin')")
        assert colleague.page.locator(".charts figure:visible figcaption").all_inner_texts() == ["eval_margin"]
        colleague.page.locator("#search").fill("")
        colleague.until("all.figures.find((one) => one.names[0] === 'step_time').chart.scales.x.min === 5")
        assert colleague.troubles == []


def test_what_somebody_chooses_to_see_is_in_the_address(site: Site, seen: Window) -> None:
    seen.open(f"/canary/session/{site.session}#open=curves")
    seen.until("charts.length === 1 && all.figures[0].chart !== null")
    slider = seen.page.locator("#smooth")
    slider.focus()
    for _ in range(3):
        seen.page.keyboard.press("PageUp")
    seen.until("view.smooth > 0 && all.figures[0].chart.series.some((one) => one.label === 'rows')")
    seen.page.locator("#scale").select_option("log")
    seen.page.locator("#across").select_option("tokens")
    loss = "all.figures.find((one) => one.names[0] === 'loss')"
    seen.until(f"{loss}.chart.series[0].label === 'tokens' && {loss}.chart.data[0].at(-1) === 40960")
    assert seen.page.evaluate(f"{loss}.chart.scales.y.distr") == 3
    seen.page.evaluate("zoomTo([10240, 20480])")
    with window(site.browser, site.address) as colleague:
        colleague.open(seen.page.url.removeprefix(site.address))
        colleague.until(f"charts.length === 1 && {loss}.chart !== null")
        assert colleague.page.evaluate(f"{loss}.chart.scales.x.min") == 10240
        assert colleague.page.evaluate(f"{loss}.chart.scales.y.distr") == 3
        assert colleague.page.evaluate("view.smooth") > 0
        colleague.page.locator("#scale").select_option("linear")
        colleague.page.locator("#across").select_option("time")
        colleague.until(f"{loss}.chart.series[0].label === 'time' && {loss}.chart.scales.y.distr === 1")
        colleague.until(f"{loss}.chart.scales.x.max === 0.039")  # the zoom was of another axis
        assert "zoom" not in colleague.page.url
        assert colleague.troubles == []


def test_a_chart_is_downloaded_as_csv(site: Site, seen: Window) -> None:
    seen.open(f"/canary/session/{site.session}#open=curves")
    seen.until("charts.length === 1 && all.figures[0].chart !== null")
    with seen.page.expect_download() as download:
        seen.page.get_by_role("link", name="CSV of Loss").click()
    rows = Path(download.value.path()).read_text(encoding="utf-8").splitlines()
    assert rows[0] == "run,name,step,loss,eval_loss"
    assert len(rows) == 1 + 3 * 40


def test_a_zoom_fetches_what_was_thinned_out(site: Site, seen: Window) -> None:
    from paged import a_run

    values = [1.0 + (step % 7) / 100 for step in range(5200)]
    run = a_run(site.store, {"stability/loss": values}, end="FINISHED", tags={"canary.seed": "0"})
    held: list[Any] = []
    few = re.compile("rough=1")
    seen.page.route(
        "**/session.json*", lambda route, ask: route.continue_() if few.search(ask.url) else held.append(route)
    )
    seen.page.goto(f"{site.address}/canary/session/{run}")
    seen.until("all.figures[0].chart !== null && status.textContent === FEW")  # a curve before all is read
    assert seen.page.evaluate("all.figures[0].chart.series.map((one) => one.label)") == ["step", "seed 0"]
    for route in held:
        route.continue_()
    seen.page.unroute("**/session.json*")
    seen.until("charts.length === 1 && status.textContent === ''")
    drawn = "all.figures[0].chart.data.at(-1).filter((one) => one != null).length"
    assert seen.page.evaluate(drawn) <= 400
    labels = seen.page.evaluate("all.figures[0].chart.series.map((one) => one.label)")
    assert labels == ["step", "high", "low", "seed 0"]  # the mean over its range
    seen.page.evaluate("zoomTo([501, 700])")
    seen.until(f"{drawn} === 200", 10)
    seen.page.evaluate("zoomTo(null)")
    seen.until(f"{drawn} <= 400 && all.detail === null", 10)


def test_strips_show_where_the_time_went_and_how_the_reward_went(site: Site, seen: Window) -> None:
    from paged import a_run

    values = {"time_generate": [3.0] * 40, "time_score": [2.0] * 40, "time_reference": [1.0] * 40,
              "time_update": [4.0] * 20 + [14.0] * 20}  # fmt: skip
    recorded = {f"perf/{name}": series for name, series in values.items()}
    recorded["stability/reward_mean"] = [float(step) for step in range(40)]
    recorded |= {"stability/grad_norm_early": [0.1] * 40, "stability/grad_norm_head": [10.0] * 40}
    run = a_run(site.store, recorded, end="FINISHED", tags={"canary.seed": "3"})
    for path in (f"/canary/session/{run}", f"/canary/run?id={run}"):
        seen.open(path)
        time_strip = seen.page.locator("figure", has_text="Time of an iteration, by phase")
        time_strip.locator("canvas").wait_for()
        # The reference's second is one of the two that scoring took.
        assert "generate 21 %, reference 7 %, score 7 %, update 64 %" in time_strip.inner_text()
        assert "generate 21 %" in str(time_strip.locator("canvas").get_attribute("aria-label"))
        reward = seen.page.locator(".strips figure", has_text="Mean reward")
        assert "pale 0, dark 39; steps 1 to 40" in reward.inner_text()
        assert "at the end 39" in reward.inner_text()
        norms = seen.page.locator(".strips figure", has_text="Gradient norm, by group of layers")
        assert norms.locator(".strip > span:first-child").all_inner_texts() == ["seed 3, early", "seed 3, head"]
        assert "pale 0.1, dark 10" in norms.inner_text()
        canvas = reward.locator("canvas")
        row = canvas.evaluate("(one) => [...one.getContext('2d').getImageData(0, 5, one.width, 1).data]")
        pale, dark = row[11], row[-5]  # of red, green, blue and opacity the last
        assert pale < 30
        assert dark > 245
        assert seen.faults() == []
    seen.open(f"/canary/session/{site.session}")
    assert seen.page.locator(".strips").count() == 0  # nothing of the kind was recorded


def test_a_session_that_goes_on_grows_and_says_where_it_left(site: Site, seen: Window) -> None:
    client, model = site.store.client, site.store.model
    mine = client.create_run(site.store.experiment, tags={"canary.role": "session", "canary.model_name": model})
    champion = client.get_run(site.run)
    tags = {key: value for key, value in champion.data.tags.items() if key.startswith("canary.workload.")}
    own = {**tags, "canary.role": "run", "canary.seed": "0", "mlflow.parentRunId": mine.info.run_id}
    run_id = client.create_run(site.store.experiment, tags=own).info.run_id

    seen.open(f"/canary/session/{run_id}")  # before anything is recorded
    log_of(client, run_id, range(1, 11), 0.1)
    chart = "all.figures.find((one) => one.names[0] === 'step_time')"
    seen.until(f"charts.length === 1 && {chart}.chart !== null", 10)
    assert "Left" not in seen.page.locator(".charts").inner_text()
    log_of(client, run_id, range(11, 31), 9.0)
    gone = "Left the band: seed 0 at step 11, now above"
    seen.until(f"{chart}.left.textContent === '{gone}'", 10)
    second = client.create_run(site.store.experiment, tags={**own, "canary.seed": "1"}).info.run_id
    log_of(client, second, range(1, 4), 0.1)  # far behind the first, which is at step 30
    seen.until("all.runs.length === 2 && all.runs[1].lines.step_time?.steps.length === 3", 10)
    log_of(client, run_id, range(31, 301), 0.1)
    seen.until("all.runs[0].lines.step_time.steps.length === 300", 10)
    seen.until(f"{chart}.left.textContent === 'Left the band: seed 0 at step 11, inside again'", 10)
    clock = f'[data-step="{run_id}"]'
    assert seen.page.locator(clock).inner_text() == "300", "the header's clock is that of the charts"
    log_of(client, second, range(4, 160), 0.1)
    seen.until("all.runs[1].lines.step_time.steps.length === 159", 10)
    for one in (run_id, second):
        client.set_terminated(one)
    seen.until("all.runs.every((one) => !one.running)", 10)
    seen.page.evaluate("refreshParts()")  # whose words are the last already, while the session itself goes on
    assert seen.page.evaluate("document.querySelector('#status[data-running]') !== null")
    client.set_terminated(mine.info.run_id)
    seen.until("!document.querySelector('#status[data-running]')", 30)


def test_what_is_not_a_number_is_drawn_where_it_happened(site: Site, seen: Window) -> None:
    """The loss ends at step 20 and is NaN at 21 and 22, where the watch stopped it: cross and flag lie in the chart."""
    said = (
        '[{"step": 21, "stream": "loss", "level": "STOP", "rule": "nonfinite", "seen": "is nan", "meaning": "an '
        'overflow", "advice": "go back"}]'
    )
    tags = {"canary.watch.level": "stopped", "canary.watch.warnings": "1", "canary.watch.found": said}
    values = {"stability/loss": [2 - step / 20 for step in range(20)] + [float("nan")] * 2}
    run_id = a_run(site.store, values, end="FAILED", tags=tags)
    for page, chart in (("run", "charts[0].figures[0].chart"), ("session", "all.figures[0].chart")):
        seen.open(f"/canary/{page}?id={run_id}")
        seen.until(f"{chart} !== null", 10)
        assert seen.page.evaluate(f"{chart}.data[0].slice(-3)") == [20, 21, 22]
        places = seen.page.evaluate(f"[21, 22].map((x) => {chart}.valToPos(x, 'x') / {chart}.over.clientWidth)")
        assert all(0 < place <= 1 for place in places), page
        label = seen.page.locator(".plot[aria-label^='Loss']").get_attribute("aria-label") or ""
        assert "is NaN at step 22" in label


def log_of(client: Any, run_id: str, steps: range, value: float) -> None:
    from mlflow.entities import Metric

    now = int(time.time() * 1000)
    client.log_batch(run_id, metrics=[Metric("perf/step_time", value, now, step) for step in steps])


def test_a_point_of_a_models_history_opens_its_verdict(site: Site, seen: Window) -> None:
    path = f"/canary/model?name={site.store.model}"
    seen.open(path)
    figure = seen.page.locator("figure[data-trend='step_cost']")
    figure.locator(".plot").focus()
    for key in ("Home", "End"):
        seen.page.keyboard.press(key)
    assert "version 3, BLOCK, no recorded change: " in figure.locator(".note").inner_text()
    seen.page.keyboard.press("Enter")
    seen.page.wait_for_url(f"**/canary/verdict?row={site.blocked}")
    seen.open(path)
    over = figure.locator(".u-over")
    size = over.bounding_box()
    assert size is not None
    over.click(position={"x": size["width"] * 0.75, "y": 20})  # of two verdicts the second
    seen.page.wait_for_url(f"**/canary/verdict?row={site.blocked}")


@pytest.mark.parametrize("width", [1280, 390], ids=["wide", "phone"])
def test_no_fault_for_those_who_cannot_see_it_well(site: Site, width: int) -> None:
    with window(site.browser, site.address, width=width) as seen:
        for path in site.paths:
            seen.page.emulate_media(color_scheme="light")
            seen.open(path)
            for check in seen.page.locator(".check summary").all()[:1]:
                check.click()
            assert [*seen.faults(), *seen.faults("target-size")] == [], path
            if width > 1000:  # a phone has the same colours
                seen.page.emulate_media(color_scheme="dark")
                assert seen.faults("color-contrast") == [], path
            assert seen.too_wide() <= 0, path
        assert [
            one for one in seen.troubles if "404" not in one
        ] == []  # the browser's own word on the page that is none


def test_paper_has_what_can_be_read_and_not_what_is_clicked(site: Site) -> None:
    with window(site.browser, site.address, width=794, dark=True) as seen:  # A4
        seen.page.emulate_media(media="print")
        for path in site.paths[:-1]:
            seen.open(path)
            assert seen.too_wide() <= 0, path
            for hidden in (".top", ".jump", ".tools", ".equal"):
                assert not any(one.is_visible() for one in seen.page.locator(hidden).all()), (path, hidden)
        seen.open(f"/canary/verdict?row={site.blocked}")
        assert seen.page.locator(".check .evidence").first.is_visible()
        assert seen.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert seen.troubles == []


def test_axe_finds_what_is_wrong(site: Site, seen: Window) -> None:
    seen.open("/canary")
    seen.page.evaluate("document.querySelector('main').append(document.createElement('button'))")
    assert [fault.split(":")[0] for fault in seen.faults()] == ["button-name"]
