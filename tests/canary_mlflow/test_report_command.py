"""`canary report` on recorded sessions: every format says the same, wherever it goes."""

from __future__ import annotations

import json
import os
import re
import xml.etree.ElementTree as ET
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from browser import CHROMIUM, MISSING, chromium, window
from reported import Page, canary, figures_in, report

from canary_mlflow.analysis.formats import write
from canary_mlflow.policies import load_policy
from canary_mlflow.registry.judging.gatekeeper import gate


@pytest.fixture(scope="module")
def judged(shared: Any, usual_session: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, str]:
    """A store, the files of a report on a version that was blocked, and the version's session."""
    from dataclasses import replace

    from canary_mlflow.registry.acts.by_hand import bless

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
        f"{store.model} version 2 against champion version 1", "Instabilities", "Time series",
        "Correlation of the", "Performance", "Peak memory by algorithm", "Evidence", "signature holds")]  # fmt: skip
    assert places == sorted(places)
    changed = "Changed: torch 2.13.0 → 9.9. Missing on one or both sides: facts, configuration, git, data."
    assert words.index("BLOCK ") < words.index(changed) < words.index("Instabilities")
    lines = [line for line in files["md"].splitlines() if line]
    assert lines[3] == changed
    assert files["json"]["changed"] == changed
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
    assert lines[0].startswith("### BLOCK v2: ")
    assert lines[2].startswith(f"{store.model} version 2 against champion version 1")
    shown = files["md"].partition("<details>")[0]
    assert shown.index("| **BLOCK** | step_cost |") < shown.index("**Next:**")
    unfolded = re.sub(r"<details>.*?</details>", "", files["md"], flags=re.DOTALL)
    assert len([line for line in unfolded.splitlines() if line]) <= 13
    assert files["md"].count("| **BLOCK** | step_cost |") == 1  # what the card shows is not told again


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
        assert text.startswith(f"BLOCK  {store.model} version 2 against champion version 1")
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


def test_a_gate_leaves_the_page_with_its_session(guarded: Any) -> None:
    session = guarded.session(slower=2.0)
    version = guarded.register(session)
    gated = ("gate", guarded.model, version, "--tracking-uri", guarded.uri)
    assert canary(*gated, "--dry-run").exit_code == 1
    assert [one.path for one in guarded.client.list_artifacts(session)] == []
    assert canary(*gated).exit_code == 1
    assert {"report.html", "report.md"} <= {one.path for one in guarded.client.list_artifacts(session)}
    folder = Path(guarded.client.get_run(session).info.artifact_uri.removeprefix("file://"))
    words = Page((folder / "report.html").read_text()).words
    assert f"{guarded.model} version {version} against champion version 1" in words
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
