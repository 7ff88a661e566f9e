"""`profile=true` and `canary profile`: where a step's time goes, in a training that is never evidence."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from mlflow import MlflowClient
from workplace import Workplace

from canary_mlflow.errors import UsageError
from canary_mlflow.reports import profile as reports
from canary_mlflow.tracking.reading.profile import TRACE, Cost, Profile, Profiled, from_text, to_text

HOSTILE = "<script>alert(1)</script>\x1b[31m"


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    """A session with its profile."""
    place = Workplace(folder=tmp_path_factory.mktemp("profiled"))
    ended = place.train("algo=sft", "repeats=1", "train.max_steps=21", "profile=true", "model_name=m")
    assert ended.returncode == 3, ended.stdout + ended.stderr
    assert "its runs were made with a profiler, so it is judged and shown, never promoted" in " ".join(
        ended.stdout.split()
    )
    assert "profiler_start" not in ended.stderr
    return place


def first_run(place: Workplace) -> str:
    """That of the fixture; others come later."""
    client = MlflowClient(place.uri)
    run, *_ = client.search_runs(["1"], "tags.`canary.role` = 'run'", order_by=["attributes.start_time ASC"])
    return str(run.info.run_id)


def test_a_session_without_an_answer_has_not_failed_if_its_runs_have_not(profiled: Workplace) -> None:
    (session,) = MlflowClient(profiled.uri).search_runs(["1"], "tags.`canary.role` = 'session'")
    assert (session.data.tags["canary.verdict"], session.info.status) == ("INCONCLUSIVE", "FINISHED")


def test_the_phases_of_a_step_are_the_whole_step(profiled: Workplace) -> None:
    ended = profiled.canary("profile", first_run(profiled), "--json")
    found = json.loads(ended.stdout)["profile"]
    phases = {cost["name"]: cost["ms"] for cost in found["phases"]}
    assert set(phases) == {"forward", "backward", "optimizer", "data", "other"}
    assert all(value > 0 for value in phases.values())
    assert sum(phases.values()) == pytest.approx(found["step_ms"])
    assert max(phases, key=lambda name: phases[name]) in ("forward", "backward")
    assert {"aten::mm", "aten::addmm"} <= {cost["name"] for cost in found["operators"]}
    calls = {cost["name"]: cost["calls"] for cost in found["modules"]}
    assert calls["gpt_neox"] == 1
    assert calls["gpt_neox.layers.*"] == 2  # layers of one kind are one
    assert found["grown_mib"] > 1


def test_the_trace_is_chromes_and_the_report_shows_it(profiled: Workplace, tmp_path: Path) -> None:
    run = first_run(profiled)
    trace = MlflowClient(profiled.uri).download_artifacts(run, TRACE, str(tmp_path))
    names = {event["name"] for event in json.loads(gzip.decompress(Path(trace).read_bytes()))["traceEvents"]}
    assert {"phase: forward", "module: gpt_neox.layers.*.mlp", "aten::mm"} <= names
    profiled.canary("report", run, "--html", str(tmp_path / "report.html"))
    page = (tmp_path / "report.html").read_text()
    assert "Where a step spends its time" in page
    assert "gpt_neox.layers.*.mlp" in page


@pytest.mark.full
def test_a_session_of_others_is_profiled_in_a_run_of_its_own(profiled: Workplace) -> None:
    profiled.train("algo=sft", "repeats=1", "train.max_steps=21", "model_name=m", "seed=5")
    client = MlflowClient(profiled.uri)
    (session,) = client.search_runs(["1"], "tags.`canary.role` = 'session'", max_results=1)
    ended = profiled.canary("profile", session.info.run_id)
    assert ended.returncode == 0, ended.stderr
    assert "4 steps on cpu under the profiler" in ended.stdout
    (made,) = client.search_runs(["1"], "tags.`canary.role` = 'profile'")
    assert made.data.tags["canary.profile_of"] == session.info.run_id
    assert made.data.tags["canary.not_promotable"] == "a profiler"
    again = profiled.canary("profile", session.info.run_id)
    assert again.stdout == ended.stdout  # shown, not made again
    assert profiled.canary("profile", made.info.run_id).stdout == ended.stdout  # by its own name too


def test_a_script_of_ones_own_is_not_trained_again_and_says_why(profiled: Workplace) -> None:
    client = MlflowClient(profiled.uri)
    own = client.create_run("1", tags={"canary.role": "run"}).info.run_id
    client.log_metric(own, "perf/step_time", 0.1, step=1)
    client.set_terminated(own)
    ended = profiled.canary("profile", own)
    client.delete_run(own)
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()[-1:]
    assert line.startswith(f"canary: run {own}: a script of your own made it, or its config.yaml is gone; expected")
    assert "only the script can make it again" in line
    assert "MlflowException" not in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    "words", [("compare", "{}", "{own}"), ("diff", "{own}", "{}"), ("report", "{}"), ("register", "{}")]
)
def test_a_profile_is_never_evidence_and_says_so(profiled: Workplace, words: tuple[str, ...]) -> None:
    client, own = MlflowClient(profiled.uri), first_run(profiled)
    tags = {"canary.role": "profile", "canary.profile_of": own, "canary.not_promotable": "a profiler"}
    profile = client.create_run("1", tags=tags).info.run_id
    client.set_terminated(profile)
    ended = profiled.canary(*(word.format(profile, own=own) for word in words))
    client.delete_run(profile)
    assert ended.returncode == 2, ended.stdout
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"canary: run {profile}: found a profile, which is never evidence; expected what it repeats")
    assert line.endswith(f"canary profile {own} shows the profile")


def test_long_names_leave_the_columns_where_they_are() -> None:
    name = "autograd::engine::evaluate_function: torch::autograd::AccumulateGradOfAVeryLongName"
    for each in ("aten::mm", name, HOSTILE * 9):
        table = list(reports.lines(Profiled(run_id="r", profile=made(each))))
        header = next(line for line in table if line.startswith("operator, itself"))
        row = table[table.index(header) + 1]
        assert row.index("6.00") + len("6.00") == header.index("ms a step") + len("ms a step")
        assert row.split()[-1] == "3"
    assert "autograd::engine::evaluate_fu…AccumulateGradOfAVeryLongName" in "".join(
        reports.lines(Profiled(run_id="r", profile=made(name)))
    )


def made(name: str = "aten::mm") -> Profile:
    return Profile(
        device="cpu",
        steps=4,
        step_ms=10.0,
        phases=(Cost(name="forward", ms=6.0), Cost(name="other", ms=4.0)),
        operators=(Cost(name=name, ms=6.0, calls=3),),
        modules=(),
        grown_mib=2.0,
    )


def test_a_profile_is_read_as_it_was_written() -> None:
    assert from_text(to_text(made()), "here") == made()
    for text in ("", "[]", "{}", '{"format": 1}', to_text(made()).replace('"step_ms": ', '"step_ms": "a", "_": ')):
        with pytest.raises(UsageError, match=r"^here: "):
            from_text(text, "here")
