"""`canary report` on recorded sessions: every format says the same, and bad stores and names end in a sentence."""

from __future__ import annotations

import json
import math
import os
import re
import sqlite3
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from browser import CHROMIUM, MISSING, chromium, window
from click.testing import CliRunner, Result

from canary_mlflow import cli
from canary_mlflow.analysis.formats import write
from canary_mlflow.policies import load_policy
from canary_mlflow.registry.gatekeeper import gate

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>$x_{$ [a](http://x)\x1b[31m"


def canary(*arguments: str) -> Result:
    return CliRunner().invoke(cli.canary, list(arguments), catch_exceptions=False, prog_name="canary")


def report(store: Any, subject: str, folder: Path | None = None, *options: str) -> dict[str, Any]:
    """All files of a report: html, md, junit as text, json read, png as names; `text` without a folder."""
    if folder is None:
        result = canary("report", subject, *options, "--tracking-uri", store.uri)
        assert result.exit_code == 0, result.output
        return {"text": result.stdout}
    files = {name: folder / f"report.{name}" for name in ("html", "md", "json", "junit")}
    asked = [word for name, file in files.items() for word in (f"--{name}", str(file))]
    result = canary("report", subject, *asked, "--png", str(folder / "png"), *options, "--tracking-uri", store.uri)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = {name: file.read_text(encoding="utf-8") for name, file in files.items()}
    pictures = sorted((folder / "png").glob("*.png")) if (folder / "png").is_dir() else []
    assert all(one.read_bytes().startswith(b"\x89PNG") for one in pictures)
    return {**found, "json": json.loads(found["json"]), "png": [one.stem for one in pictures], "said": result.stderr}


class Page(HTMLParser):
    """A page's tags, figures (`<data>`) and words."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.figures: dict[str, float] = {}
        self.feed(html)
        self.words = " ".join(unescape(re.sub(r"<style>.*?</style>|<[^>]*>", " ", html, flags=re.DOTALL)).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.tags.append((tag, found))
        if tag == "data":
            assert found["data-key"] not in self.figures
            self.figures[found["data-key"]] = float(found["value"])


def figures_in(plain: Mapping[str, Any]) -> dict[str, float | None]:
    """What the page must show, from --json, under the page's own names."""
    found: dict[str, float | None] = {}
    for check in plain.get("verdict", {}).get("checks", ()):
        if check["evidence"] and check["role"] != "hard":
            for name in ("baseline", "candidate", "change", "margin"):
                found[f"check.{check['metric']}.{name}"] = check["evidence"][name]
    for run in plain["runs"]:
        found[f"run.{run['run_id']}.steps"] = run["steps"]
        for metric, numbers in run["metrics"].items():
            found |= {f"run.{run['run_id']}.{metric}.{name}": value for name, value in numbers.items()}
    for name, row in zip(plain["correlation"]["names"], plain["correlation"]["rows"], strict=True):
        found |= {
            f"correlation.{name}.{other}": value
            for other, value in zip(plain["correlation"]["names"], row, strict=True)
        }
    for one in plain["performance"]:
        found |= {f"performance.{one['metric']}.{name}": one[name] for name in ("baseline", "candidate", "change")}
    for one in plain["memory"]["peaks"]:
        found |= {f"memory.{one['algo']}.{name}": one[name] for name in ("median", "lowest", "highest", "runs")}
    for number, one in enumerate(plain["instabilities"]):
        found[f"trouble.{number}.step"] = one["step"]
    return found


@pytest.fixture(scope="module")
def judged(shared: Any, usual_session: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, str]:
    """A store, the files of a report on a version that was blocked, and the version's session."""
    from dataclasses import replace

    from canary_mlflow.registry.acts import bless

    store = replace(shared, model="reported", seed=77)
    bless(store.client, store.model, store.register(usual_session), "a baseline for the test")
    session = store.session(slower=2.0, tags={"canary.env.torch": "9.9"})
    version = store.register(session)
    assert gate(store.client, store.model, version, load_policy("smoke")).exit_code == 1
    return store, report(store, f"{store.model}/{version}", tmp_path_factory.mktemp("report")), session


def test_the_page_and_the_json_carry_the_same_numbers(judged: Any) -> None:
    _, files, _ = judged
    expected = {key: value for key, value in figures_in(files["json"]).items() if value is not None}
    assert len(expected) > 300
    assert Page(files["html"]).figures == expected  # to the last bit


def test_the_page_stands_alone(judged: Any) -> None:
    _, files, _ = judged
    page = Page(files["html"])
    assert not {"script", "link", "iframe", "object", "form"} & {tag for tag, _ in page.tags}
    sources = [attrs["src"] for tag, attrs in page.tags if "src" in attrs]
    assert len(sources) >= 7
    assert all(one.startswith("data:image/svg+xml;base64,") for one in sources)
    assert not [attrs for _, attrs in page.tags if "href" in attrs or any(name.startswith("on") for name in attrs)]
    policy = next(attrs["content"] for tag, attrs in page.tags if attrs.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; img-src data:")
    assert "prefers-color-scheme: dark" in files["html"]
    assert all(attrs["alt"] for tag, attrs in page.tags if tag == "img")


def test_the_verdict_comes_first_and_all_its_evidence_after(judged: Any) -> None:
    store, files, session = judged
    words = Page(files["html"]).words
    places = [words.index(part) for part in (
        f"BLOCK: {store.model} version 2 against champion version 1", "Instabilities", "Time series",
        "Correlation of the", "Performance", "Peak memory by algorithm", "Evidence", "signature holds")]  # fmt: skip
    assert places == sorted(places)
    assert f"Champion of {store.model} now: version 1." in words
    for part in ("Grey: the range of 3 runs of the baseline.", "torch 2.13.0 9.9", "Policy smoke", "min_steps",
                 *store.children(session)):  # fmt: skip
        assert part in words
    plain = files["json"]
    assert (plain["decision"], plain["question"], plain["version"]) == ("BLOCK", "gate", "2")
    assert (plain["ledger"][-1]["kind"], plain["ledger"][-1]["problems"]) == ("verdict", [])
    assert {run["side"] for run in plain["runs"]} == {"candidate", "baseline"}
    assert {"loss", "step-time", "memory", "gradient-norm", "correlation"} <= set(files["png"])


def test_markdown_says_the_verdict_and_folds_the_rest(judged: Any) -> None:
    store, files, _ = judged
    lines = files["md"].splitlines()
    assert lines[0] == f"**BLOCK** {store.model} version 2 against champion version 1"
    assert [line for line in lines[:6] if line.startswith("**Next:**")]
    unfolded = re.sub(r"<details>.*?</details>", "", files["md"], flags=re.DOTALL)
    assert len([line for line in unfolded.splitlines() if line]) <= 6
    assert "| **BLOCK** | step_cost |" in files["md"]


def test_junit_has_a_case_per_check_and_tells_failed_from_undecided(judged: Any) -> None:
    _, files, _ = judged
    suite = ET.fromstring(files["junit"]).find("testsuite")
    assert suite is not None
    cases = {case.get("name"): case for case in suite.findall("testcase")}
    checks = {check["metric"]: check for check in files["json"]["verdict"]["checks"]}
    assert set(cases) == set(checks)
    failed = {name for name, case in cases.items() if case.find("failure") is not None}
    skipped = {name for name, case in cases.items() if case.find("skipped") is not None}
    assert failed == {name for name, check in checks.items() if check["outcome"] == "BLOCK"}
    assert skipped == {name for name, one in checks.items() if one["outcome"] in ("INCONCLUSIVE", "NOT_JUDGED")}
    assert "step_cost" in failed
    assert (suite.get("failures"), suite.get("skipped")) == (str(len(failed)), str(len(skipped)))
    for name in skipped:
        assert checks[name]["reason"][1:30] in str(cases[name].find("skipped").get("message"))  # type: ignore[union-attr]


def test_every_way_to_name_it_and_the_terminal(judged: Any) -> None:
    store, _, session = judged
    for subject in (f"{store.model}/2", f"models:/{store.model}/2", session):
        text = report(store, subject)["text"]
        assert text.startswith(f"BLOCK  {store.model} version 2 against champion version 1\n")
        assert "  speed       step_time: 99.9 ms → 200.3 ms (+100.4 %)\n" in text
        assert "  memory      DPO: peak " in text
    run = store.children(session)[0]
    assert report(store, run)["text"].startswith(f"COMPARISON, a gate would say INCONCLUSIVE  run {run} (candidate)")
    champion = report(store, f"models:/{store.model}@champion")["text"]
    assert champion.startswith(f"NO VERDICT  {store.model} version 1\n")
    assert "it is the champion already" in champion


def test_json_goes_to_stdout_for_a_dash(judged: Any) -> None:
    store, files, _ = judged
    result = canary("report", f"{store.model}/2", "--json", "-", "--tracking-uri", store.uri)
    assert (result.exit_code, result.stderr) == (0, "")
    again = json.loads(result.stdout)
    assert again["runs"] == files["json"]["runs"]


def test_a_pipe_is_written_to_and_a_link_stays(judged: Any, tmp_path: Path) -> None:
    store, files, _ = judged
    link, target = tmp_path / "link.json", tmp_path / "there.json"
    link.symlink_to(target)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    asked = ("--junit", str(pipe), "--json", str(link), "--tracking-uri", store.uri)
    assert canary("report", f"{store.model}/2", *asked).exit_code == 0
    assert pipe.is_fifo()  # as /dev/null, which a report by root would have replaced by a file
    assert os.read(reader, 200).startswith(b"<?xml")
    os.close(reader)
    assert link.is_symlink()
    assert json.loads(target.read_text())["runs"] == files["json"]["runs"]


def test_a_place_that_cannot_be_is_one_line_and_nothing_is_left(judged: Any, tmp_path: Path) -> None:
    store, _, _ = judged
    (tmp_path / "file").touch()
    for place, says in ((tmp_path / ("a" * 300), "File name too long"), (tmp_path / "file/under", "File exists")):
        result = canary("report", f"{store.model}/2", "--md", str(place), "--tracking-uri", store.uri)
        assert result.exit_code == 4
        assert result.stderr == f"canary: {place}: {says}; expected a place that can be written; name another\n"
    assert [one.name for one in tmp_path.iterdir()] == ["file"]
    for place in (str(tmp_path / "both"), "-"):
        result = canary("report", f"{store.model}/2", "--md", place, "--json", place, "--tracking-uri", store.uri)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.startswith(f"canary: --md and --json both name {place}; expected a place for each")


def test_a_policy_that_is_none_is_refused_though_the_verdict_is_there(judged: Any) -> None:
    store, _, _ = judged
    result = canary("report", f"{store.model}/2", "--policy", "nosuch", "--tracking-uri", store.uri)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "nosuch" in result.stderr


def test_two_writers_of_one_place_do_not_meet(tmp_path: Path) -> None:
    place, contents = tmp_path / "report.html", [b"a" * 100_000, b"b" * 100_000]
    with ThreadPoolExecutor(2) as pool:
        for written in [pool.submit(write, [("", content)], place) for content in contents * 100]:
            written.result()
    assert place.read_bytes() in contents
    assert [one.name for one in tmp_path.iterdir()] == ["report.html"]


# What a session carries in MLflow's own UI.


def test_a_gate_leaves_the_page_and_pictures_with_its_session(guarded: Any) -> None:
    session = guarded.session(slower=2.0)
    version = guarded.register(session)
    gated = ("gate", guarded.model, version, "--tracking-uri", guarded.uri)
    assert canary(*gated, "--dry-run").exit_code == 1
    assert [one.path for one in guarded.client.list_artifacts(session)] == []
    assert canary(*gated).exit_code == 1
    assert {"report.html", "report.md", "pictures"} <= {one.path for one in guarded.client.list_artifacts(session)}
    pictures = {one.path for one in guarded.client.list_artifacts(session, "pictures")}
    assert {"pictures/loss.svg", "pictures/step-time.svg"} <= pictures
    folder = Path(guarded.client.get_run(session).info.artifact_uri.removeprefix("file://"))
    assert ET.parse(folder / "pictures" / "loss.svg").getroot().tag == "{http://www.w3.org/2000/svg}svg"
    words = Page((folder / "report.html").read_text()).words
    assert f"BLOCK: {guarded.model} version {version} against champion version 1" in words
    assert "signature holds" in words


def test_a_page_that_cannot_be_made_takes_no_verdict_back(
    guarded: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise ArithmeticError("no such colour")

    monkeypatch.setattr("canary_mlflow.reports.pictures.svg", broken)
    version = guarded.version()
    result = canary("gate", guarded.model, version, "--tracking-uri", guarded.uri)
    assert (result.exit_code, guarded.champion()) == (0, version)
    assert "no report.html: no such colour" in caplog.text


# What goes wrong in runs.

WARNING = {
    "step": 5, "stream": "loss", "level": "CRITICAL", "rule": "loss_rise", "seen": "7.1, 3 times the best",
    "meaning": "the run diverges", "advice": "halve the learning rate",
}  # fmt: skip


def a_run(store: Any, values: Mapping[str, Sequence[float]], *, name: str = "a run", **tags: str) -> str:
    """A run on its own with these series at steps 1, 2, 3 …"""
    from mlflow.entities import Metric

    own = {"canary.role": "run", "canary.seed": "7", "canary.algo": "sft", "canary.tier": "smoke",
           "canary.completed": "true"}  # fmt: skip
    own |= {f"canary.{key}".replace("__", "."): value for key, value in tags.items()}
    run_id: str = store.client.create_run(store.experiment, tags=own, run_name=name).info.run_id
    rows = [(key, step, float(one)) for key, series in values.items() for step, one in enumerate(series, 1)]
    if rows:
        store.client.log_batch(run_id, metrics=[Metric(key, value, 1_700_000_000_000 + n, n) for key, n, value in rows])
    store.client.set_terminated(run_id)
    return run_id


def test_a_warning_stands_with_its_meaning_and_on_its_curve(recorded: Any, tmp_path: Path) -> None:
    tags = {"watch__level": "critical", "watch__warnings": "11", "watch__found": json.dumps([WARNING])}
    tags |= {"failure": "instability", "failure_reason": "loss is 7.1", "last_step": "6"}
    files = report(recorded, a_run(recorded, {"stability/loss": [3.0, 2, 1, 4, 7.1, 7.2]}, **tags), tmp_path)
    words = Page(files["html"]).words
    assert "CRITICAL seed 7 : loss at step 5 : 7.1, 3 times the best. [loss_rise; said while it ran]" in words
    assert "Usually: the run diverges. Try: halve the learning rate." in words
    assert "FAILED seed 7 : run at step 6 : loss is 7.1." in words
    assert "seed 7: 10 further warnings in warnings.jsonl" in words
    assert [one["level"] for one in files["json"]["instabilities"]] == ["CRITICAL", "FAILED"]
    assert "Try: halve the learning rate." in files["md"]


def test_a_run_that_nobody_watched_is_watched_now(recorded: Any, tmp_path: Path) -> None:
    files = report(recorded, a_run(recorded, {"stability/loss": [2.0] * 4 + [math.nan] * 3}), tmp_path)
    first = files["json"]["instabilities"][0]
    assert (first["step"], first["level"], first["rule"]) == (5, "STOP", "nonfinite")
    assert first["source"].startswith("nobody watched this run")
    falling = [2 - step / 40 for step in range(40)]
    quiet = a_run(
        recorded, {"stability/loss": falling, "stability/advantage_mean": falling, "stability/advantage_std": falling}
    )
    files = report(recorded, quiet, tmp_path)
    assert files["json"]["instabilities"] == []
    assert "No instability was seen." in files["md"]
    assert files["png"] == ["advantage-mean-spread", "correlation", "loss"]
    assert "None seen: the watch has nothing to say" in Page((tmp_path / "report.html").read_text()).words


def test_memory_of_the_three_algorithms_is_set_side_by_side_like_with_like(recorded: Any, tmp_path: Path) -> None:
    name = f"model-{recorded.seed}"
    sizes = {"ppo": (900.0, 1500.0, 1400.0), "dpo": (700.0, 900.0), "sft": (500.0, 600.0)}
    ids = {algo: a_run(recorded, {"perf/peak_memory": size}, algo=algo, model=name) for algo, size in sizes.items()}
    a_run(recorded, {"perf/peak_memory": [9e5]}, algo="ppo", model=name, fault="memory_ballast")
    a_run(recorded, {"perf/peak_memory": [8e5]}, algo="dpo", model=name, tier="nightly")
    a_run(recorded, {"perf/peak_memory": [7e5]}, algo="sft", model=name, completed="false")
    files = report(recorded, ids["sft"], tmp_path)
    peaks = {one["algo"]: one["median"] for one in files["json"]["memory"]["peaks"]}
    assert peaks == {"ppo": 1500.0, "dpo": 900.0, "sft": 600.0}
    assert Page(files["html"]).figures["memory.ppo.median"] == 1500.0
    alone = a_run(recorded, {"perf/peak_memory": [1.0]}, model=f"{name}-alone")
    said = report(recorded, alone, tmp_path)["json"]["memory"]["said"]
    assert said == [f"No finished {algo} run of {name}-alone, tier smoke in this store." for algo in ("PPO", "DPO")]


# What nobody should have to see a traceback of.


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({}, "seed 7: no step was recorded."),
        ({"stability/loss": [1.0]}, "No correlation: it needs two signals that vary over at least 8 steps"),
        ({"stability/loss": [math.nan] * 5}, "No finite number in 5 values (NaN or infinity), from step 1 on."),
        ({"stability/loss": [1.0, math.inf, 1e308, -1e308]}, "1 of 4 values are NaN or infinity, the first at step 2."),
    ],
    ids=["0 steps", "1 step", "all NaN", "huge"],
)
def test_a_run_with_hardly_anything_in_it_is_reported_in_words(
    recorded: Any, tmp_path: Path, values: Any, says: str
) -> None:
    run_id = a_run(recorded, values)
    files = report(recorded, run_id, tmp_path)
    words = Page(files["html"]).words
    assert says in words
    assert "No band of a champion: these runs belong to no registered model." in words
    assert "no champion" in files["md"]
    assert report(recorded, run_id)["text"]
    drawn = [attrs for tag, attrs in Page(files["html"]).tags if tag == "img"]
    finite = any(math.isfinite(one) for series in values.values() for one in series)
    assert bool(drawn) == bool(files["png"]) == finite
    if not finite:
        assert "--png: nothing to draw: no series has a finite value" in files["said"]


def test_hostile_names_are_text_in_every_format(recorded: Any, tmp_path: Path) -> None:
    tags = {"model": HOSTILE, "seed": "", "env__os": HOSTILE, "failure": HOSTILE, "failure_reason": HOSTILE}
    series = {"stability/loss": [3.0, 2.0, 1.0], "trl/a b": [1.0, 2.0, 3.0]}
    run_id = a_run(recorded, series, name=HOSTILE, **tags)
    files = report(recorded, run_id, tmp_path)
    page = Page(files["html"])
    assert {"script", "img"} & {tag for tag, attrs in page.tags if attrs.get("src") == "x" or tag == "script"} == set()
    assert "<script>alert(1)</script>" in page.words
    assert "&lt;script>alert(1)" in files["md"]
    assert "\\[a](http://x)" in files["md"]
    ET.fromstring(files["junit"])
    assert files["json"]["runs"][0]["name"] == HOSTILE
    assert {"loss", "trl-a-b"} <= set(files["png"])


def test_what_was_never_there_or_is_deleted_is_one_line(recorded: Any, tmp_path: Path) -> None:
    gone = a_run(recorded, {"stability/loss": [1.0]})
    recorded.client.delete_run(gone)
    session = recorded.session(runs=1)
    recorded.register(session)
    for subject, says in (
        ("nosuchrun", "run 'nosuchrun': not in sqlite:///"),
        (gone, f"deleted; expected an active run; mlflow runs restore --run-id {gone}"),
        (f"{recorded.model}/99", "not in the registry; versions: 1"),
        (f"{recorded.model}@champion", "alias 'champion'"),
        ("<script>/1", "model '<script>': not in the registry"),
        (recorded.model, f"a model; expected a run, or one of its versions; {recorded.model}@champion or"),
    ):
        result = canary("report", subject, "--html", str(tmp_path / "no.html"), "--tracking-uri", recorded.uri)
        assert result.exit_code == 2, result.output
        assert says in result.stderr
        assert len(result.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_evidence_that_was_deleted_is_named(guarded: Any, tmp_path: Path) -> None:
    session = guarded.session(slower=2.0)
    version = guarded.register(session)
    gate(guarded.client, guarded.model, version, load_policy("smoke"))
    lost = guarded.children(session)
    guarded.client.delete_run(lost[0])
    files = report(guarded, f"{guarded.model}/{version}", tmp_path)
    assert files["json"]["gone"] == [lost[0]]
    assert f"No longer in the store, and not shown: {lost[0]}." in Page(files["html"]).words
    for run_id in lost[1:]:
        guarded.client.delete_run(run_id)
    files = report(guarded, f"{guarded.model}/{version}", tmp_path)
    words = Page(files["html"]).words
    assert "No runs: none of this subject's runs is in the store." in words
    assert "No picture: no series was recorded." in words


def test_without_a_tier_the_policy_is_asked_for(recorded: Any, tmp_path: Path) -> None:
    for tier in ("/etc/passwd", ""):
        run_id = a_run(recorded, {"stability/loss": [3.0, 2.0]}, tier=tier)
        assert "carry no tier with a policy; --policy smoke chooses the rules" in report(recorded, run_id)["text"]
    files = report(recorded, run_id, tmp_path)
    assert files["json"]["decision"] is None
    cases = ET.fromstring(files["junit"]).findall(".//testcase")
    assert [case.find("skipped") is not None for case in cases] == [True]
    assert "a gate would say" in report(recorded, run_id, None, "--policy", "smoke")["text"]


def test_an_older_database_is_named_in_one_line(shared: Any, tmp_path: Path) -> None:
    file = tmp_path / "mlflow.db"
    with sqlite3.connect(shared.uri.removeprefix("sqlite:///")) as now, sqlite3.connect(file) as old:
        now.backup(old)
        old.execute("UPDATE alembic_version SET version_num = '451aebb31d03'")  # of MLflow 0.9
    result = canary("report", "whatever", "--tracking-uri", f"sqlite:///{file}")
    assert (result.exit_code, len(result.stderr.splitlines())) == (4, 1)
    assert "mlflow db upgrade" in result.stderr


@pytest.mark.skipif(not CHROMIUM, reason=MISSING)
def test_a_browser_shows_it_to_everybody_and_asks_nobody_for_anything(judged: Any, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text(judged[1]["html"], encoding="utf-8")
    with chromium() as browser:
        for width, dark in ((1280, False), (390, True)):
            with window(browser, "file://", width=width, dark=dark) as seen:
                seen.open(str(page))
                assert seen.faults() == []
                assert seen.too_wide() <= 0
                assert [one for one in seen.troubles if not one.startswith("data:image/svg+xml;")] == []
                sizes = seen.page.evaluate("[...document.images].map(one => one.complete && one.naturalWidth)")
                assert len(sizes) >= 7
                assert all(sizes)
