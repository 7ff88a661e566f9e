"""`canary report` on what goes wrong: troubled runs, hostile names, missing evidence, unreadable stores."""

from __future__ import annotations

import json
import math
import sqlite3
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from reported import Page, a_run, canary, report

from canary_mlflow.policies import load_policy
from canary_mlflow.registry.judging.gatekeeper import gate

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>$x_{$ [a](http://x)\x1b[31m"

WARNING = {
    "step": 5, "stream": "loss", "level": "CRITICAL", "rule": "loss_rise", "seen": "7.1, 3 times the best",
    "meaning": "the run diverges", "advice": "halve the learning rate",
}  # fmt: skip


def test_a_warning_stands_with_its_meaning_and_on_its_curve(recorded: Any, tmp_path: Path) -> None:
    tags = {"watch__level": "critical", "watch__warnings": "11", "watch__found": json.dumps([WARNING])}
    tags |= {"failure": "instability", "failure_reason": "loss is 7.1", "last_step": "6"}
    files = report(recorded, a_run(recorded, {"stability/loss": [3.0, 2, 1, 4, 7.1, 7.2]}, **tags), tmp_path)
    words = Page(files["html"]).words
    assert "CRITICAL seed 7 : loss at step 5 : 7.1, 3 times the best. [loss_rise; reported while it ran]" in words
    assert "Usually: the run diverges. Try: halve the learning rate." in words
    assert "FAILED seed 7 : run at step 6 : loss is 7.1." in words
    assert "seed 7: 10 further warnings in warnings.jsonl" in words
    assert [one["level"] for one in files["json"]["instabilities"]] == ["CRITICAL", "FAILED"]
    assert "Try: halve the learning rate." in files["md"]


def test_a_quiet_run_has_no_instability(recorded: Any, tmp_path: Path) -> None:
    falling = [2 - step / 40 for step in range(40)]
    quiet = a_run(
        recorded, {"stability/loss": falling, "stability/advantage_mean": falling, "stability/advantage_std": falling}
    )
    files = report(recorded, quiet, tmp_path)
    assert files["json"]["instabilities"] == []
    assert "No instability was seen." in files["md"]
    assert files["png"] == ["advantage-mean-spread", "correlation", "loss"]
    assert (
        "None seen: no warning of the watch stands with these runs"
        in Page((tmp_path / "report.html").read_text()).words
    )


@pytest.mark.parametrize("page", [20, 1])  # of one run: the one that is like this one stands on a later page
def test_memory_of_the_algorithms_is_set_side_by_side_like_with_like(
    recorded: Any, tmp_path: Path, page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("canary_mlflow.analysis.figures.USED", page)
    name = f"model-{recorded.seed}"
    sizes = {"ppo": (900.0, 1500.0, 1400.0), "dpo": (700.0, 900.0), "grpo": (800.0,), "sft": (500.0, 600.0)}
    ids = {algo: a_run(recorded, {"perf/peak_memory": size}, algo=algo, model=name) for algo, size in sizes.items()}
    a_run(recorded, {"perf/peak_memory": [9e5]}, algo="ppo", model=name, not_promotable="fault memory_ballast")
    a_run(recorded, {"perf/peak_memory": [8e5]}, algo="dpo", model=name, tier="nightly")
    a_run(recorded, {"perf/peak_memory": [7e5]}, algo="sft", model=name, completed="false")
    files = report(recorded, ids["sft"], tmp_path)
    peaks = {one["algo"]: one["median"] for one in files["json"]["memory"]["peaks"]}
    assert peaks == {"ppo": 1500.0, "dpo": 900.0, "grpo": 800.0, "sft": 600.0}
    assert Page(files["html"]).figures["memory.ppo.median"] == 1500.0
    alone = a_run(recorded, {"perf/peak_memory": [1.0]}, model=f"{name}-alone")
    said = report(recorded, alone, tmp_path)["json"]["memory"]["said"]
    others = "DPO, KTO, REWARD, GRPO, RLOO, PPO"
    assert said == [f"No finished run of {name}-alone, tier smoke in this store: {others}."]


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
    assert "&lt;script&gt;alert(1)" in files["md"]
    assert "\\[a\\](http&#58;//x)" in files["md"]
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
    assert "(schema 451aebb31d03)" in result.stderr
    assert "canary db upgrade" in result.stderr
