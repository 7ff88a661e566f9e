"""`canary ci`: a job's report as files, as a comment that is renewed, and as a check, against an API that records."""

from __future__ import annotations

import json
import os
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from github import HEAD, GitHub, github, job

from canary_mlflow import cli
from canary_mlflow.policies import load_policy
from canary_mlflow.registry.judging.gatekeeper import gate


@pytest.fixture
def api() -> Iterator[GitHub]:
    with github() as running:
        yield running


@pytest.fixture
def place(api: GitHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a job on a pull request."""
    for key, value in job(api, tmp_path).items():
        monkeypatch.setenv(key, value)
    return tmp_path


def ci(store: Any, *words: str, out: Path) -> Result:
    return CliRunner().invoke(cli.canary, ["ci", *words, "--out", str(out / "out"), "--tracking-uri", store.uri])


def judged(guarded: Any, slower: float, runs: int = 3) -> str:
    version = guarded.version(slower=slower, runs=runs)
    gate(guarded.client, guarded.model, version, load_policy("smoke"))
    return f"{guarded.model}/{version}"


@pytest.mark.parametrize(
    ("slower", "runs", "word", "conclusion", "code", "strict"),
    [
        (1.0, 3, "PASS", "success", 0, 0),
        (2.0, 3, "BLOCK", "failure", 1, 1),
        (1.19, 2, "INCONCLUSIVE", "neutral", 0, 3),
    ],
)
def test_a_verdict_becomes_files_summary_comment_and_check(
    guarded: Any, api: GitHub, place: Path, slower: float, runs: int, word: str, conclusion: str, code: int, strict: int
) -> None:
    api.comments += [{"id": number, "body": "from a person"} for number in range(150)]  # more than one page
    subject = judged(guarded, slower, runs)
    done = ci(guarded, subject, out=place)
    assert done.exit_code == code, done.output
    assert done.output.startswith(f"{word} {guarded.model} version 2 against champion version 1: no recorded change\n")
    (made,) = api.checks
    assert (made["conclusion"], made["head_sha"], made["status"]) == (conclusion, HEAD, "completed")
    assert made["output"]["title"].startswith(word)
    ours = [one["body"] for one in api.comments if one["body"] != "from a person"]
    assert len(ours) == 1
    assert f"### {word} " in ours[0]
    assert "┃" in ours[0]  # each change against its limit, as text: GitHub shows no picture of ours
    assert f"Commit {HEAD}" in ours[0]
    assert "/o/r/actions/runs/" in ours[0].partition("charts")[2]
    assert f"### {word} " in (place / "summary.md").read_text()
    assert f"verdict={word}\n" in (place / "output.txt").read_text()
    assert json.loads((place / "out/report.json").read_text())["decision"] == word
    assert ET.parse(place / "out/junit.xml").getroot().tag == "testsuites"  # our own file
    assert "<html" in (place / "out/report.html").read_text()

    assert ci(guarded, subject, "--strict", out=place).exit_code == strict
    assert len(api.comments) == 151  # renewed, not repeated
    assert [method for method, path, _ in api.calls if "/comments/" in path] == ["PATCH"]


def test_a_token_that_may_not_write_is_a_warning(guarded: Any, api: GitHub, place: Path) -> None:
    api.refuses = 403
    done = ci(guarded, judged(guarded, 1.0), out=place)
    assert done.exit_code == 0
    assert "give the job permissions: pull-requests: write" in done.output
    assert "give the job permissions: checks: write" in done.output
    assert "### PASS " in (place / "summary.md").read_text()


def test_a_fork_is_told_once_that_its_token_may_not_write(
    guarded: Any, api: GitHub, place: Path, tmp_path: Path
) -> None:
    api.refuses = 403
    job(api, tmp_path, head="somebody/r")
    done = ci(guarded, judged(guarded, 1.0), out=place)
    assert done.exit_code == 0
    assert done.output.count("canary: warning: ") == 1
    assert "a pull request from a fork, whose token may not write: no comment and no check" in done.output
    assert "### PASS " in (place / "summary.md").read_text()


def test_without_a_token_only_what_needs_none_is_written(
    guarded: Any, api: GitHub, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GITHUB_TOKEN")
    done = ci(guarded, judged(guarded, 1.0), out=place)
    assert (done.exit_code, api.calls) == (0, [])
    assert "no GITHUB_TOKEN" in done.output


def test_the_session_of_the_job_is_found_and_no_other(
    recorded: Any, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from canary_mlflow.ci import ci_tags

    monkeypatch.setenv("GITHUB_JOB", recorded.model)  # of this test alone
    missing = ci(recorded, out=place)
    assert missing.exit_code == 2
    assert "no session of it" in missing.output
    assert not (place / "out").exists()
    session = recorded.session(tags=ci_tags(os.environ))
    found = ci(recorded, out=place)
    assert f"session={session}\n" in (place / "output.txt").read_text(), found.output
    monkeypatch.setenv("CANARY_CI_PART", "2")
    assert ci(recorded, out=place).exit_code == 2  # another part of the matrix


def test_outside_of_ci_a_subject_is_needed(guarded: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GITHUB_ACTIONS", "GITLAB_CI"):
        monkeypatch.delenv(name, raising=False)
    refused = ci(guarded, out=tmp_path)
    assert (refused.exit_code, len(refused.output.strip().splitlines())) == (2, 1)
    assert "expected a session or a version" in refused.output
    assert ci(guarded, judged(guarded, 1.0), out=tmp_path).exit_code == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "report.html", "report.md", "report.json", "junit.xml"
    }  # fmt: skip


def test_a_gitlab_job_finds_its_session(recorded: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from canary_mlflow.ci import ci_tags

    gitlab = {"GITLAB_CI": "true", "CI_JOB_ID": recorded.model, "CI_PROJECT_PATH": "g/p", "CI_JOB_URL": "https://gl"}
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    for key, value in gitlab.items():
        monkeypatch.setenv(key, value)
    session = recorded.session(tags=ci_tags(gitlab))
    assert recorded.client.get_run(session).data.tags["canary.ci.url"] == "https://gl"
    assert f"session {session}" in (done := ci(recorded, out=tmp_path)).output, done.output


@pytest.mark.parametrize(
    ("event", "says"),
    [
        (None, "No such file or directory"),
        ("{", "expected GitHub's event as JSON"),
        ("[]", "list; expected GitHub's event, a JSON object"),
        ('{"pull_request": "7"}', "pull_request is '7'; expected an object, as in GitHub's own events"),
        ('{"pull_request": {"head": 7}}', "head is 7; expected an object, as in GitHub's own events"),
    ],
)
def test_an_event_that_is_none_is_one_line(
    guarded: Any, place: Path, tmp_path: Path, event: str | None, says: str
) -> None:
    file = tmp_path / "event.json"
    file.unlink() if event is None else file.write_text(event)
    done = ci(guarded, f"{guarded.model}/1", out=place)
    assert done.exit_code == 2
    assert done.output.startswith("canary: GITHUB_EVENT_PATH")
    assert says in done.output
    assert not (place / "out").exists()


def test_a_summary_that_cannot_be_written_keeps_no_comment_back(
    guarded: Any, api: GitHub, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(place / "gone/summary.md"))
    done = ci(guarded, judged(guarded, 1.0), out=place)
    assert done.exit_code == 0
    assert f"canary: warning: {place}/gone/summary.md: No such file or directory; expected the file" in done.output
    assert (len(api.comments), len(api.checks)) == (1, 1)
    assert "verdict=PASS\n" in (place / "output.txt").read_text()


def test_an_api_that_speaks_no_json_is_a_warning(
    guarded: Any, api: GitHub, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "raw", b"<html>sign in</html>")
    done = ci(guarded, judged(guarded, 1.0), out=place)
    assert done.exit_code == 0
    assert done.output.count("canary: warning: ") == 2
    assert "'<html>sign in</html>'; expected GitHub's JSON there" in done.output
