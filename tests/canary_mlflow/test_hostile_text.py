"""A hostile string in every field that an editor or a file can set: no output obeys it."""

from __future__ import annotations

import io
import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hostile import HOSTILE, SHORT, Tags, live, obeyed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recorded import RAISED

from canary_mlflow.cli import canary as command
from canary_mlflow.pages.blueprint import ROUTES as PAGES
from canary_mlflow.policies import load_policy
from canary_mlflow.registry.acts.by_hand import bless, override
from canary_mlflow.registry.judging.gatekeeper import gate
from canary_mlflow.shown import fenced, in_markdown, json_text, shown, visible

FOUND = "canary.watch.found"
WARNING = {"level": "CRITICAL", "step": 3, "rule": HOSTILE[:200], "stream": HOSTILE[:200], "seen": HOSTILE,
           "meaning": HOSTILE, "advice": HOSTILE}  # fmt: skip


@dataclass(frozen=True)
class Attacked:
    """A store whose every text is hostile."""

    store: Any
    session: str
    versions: list[str]
    crashed: str


@pytest.fixture(scope="module")
def attacked(shared: Any) -> Attacked:
    """A champion, a BLOCK, an override, a session that broke off and one that is compared, all with hostile texts."""
    store = replace(shared, model=f"h {SHORT.replace('/', '').replace(':', '')}", seed=777)
    free = {f"canary.env.{name}": HOSTILE for name in ("torch", "os", "git_commit")}
    for name in ("failure", "note", "learned_reason", "invariants", "seed", "exception", "exception.place"):
        free[f"canary.{name}"] = HOSTILE
    free["canary.watch.level"] = HOSTILE[:200]
    free["canary.watch.warnings"] = "²"
    free[FOUND] = json.dumps([WARNING])
    first = store.session(tags={"canary.env.torch": "2.13.0", "canary.seed": "²", FOUND: json.dumps([WARNING])})
    other = store.session(tags={**free, "canary.failure": "", "canary.failure_reason": ""}, slower=2.0)
    for run in (other, *store.children(other), *store.children(first)):
        store.client.update_run(run, name=HOSTILE[:250])
        store.client.log_param(run, "lr", HOSTILE)
        store.client.log_param(run, "cfg/train.learning_rate", HOSTILE)
    one = store.register(first)
    bless(store.client, store.model, one, SHORT, actor=SHORT)
    two = store.register(other)
    gate(store.client, store.model, two, load_policy("smoke"), actor=SHORT)
    override(store.client, store.model, two, SHORT, actor=SHORT)
    crashed = store.session(tags={**free, **RAISED, "canary.failure": HOSTILE, "canary.failure_reason": HOSTILE,
                                  "canary.exception": HOSTILE, "canary.exception.place": HOSTILE})  # fmt: skip
    return Attacked(store=store, session=other, versions=[one, two], crashed=crashed)


def run(*words: str, code: tuple[int, ...] = (0, 1, 2, 3, 4)) -> str:
    """What a command prints, on both streams; a defect fails the test with its traceback."""
    result = CliRunner().invoke(command, list(words), catch_exceptions=False, prog_name="canary")
    assert result.exit_code in code, result.output
    return result.stdout + result.stderr


COMMANDS = (
    ("compare", "{m}/{v[0]}", "{m}/{v[1]}", "--full"),
    ("compare", "{s}", "{m}/{v[0]}", "--json"),
    ("gate", "{m}", "{v[0]}", "--dry-run", "--full"),
    ("gate", "{m}", "{v[0]}", "--dry-run", "--json"),
    ("gate", "{h}", "1"),
    ("report", "{s}", "--full"),
    ("report", "{c}", "--full"),
    ("report", "{m}/{v[1]}"),
    ("report", "{h}"),
    ("watch", "{s}", "--once"),
    ("watch", "{c}", "--once"),
    ("watch", "{h}"),
    ("audit", "log", "{m}"),
    ("audit", "blame", "{m}"),
    ("audit", "blame", "{m}", "--at", "{h}"),
    ("audit", "verify"),
    ("audit", "verify", "--head", "{h}"),
    ("audit", "export"),
    ("override", "{m}", "{v[1]}", "--reason", "{h}"),
    ("bless", "{m}", "{v[0]}", "--reason", "{h}"),
    ("rollback", "{h}", "--reason", "{h}"),
    ("calibrate", "{s}"),
    ("power", "--policy", "{h}"),
    ("db", "status"),
    ("doctor",),
    ("doctor", "--json"),
    ("register", "{h}", "{h}"),
    ("ci", "{s}", "--out", "{out}"),
    ("{h}",),
    ("gate", "--{h}"),
)


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words)[:40])
def test_no_command_prints_what_a_terminal_obeys(
    attacked: Attacked, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = attacked.store
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.uri)
    monkeypatch.chdir(tmp_path)
    names = {"m": store.model, "v": attacked.versions, "s": attacked.session, "c": attacked.crashed, "h": HOSTILE,
             "out": str(tmp_path / "out")}  # fmt: skip
    said = run(*(word.format(**names) for word in words))
    assert said.strip()
    assert obeyed(said) == []


def test_a_terminal_in_colour_obeys_us_alone(attacked: Attacked) -> None:
    from rich.console import Console, Group

    from canary_mlflow.analysis.reading import study_of
    from canary_mlflow.analysis.subject import find_subject
    from canary_mlflow.reports import following, terminal
    from canary_mlflow.reports.following import look

    study = study_of(attacked.store.client, find_subject(attacked.store.client, attacked.session))
    sight = look(attacked.store.client, attacked.session, following.WATCHED)
    for part in (Group(*terminal.whole(study, 120, full=True)), following.screen(sight, 0, HOSTILE)):
        console = Console(file=io.StringIO(), force_terminal=True, color_system="truecolor", width=120, highlight=False)
        console.print(part)
        painted = console.file.getvalue()
        assert "\x1b[" in painted  # in colour indeed
        assert obeyed(re.sub(r"\x1b\[[0-9;]*m", "", painted)) == []


def test_descriptions_notes_and_comments_hold_no_live_link_picture_mention_or_html(
    attacked: Attacked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = attacked.store
    monkeypatch.chdir(tmp_path)
    run("ci", attacked.session, "--out", "out", "--tracking-uri", store.uri)
    run("ci", attacked.crashed, "--out", "broken", "--tracking-uri", store.uri)
    texts = [store.description(version) for version in attacked.versions]
    texts += [store.client.get_run(attacked.session).data.tags["mlflow.note.content"]]
    texts += [(tmp_path / folder / "report.md").read_text() for folder in ("out", "broken")]
    for text in texts:
        assert "everyone" in text  # it is there, as text
        assert live(text) == []
        assert obeyed(text) == []
    for folder in ("out", "broken"):
        for name in ("report.html", "junit.xml"):
            assert obeyed((tmp_path / folder / name).read_text(), lines=name == "junit.xml") == []
        assert Tags((tmp_path / folder / "report.html").read_text()).forged == []
        raw = json.loads((tmp_path / folder / "report.json").read_text())
        assert HOSTILE in {one["environment"].get("torch") for one in raw["runs"]}  # JSON has the values as they are


@pytest.fixture
def web(attacked: Attacked, monkeypatch: pytest.MonkeyPatch) -> Any:
    from flask import Flask

    from canary_mlflow.pages.blueprint import add_pages

    monkeypatch.setenv("_MLFLOW_SERVER_FILE_STORE", attacked.store.uri)
    monkeypatch.setenv("_MLFLOW_SERVER_REGISTRY_STORE", f"canary+{attacked.store.uri}")
    app = Flask("server")
    add_pages(app)
    return app.test_client()


def test_no_page_holds_a_tag_or_a_sign_of_others(attacked: Attacked, web: Any) -> None:
    store = attacked.store
    rows = [row.seq for row in guard_rows(store)]
    pages = ["", *(f"/model?name={quoted(name)}" for name in (store.model, SHORT))]
    pages += [f"/verdict?session={attacked.session}"]
    pages += [f"/verdict?row={seq}" for seq in rows]
    ids = [attacked.session, attacked.crashed, *store.children(attacked.session), *store.children(attacked.crashed)]
    pages += [f"/run?id={one}" for one in ids]
    for page in pages:
        text = web.get(f"/canary{page}").text
        assert "<title>" in text, page
        assert obeyed(text, lines=False) == [], page
        assert Tags(text).forged == [], page
    for page in (f"/run.json?id={ids[2]}", f"/model.json?name={quoted(store.model)}", f"/run.json?id={quoted(SHORT)}"):
        assert obeyed(web.get(f"/canary{page}").text) == [], page


def test_every_page_answers_whatever_is_asked(web: Any, request: pytest.FixtureRequest) -> None:
    """The pages are in no OpenAPI document, so schemathesis does not call them (test_guard_server.py)."""
    routes = st.sampled_from(list(PAGES))
    keys = st.sampled_from(["id", "name", "row", "session", "after", "x"])
    values = st.one_of(
        st.text(max_size=300), st.integers().map(str), st.sampled_from([HOSTILE, SHORT, "²", "9" * 5000])
    )
    most = 1500 if request.config.getoption("--full") else 60

    @settings(max_examples=most, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(route=routes, asked=st.dictionaries(keys, values, max_size=3))
    def one(route: str, asked: dict[str, str]) -> None:
        answer = web.get(f"/canary{route}", query_string=asked)
        assert answer.status_code < 500, answer.text[:300]
        assert obeyed(answer.text, lines=False) == []
        assert "Traceback" not in answer.text

    one()


def guard_rows(store: Any) -> list[Any]:
    from canary_mlflow.registry.backends import registry_of

    return list(registry_of(store.client).rows(store.model))


def quoted(text: str) -> str:
    from urllib.parse import quote

    return quote(text)


def test_values_stay_what_they_are(attacked: Attacked) -> None:
    """What is compared and digested is the text itself: two tags that are shown alike are not equal."""
    from canary_mlflow.tracking.reading.histories import read_runs

    (first, *_) = read_runs(attacked.store.client, attacked.store.children(attacked.session))
    assert first.environment["torch"] == HOSTILE
    assert first.seed is None  # `²` and words are no seeds, and no tracebacks either


def test_text_is_written_out_once_and_bounded() -> None:
    assert visible("a\x1b[2Jb\nc\u202ed\xa0e") == "a\\x1b[2Jb\\nc\\u202ed e"
    assert len(visible("x" * 10_000)) < 2100
    assert visible("x" * 10_000).endswith("(8,000 more characters)")
    assert visible("x" * 2_001).endswith("(1 more character)")
    decision = {"a": ("b", ["c\x1b"]), "k\n": 1}
    assert shown(decision) == {"a": ("b", ["c\\x1b"]), "k\\n": 1}
    assert shown(shown(decision)) == shown(decision)
    same = {"a": ("b", ["c"])}
    assert shown(same) is same
    assert json.loads(json_text({"a": HOSTILE})) == {"a": HOSTILE}
    assert obeyed(json_text({"a": HOSTILE})) == []
    assert live(in_markdown(HOSTILE)) == []
    assert in_markdown("step_time fell from -5 % to 3.5 MiB, models:/m@champion") == (
        "step_time fell from -5 % to 3.5 MiB, models:/m@champion"
    )
    assert fenced("a\n```\nb").splitlines()[0] == "````"


WRITERS = {
    "canary_mlflow/shown.py": "the one that all others use",
    "canary_mlflow/edge.py": "a line that it has made visible",
    "canary_mlflow/interpreter.py": "before anything can be imported",
    "canary_mlflow/link_env.py": "where our own environment is",
    "canary_mlflow/cli.py": "our own version",
    "canary_mlflow/commands/canaries.py": "our own help",
    "canary_mlflow/commands/env.py": "a line that it has made visible, in colour",
    "canary_mlflow/commands/shared.py": "JSON",
    "canary_mlflow/commands/audit.py": "the rows of an export, in ASCII",
    "canary_mlflow/commands/judge.py": "JSON",
    "canary_mlflow/commands/import_.py": "JSON",
    "canary_mlflow/commands/report.py": "a file's bytes on stdout, as asked for",
    "canary_mlflow/upgrading/subprocess_guard.py": "a process of its own, to the pipe that canary upgrade reads",
}


def test_nobody_else_writes_to_a_terminal() -> None:
    root = Path(__file__).resolve().parents[2]
    found = {
        file.relative_to(root).as_posix()
        for package in ("canary_mlflow", "training")
        for file in (root / package).rglob("*.py")
        if re.search(r"click\.s?echo\(|(?<![\w.])print\(", file.read_text())
    }
    assert found == set(WRITERS)
