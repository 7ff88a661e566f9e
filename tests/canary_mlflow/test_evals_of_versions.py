"""Evaluations of registered versions: added, signed, judged together with the runs, withdrawn, audited, shown."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlflow
import pytest
from click.testing import CliRunner, Result
from mlflow import MlflowClient
from paged import last_row, site, text_of
from recorded import Recorded
from servers import Server

from canary_mlflow import api
from canary_mlflow.cli import canary
from canary_mlflow.errors import UsageError
from canary_mlflow.policies import content_of, load_policy
from canary_mlflow.registry.backends import registry_of
from canary_mlflow.registry.backends.stock import Stock
from canary_mlflow.registry.evaluations import known_of, withdraw_here
from canary_mlflow.registry.judging.gatekeeper import gate as judge
from canary_mlflow.registry.policies.asked import set_policy
from canary_mlflow.reports import markdown, terminal
from canary_mlflow.tracking.stores.store import prepare_store

POLICY = content_of("smoke") | {"name": "with evals", "evals": {"math": {"margin": 0.05, "group": None}}}


def rows(wrong: int, items: int = 400, *, name: str = "math", **more: Any) -> list[dict[str, Any]]:
    """So many items, of which the first are wrong, as one run of a script wrote them."""
    return [
        {"id": at, "benchmark": name, "score": float(at >= wrong), "input": f"What is {at}?",
         "output": f"{at if at >= wrong else 'no'} by {wrong}", **more}
        for at in range(items)
    ]  # fmt: skip


@dataclass(frozen=True)
class Bench:
    """A model with a champion and a candidate, both sealed, and where results are written."""

    recorded: Recorded
    folder: Path
    candidate: str

    def file(self, name: str, found: Iterable[dict[str, Any]]) -> Path:
        path = self.folder / f"{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in found))
        return path

    def named(self, version: object) -> str:
        return f"{self.recorded.model}/{version}"

    def add(self, version: object, wrong: int, **more: Any) -> str:
        path = self.file(f"v{version}-{wrong}", rows(wrong, **more))
        return api.add_evals(self.named(version), path, tracking_uri=self.recorded.uri)

    def command(self, *words: object) -> Result:
        return CliRunner().invoke(canary, [*map(str, words), "--tracking-uri", self.recorded.uri])

    def gate(self, **more: Any) -> Any:
        return judge(self.recorded.client, self.recorded.model, self.candidate, load_policy(POLICY), **more)

    def evals(self, **about: Any) -> list[Any]:
        return registry_of(self.recorded.client).rows(self.recorded.model, kind="evals", **about)


@pytest.fixture
def bench(guarded: Recorded, tmp_path: Path) -> Bench:
    return Bench(guarded, tmp_path, guarded.version())


def answer(decision: Any) -> tuple[str, str]:
    return decision.word, str(decision.verdict.reason_code)


def test_a_version_passes_only_with_evaluations_of_both_sides(bench: Bench) -> None:
    first = bench.gate(dry_run=True)
    assert answer(first) == ("INCONCLUSIVE", "missing-data")
    assert "benchmark math: no evaluation of the baseline" in first.verdict.reason.lower()
    assert f"canary evals add {bench.named(1)} PATH" in terminal.render(first, width=300)
    bench.add(1, 80)
    assert "no evaluation of the candidate" in bench.gate(dry_run=True).verdict.reason
    bench.add(bench.candidate, 78)
    done = bench.gate()
    assert (answer(done), done.promoted) == (("PASS", "pass"), True)
    assert bench.recorded.champion() == bench.candidate
    verdict = bench.evals()[0], *bench.evals()[1:]
    row = registry_of(bench.recorded.client).rows(bench.recorded.model, kind="verdict")[-1]
    assert row.facts["evals"] == {str(one.seq): one.facts["digest"] for one in verdict}
    assert "version 1: its evaluation in row" in " ".join(done.verdict.notes)


def test_a_benchmark_that_is_worse_blocks_and_every_report_shows_what_broke(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.add(1, 60)
    asked = "What is <b>it</b>?\x1b[2J"
    bench.add(bench.candidate, 120)
    path = bench.file("hostile", [row | {"input": asked} for row in rows(60, name="other")])
    api.add_evals(bench.named(1), path, tracking_uri=bench.recorded.uri)
    path = bench.file("worse", [row | {"input": asked} for row in rows(200, name="other")])
    api.add_evals(bench.named(bench.candidate), path, tracking_uri=bench.recorded.uri)
    policy = POLICY | {"evals": {"math": {"margin": 0.05}, "other": {"margin": 0.05}}}
    done = api.gate(bench.recorded.model, bench.candidate, policy=policy, tracking_uri=bench.recorded.uri)
    assert (answer(done), done.promoted) == (("BLOCK", "regression"), False)
    assert {name: len(some) for name, some in done.broken.items()} == {"math": 5, "other": 5}
    kept = Path(bench.recorded.client.get_run(done.session_id).info.artifact_uri)
    assert json.loads((kept / "verdict.json").read_text())["broken"]["math"][0]["asked"] == "What is 100?"
    seq = registry_of(bench.recorded.client).rows(bench.recorded.model, kind="verdict")[-1].seq
    page = site(bench.recorded.uri, monkeypatch).get(f"/canary/verdict?row={seq}").text
    shown = {"terminal": terminal.render(done), "Markdown": markdown.render(done),
             "report": (kept / "report.html").read_text(), "page": page}  # fmt: skip
    for name, text in shown.items():
        for said in ("60 broke, 0 mended of 400", "What is 100?", "100 by 60", "no by 120"):
            assert said in text, (name, said)
        assert "\x1b" not in text, name
        assert ("<b>it</b>" in text) == (name == "terminal"), name


def test_the_run_in_mlflow_has_scores_datasets_and_the_table(bench: Bench) -> None:
    run = bench.recorded.client.get_run(bench.add(bench.candidate, 100))
    assert run.data.metrics == {"eval/math": 0.75, "eval/math/items": 400.0}
    assert run.data.tags["canary.role"] == "evals"
    assert run.info.status == "FINISHED"
    assert run.info.experiment_id == bench.recorded.experiment
    (dataset,) = run.inputs.dataset_inputs
    assert dataset.dataset.name == "math"
    (row,) = bench.evals()
    assert row.facts["weights"] == "not shown"
    assert row.facts["benchmarks"] == {"math": 400}
    shown = json.loads(bench.command("evals", "show", bench.named(bench.candidate), "--json").stdout)
    assert shown["benchmarks"][0]["score"] == 0.75


def test_an_evaluation_is_linked_to_the_logged_model(bench: Bench) -> None:
    client = bench.recorded.client
    session = bench.recorded.session()
    run_id = bench.recorded.children(session)[0]
    made = client.create_logged_model(bench.recorded.experiment, name="m", source_run_id=run_id)
    client.finalize_logged_model(made.model_id, "READY")
    mlflow.set_tracking_uri(bench.recorded.uri)  # where MLflow looks for such a source
    try:
        version = client.create_model_version(bench.recorded.model, f"models:/{made.model_id}", run_id)
    finally:
        mlflow.set_tracking_uri(None)
    bench.add(version.version, 100)
    metrics = {one.key: one for one in client.get_logged_model(made.model_id).metrics}
    assert metrics["eval/math"].value == 0.75
    assert metrics["eval/math"].dataset_name == "math"


def test_what_is_added_later_is_a_repeat_and_makes_a_verdict_stale(bench: Bench) -> None:
    from mlflow.exceptions import MlflowException

    bench.add(1, 80)
    bench.add(bench.candidate, 78)
    assert bench.gate(promote=False).word == "PASS"
    bench.add(bench.candidate, 200)  # a second run of the benchmark, which says otherwise
    with pytest.raises(MlflowException, match="about its evaluations, and came after it was judged"):
        bench.recorded.client.set_registered_model_alias(bench.recorded.model, "champion", bench.candidate)
    again = bench.gate()
    assert again.word == "BLOCK"
    (check,) = (one for one in again.verdict.checks if one.metric == "math")
    assert check.evidence.candidate == pytest.approx(100 * (1 - (78 + 200) / 800))
    assert again.verdict.attempt == 2  # a further look at the same runs


def test_a_first_look_without_evaluations_costs_nothing(bench: Bench) -> None:
    assert bench.gate().word == "INCONCLUSIVE"
    bench.add(1, 80)
    bench.add(bench.candidate, 78)
    done = bench.gate()
    assert (done.word, done.verdict.attempt) == ("PASS", 1)


def test_withdrawing_is_said_with_every_verdict_and_on_every_page(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.add(1, 80)
    bench.add(bench.candidate, 200)
    wrong = bench.evals()[-1].seq
    bench.add(bench.candidate, 78)
    words = ("evals", "add", bench.named(bench.candidate), "--withdraw")
    assert bench.command(*words, wrong).exit_code == 2  # no reason
    unknown = bench.command(*words, 9999, "--reason", "x")
    assert "no evaluation '9999'; expected one of its own:" in unknown.stderr
    done = bench.command(*words, wrong, "--reason", "the harness used another prompt")
    assert done.exit_code == 0, done.stderr
    model = bench.recorded.model
    mine = POLICY | {"name": "with-evals"}
    set_policy(bench.recorded.client, f"{model[:-1]}?", mine, "benchmarks count from now on", "ann")
    set_policy(bench.recorded.client, "another", mine, "not about this one", "ann")
    found = bench.gate()
    assert found.word == "PASS"
    said = " ".join(found.verdict.notes)
    assert f"its evaluation in row {wrong} was withdrawn by" in said
    assert "the harness used another prompt" in said
    web = site(bench.recorded.uri, monkeypatch)
    added, verdict = wrong + 1, last_row(web, model)
    for page in (f"session?id={model}/{bench.candidate}", f"verdict?row={verdict}"):
        shown = re.sub(r"<[^>]*>", "", text_of(web.get(f"/canary/{page}")))
        for word, row, what in (("added", wrong, "math"), ("added", added, "math"), ("withdrawn", wrong + 2, "")):
            assert f"evals {word} in row {row}, " in shown
            assert what in shown
        assert f"evals withdrawn in row {wrong + 2}, of row {wrong}, by" in shown
        assert "the harness used another prompt" in shown
    page = text_of(web.get("/canary/model", query_string={"name": model}))
    rows = re.sub(r"<[^>]*>", "", page[page.index('id="rows"') :])
    assert f"evals withdrawn version {bench.candidate}" in rows
    assert f"policy with-evals for {model[:-1]}?" in rows
    assert ("benchmarks count from now on" in rows, "not about this one" in rows) == (True, False)
    assert "the harness used another prompt" in page[page.index('id="overrides"') : page.index('id="rows"')]
    assert "Withdrawn: the harness used" in text_of(web.get(f"/canary/verdict?row={wrong + 2}"))


def test_the_same_file_is_refused_for_both_sides(bench: Bench) -> None:
    bench.add(1, 80)
    path = bench.folder / "v1-80.jsonl"
    again = bench.command("evals", "add", bench.named(bench.candidate), path)
    assert again.exit_code == 2
    assert f"{path.name} is in row {bench.evals()[0].seq} of the ledger, for version 1, already" in again.stderr
    assert len(bench.evals()) == 1


def test_whether_the_sealed_weights_were_evaluated_is_said(bench: Bench, tmp_path: Path) -> None:
    client, model = bench.recorded.client, bench.recorded.model
    source = Path(client.get_model_version_download_uri(model, bench.candidate))
    path = bench.file("a", rows(100))
    other = tmp_path / "other"
    other.mkdir()
    (other / "model.safetensors").write_bytes(b"other")
    refused = bench.command("evals", "add", bench.named(bench.candidate), path, "--weights", other)
    assert refused.exit_code == 2
    assert "the evaluated folder is 1 files, sha256:" in refused.stderr
    assert bench.evals() == []
    for seed in range(2):
        bench.file(f"seeds/seed{seed}/{seed}", rows(100 + seed))
    seeds = bench.command("evals", "add", bench.named(bench.candidate), bench.folder / "seeds", "--weights", source)
    assert (seeds.exit_code, "2 seeds of math with the weights of one folder" in seeds.stderr) == (2, True)
    assert bench.command("evals", "add", bench.named(bench.candidate), path, "--weights", source).exit_code == 0
    assert bench.evals()[-1].facts["weights"] == "sealed"
    bench.add(1, 80)  # of which nobody knows that
    insists = POLICY | {"evals": {**POLICY["evals"], "weights": "required"}}
    found = judge(client, model, bench.candidate, load_policy(insists), dry_run=True)
    assert "no evaluation of the baseline" in found.verdict.reason


def test_a_table_that_was_changed_is_refused_and_found_by_the_audit(bench: Bench) -> None:
    bench.add(1, 80)
    run = bench.add(bench.candidate, 200)
    assert bench.gate().word == "BLOCK"
    table = Path(bench.recorded.client.get_run(run).info.artifact_uri, "evals.json")
    before = table.read_text()
    table.write_text(before.replace("[0.0]", "[1.0]"))
    row = bench.evals()[-1].seq
    with pytest.raises(UsageError, match=f"the table of its evaluation in run {run} changed since row {row}"):
        bench.gate()
    named = f"row {row}: version {bench.candidate} of '{bench.recorded.model}': the table of its evaluation"
    assert f"{named} changed" in bench.command("audit", "verify").stdout
    table.unlink()
    assert f"{named} cannot be read" in bench.command("audit", "verify").stdout
    table.write_text(before)


def test_versions_are_compared_without_a_verdict(bench: Bench) -> None:
    bench.add(1, 80)
    bench.add(bench.candidate, 200)
    result = bench.command("evals", "compare", bench.named(1), bench.named(bench.candidate), "--margin", "0.05")
    assert result.exit_code == 1, result.stderr
    assert "enchmark math 80.0 → 50.0 (-30.0 points, limit -5.00 points)" in result.stdout


def test_register_takes_evaluations_along(bench: Bench) -> None:
    session = bench.recorded.session()
    path = bench.file("own", rows(60))
    made = bench.command("register", session, bench.recorded.model, "--evals", path)
    assert made.exit_code == 0, made.stderr
    (row,) = bench.evals()
    assert str(row.version) == made.stdout.strip()
    missing = bench.command("register", bench.recorded.session(), bench.recorded.model, "--evals", "nowhere")
    assert "nowhere: no such file or folder" in missing.stderr
    assert len(bench.recorded.client.search_model_versions(f"name='{bench.recorded.model}'")) == 3


def test_a_group_that_the_policy_names_must_be_the_items_own(bench: Bench) -> None:
    bench.add(1, 80)
    bench.add(bench.candidate, 78)
    grouped = POLICY | {"evals": {"math": {"margin": 0.05, "group": "doc.passage"}}}
    found = api.gate(bench.recorded.model, bench.candidate, policy=grouped, dry_run=True,
                     tracking_uri=bench.recorded.uri)  # fmt: skip
    assert answer(found) == ("INCONCLUSIVE", "not-comparable")
    assert "items are not grouped by doc.passage" in found.verdict.reason


def test_without_a_ledger_a_tag_names_the_evaluations(bench: Bench) -> None:
    stock = Stock(MlflowClient(bench.recorded.uri, bench.recorded.uri))

    def found() -> Any:
        return stock.client.get_model_version(bench.recorded.model, bench.candidate)

    run = bench.add(bench.candidate, 100)
    assert known_of(stock, found()).results.tables["math"][0].score == 0.75
    withdraw_here(stock, bench.recorded.model, bench.candidate, run, "another prompt", "ann")
    assert known_of(stock, found()).results.tables == {}


@pytest.mark.full  # the test above reads the same tags every day
def test_a_stock_server_keeps_evaluations_in_tags(recorder: type[Recorded], tmp_path: Path) -> None:
    """Without a ledger nothing is signed, but the gate reads the same tables."""
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    prepare_store(uri)
    with Server(uri, tmp_path) as server:
        client = prepare_store(server.uri)
        stock = recorder(client=client, uri=server.uri, experiment=client.create_experiment("s"), model="stock")
        judge(client, "stock", stock.version(), load_policy(POLICY))
        bench = Bench(stock, tmp_path, stock.version())
        bench.add(1, 80)
        run = bench.add(2, 200)
        assert client.get_model_version("stock", "2").tags["canary.evals"] == run
        assert bench.gate(dry_run=True).word == "BLOCK"
        gone = bench.command("evals", "add", "stock/2", "--withdraw", run, "--reason", "another prompt")
        assert gone.exit_code == 0, gone.stderr
        api.add_evals("stock/2", tmp_path / "v1-80.jsonl", tracking_uri=server.uri)
        with pytest.raises(UsageError, match="is the same file as"):
            bench.gate(dry_run=True)
