"""`canary evals`: real files of evaluation harnesses judged item by item, and everything that must never pass."""

from __future__ import annotations

import csv
import gzip
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import schemas
from click.testing import CliRunner, Result

from canary_mlflow.cli import canary
from canary_mlflow.evals import reading
from canary_mlflow.evals.reading import READERS, read_results

DATA = Path(__file__).resolve().parents[1] / "data/evals"
INSPECT, LM_EVAL = DATA / "inspect", DATA / "lm_eval"
Rows = Iterable[Mapping[str, Any]]


def compare(*words: object) -> Result:
    return CliRunner().invoke(canary, ["evals", "compare", *map(str, words)])


def judged(*words: object) -> dict[str, Any]:
    """The decision as JSON, checked against its schema."""
    result = compare(*words, "--json")
    assert result.exit_code in (0, 1, 3), result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    schemas.check("evals compare", found)
    assert result.exit_code == found["exit_code"]
    return found


def answer(found: Mapping[str, Any]) -> tuple[str, str]:
    return found["decision"], found["verdict"]["reason_code"]


def checks(found: Mapping[str, Any]) -> dict[str, Any]:
    return {check["metric"]: check for check in found["verdict"]["checks"]}


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def written(name: str, rows: Rows) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return written


def answers(scores: Iterable[float | None], **more: Any) -> list[dict[str, Any]]:
    return [
        {"id": at, "score": score, "input": f"What is {at}?", **({} if score is not None else {"error": "x"}), **more}
        for at, score in enumerate(scores)
    ]


def right(items: int, wrong: int = 0) -> list[float]:
    """So many items, of which the first are wrong."""
    return [0.0] * wrong + [1.0] * (items - wrong)


def test_inspect_logs_are_judged_by_passages_and_read_alike_as_zip_and_json() -> None:
    candidate = INSPECT / "candidate" / "boxes.json.gz"
    found = judged(INSPECT / "baseline" / "boxes.json.gz", candidate, "--margin", 0.05)
    assert answer(found) == ("BLOCK", "regression")
    evidence = checks(found)["boxes/match"]["evidence"]
    assert [round(evidence[key], 1) for key in ("baseline", "candidate", "margin")] == [79.6, 54.6, -5.0]
    assert round(evidence["p_harm"], 4) == 0.0023
    assert evidence["items"] == {"items": 36, "groups": 12, "broke": 21, "mended": 4, "lost": pytest.approx(1 / 3),
                                 "needed": evidence["items"]["needed"]}  # fmt: skip
    for same in (INSPECT / "baseline" / "boxes.eval", INSPECT / "baseline"):  # the folder holds one log, not two
        other = judged(same, candidate, "--margin", 0.05)
        assert other["verdict"]["checks"] == found["verdict"]["checks"]


def test_the_report_shows_the_items_that_broke() -> None:
    said = compare(INSPECT / "baseline", INSPECT / "candidate", "--margin", 0.05).stdout
    assert "benchmark boxes/match 79.6 → 54.6 (-25.0 points, limit -5.00 points), worse with p = 0.0023" in said.lower()
    assert "[-39.5, -12.3], 21 broke, 4 mended of 36, 0.333 lost" in said
    assert "p3-q2  1 → 0  passage 3: the number kept in the box of house 3 is 21.\\nQuestion 2" in said


def test_lm_eval_has_one_item_for_each_document_and_filter() -> None:
    found = checks(judged(LM_EVAL / "baseline", LM_EVAL / "candidate"))
    outcomes = {name: (check["outcome"], check["evidence"] and (check["evidence"].get("items") or {}).get("items"))
                for name, check in found.items()}  # fmt: skip
    assert outcomes == {
        "canary_boxes/exact_match,flexible-extract": ("NOT_JUDGED", None),
        "canary_boxes/exact_match,strict-match": ("NOT_JUDGED", None),
        "canary_pairs/acc": ("PASS", 96),
        "canary_pairs/acc_norm": ("PASS", 96),
        "suite": ("PASS", None),
    }
    (note,) = found["suite"]["notes"]
    assert note.startswith("not in the mean, with nothing to lose: canary_boxes/")
    assert "scores 0 on all 24 items: nothing to lose" in found["canary_boxes/exact_match,strict-match"]["reason"]


def test_a_log_in_which_every_sample_failed_decides_nothing(tmp_path: Path) -> None:
    failed = INSPECT / "all-errors"
    assert answer(judged(failed, INSPECT / "candidate")) == ("INCONCLUSIVE", "missing-data")
    scored = json.loads(gzip.decompress((failed / "log.json.gz").read_bytes()))
    scored["eval"]["eval_id"] = "other"
    for sample in scored["samples"]:
        sample["error"], sample["scores"] = None, {"match": {"value": "C", "answer": "1"}}
    (tmp_path / "log.json").write_text(json.dumps(scored))
    for sides, whose in (((tmp_path, failed), "candidate"), ((failed, tmp_path), "baseline")):
        found = judged(*sides)
        assert answer(found) == ("INCONCLUSIVE", "missing-data")
        assert f"no item of the {whose} has a score" in found["verdict"]["reason"]


# The cases that other gates let pass, as files.


def test_nothing_evaluated_is_no_pass(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    result = compare(tmp_path / "a", tmp_path / "b")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "a: no evaluation found; expected results of lm_eval, inspect, nemo, plain" in result.stderr


def test_a_benchmark_that_the_candidate_lacks_is_no_pass(write: Callable[..., Path]) -> None:
    one, other = answers(right(500, 100), benchmark="one"), answers(right(500, 100), benchmark="other")
    found = judged(write("a.jsonl", one + other), write("b.jsonl", one))
    assert answer(found) == ("INCONCLUSIVE", "missing-data")
    assert checks(found)["other"]["reason"] == "benchmark other: no evaluation of the candidate, which has one"


def test_what_no_policy_has_a_limit_for_is_said(write: Callable[..., Path]) -> None:
    rows = answers((3.0 + at / 100 for at in range(60)), benchmark="perplexity", better="lower")
    found = judged(write("a.jsonl", rows), write("b.jsonl", [{**row, "output": "x"} for row in rows]))
    assert answer(found) == ("INCONCLUSIVE", "missing-data")
    assert [note for note in found["verdict"]["notes"] if "only with a limit of their own" in note]


def test_items_that_vanish_can_only_hurt(write: Callable[..., Path]) -> None:
    base = write("a.jsonl", answers(right(500, 250)))
    only_right = write("b.jsonl", [row for row in answers(right(500, 250)) if row["score"]])
    found = judged(base, only_right)
    assert answer(found) == ("INCONCLUSIVE", "missing-data")
    assert "250 of 500 items are without a score of the candidate (0, 1, 10 and 247 more)" in found["verdict"]["reason"]
    failed = write("c.jsonl", answers([*([None] * 250), *right(250)]))  # an error of the harness is no better
    assert checks(judged(base, failed)) == checks(found)
    few = [row for row in answers(right(500, 0)) if row["id"] >= 20]  # 20 vanish, the others stay right
    counts = checks(judged(write("d.jsonl", answers(right(500))), write("e.jsonl", few)))["evaluation"]
    assert (counts["outcome"], counts["evidence"]["items"]["lost"]) == ("INCONCLUSIVE", 20)


def test_a_repeat_that_failed_can_only_hurt(write: Callable[..., Path]) -> None:
    twice = [row | {"repeat": at} for at in (0, 1) for row in answers(right(400))]
    base = write("a.jsonl", twice)
    hidden = [row for row in twice if row["repeat"] == 0 or row["id"] >= 39]
    lost = checks(judged(base, write("b.jsonl", hidden)))["evaluation"]
    assert (lost["outcome"], lost["evidence"]["items"]["lost"]) == ("INCONCLUSIVE", 19.5)
    assert checks(judged(base, write("c.jsonl", [*twice[:1], *twice[1:]][::-1])))["evaluation"]["outcome"] == "PASS"


def test_a_lost_item_costs_what_it_had_to_lose(write: Callable[..., Path]) -> None:
    """Scores of a grader are all near each other: nothing that is seen to break is as bad as an answer that is gone."""
    base = write("a.jsonl", answers([0.8 + at % 10 / 100 for at in range(400)]))
    gone = write("b.jsonl", answers([None if at < 20 else 0.8 + (at + 1) % 10 / 100 for at in range(400)]))
    counts = checks(judged(base, gone))["evaluation"]
    assert (counts["outcome"], counts["evidence"]["items"]["lost"]) == ("INCONCLUSIVE", 20)
    assert counts["evidence"]["change_low"] < -4


def test_the_right_answers_of_a_hard_benchmark_cannot_vanish(write: Callable[..., Path]) -> None:
    base = write("a.jsonl", answers(right(400, 380)))
    gone = checks(judged(base, write("b.jsonl", answers([*([0.0] * 380), *([None] * 20)]))))["evaluation"]
    assert gone["outcome"] == "INCONCLUSIVE"
    nothing = write("c.jsonl", answers([0.0] * 400))
    assert checks(judged(nothing, write("d.jsonl", answers(right(400, 380)))))["evaluation"]["outcome"] == "NOT_JUDGED"


def test_a_repeat_is_asked_the_same(write: Callable[..., Path]) -> None:
    base = write("a.jsonl", answers(right(500, 100)))
    hints = [row | {"input": f"Say {row['id']}", "score": 1.0} for row in answers(right(500))]
    found = judged(base, write("b.jsonl", [*answers(right(500, 200)), *hints, *hints]))
    assert answer(found) == ("INCONCLUSIVE", "not-comparable")
    assert "prompts (other ones in 500 of 500 items)" in found["verdict"]["reason"]


def test_one_row_does_not_say_what_all_were_asked(write: Callable[..., Path]) -> None:
    base = write("a.jsonl", answers(right(500, 100), **{"fact.shots": 0}))
    other = [*answers(right(500, 100), **{"fact.shots": 8}), {"id": "x", "score": 1.0, "fact.shots": 0}]
    found = judged(base, write("b.jsonl", other))
    assert answer(found) == ("INCONCLUSIVE", "not-comparable")
    assert "fact.shots (0 | 0, 8)" in found["verdict"]["reason"]


def test_other_prompts_and_other_settings_are_named(write: Callable[..., Path]) -> None:
    base = write("a.jsonl", answers(right(500, 100), **{"fact.temperature": 0}))
    other = answers(right(500, 90), **{"fact.temperature": 0.7})
    other[3]["input"] = "Think step by step."
    found = judged(base, write("b.jsonl", other))
    assert answer(found) == ("INCONCLUSIVE", "not-comparable")
    for named in ("fact.temperature (0 | 0.7)", "prompts (other ones in 1 of 500 items)"):
        assert named in found["verdict"]["reason"]


def test_may_differ_allows_a_fact_by_name(write: Callable[..., Path]) -> None:
    base = write("a.jsonl", answers(right(500, 100), **{"fact.harness": "1"}))
    cand = write("b.jsonl", answers(right(500, 100), **{"fact.harness": "2"}))
    rule = "{margin: 0.02, may_differ: [fact.harness]}"
    policy = base.with_name("ours.yaml")
    policy.write_text(f"base: files\nevals:\n  evaluation: {rule}\n")
    assert answer(judged(base, cand)) == ("INCONCLUSIVE", "not-comparable")
    assert answer(judged(base, cand, "--policy", policy)) == ("PASS", "pass")


def test_the_same_file_or_run_on_both_sides_is_refused(tmp_path: Path) -> None:
    shutil.copy(INSPECT / "baseline" / "boxes.json.gz", tmp_path / "copy.json.gz")
    result = compare(INSPECT / "baseline", tmp_path / "copy.json.gz")
    assert result.exit_code == 2
    assert "copy.json.gz is the same file as" in result.stderr
    log = json.loads(gzip.decompress((tmp_path / "copy.json.gz").read_bytes()))
    (tmp_path / "again.json").write_text(json.dumps(log | {"stats": {}}))
    result = compare(INSPECT / "baseline" / "boxes.json.gz", tmp_path / "again.json")
    assert result.exit_code == 2
    assert "run H8iwmnCrqUMm3nQe8vaSfN is on both sides" in result.stderr


def test_copied_samples_of_lm_eval_are_suspect(tmp_path: Path) -> None:
    for side in ("baseline", "candidate"):
        shutil.copytree(LM_EVAL / side, tmp_path / side)
    for samples in (tmp_path / "baseline").glob("samples_pairs_*"):
        shutil.copy(samples, tmp_path / "candidate")
    found = judged(tmp_path / "baseline", tmp_path / "candidate")
    assert answer(found) == ("INCONCLUSIVE", "suspect-data")
    assert "all 96 answers are the same" in checks(found)["canary_pairs/acc"]["reason"]


def test_eleven_items_all_right_are_too_few(write: Callable[..., Path]) -> None:
    base, cand = (write(f"{side}.jsonl", answers(right(11), output=side)) for side in "ab")
    found = judged(base, cand, "--margin", 0.01)
    assert answer(found) == ("INCONCLUSIVE", "too-few-items")
    assert "too few items (11) to decide; 268 like them would, if nothing changed" in found["verdict"]["reason"]


def test_few_hard_items_asked_again_are_hardly_ever_blocked(write: Callable[..., Path]) -> None:
    """30 items, 8 repeats, the same model twice: the example of another gate says NO-GO to 67 of 200."""
    rng, words = np.random.default_rng(4), []
    for _ in range(40):
        sides = []
        chance = np.clip(rng.beta(0.06, 0.54, 30), 0.001, 0.999)
        for side in "ab":
            rows = [
                {"id": at, "repeat": k, "score": float(rng.random() < chance[at])} for at in range(30) for k in range(8)
            ]
            sides.append(write(f"{side}.jsonl", rows))
        words.append(judged(*sides, "--margin", 0.01)["decision"])
    assert words.count("BLOCK") == 0


def test_equal_answers_of_other_weights_are_suspect(write: Callable[..., Path]) -> None:
    base = write("a.jsonl", answers(right(200, 40), output="It is."))
    same = write("b.jsonl", [row | {"seconds": 1} for row in answers(right(200, 40), output="It is.")])
    assert answer(judged(base, same)) == ("INCONCLUSIVE", "suspect-data")
    empty = [row | ({"output": ""} if row["id"] == 5 else {}) for row in answers(right(200, 40), output="It is.")]
    assert answer(judged(base, write("d.jsonl", empty))) == ("INCONCLUSIVE", "suspect-data")
    assert answer(judged(base, write("c.jsonl", answers(right(200, 40))))) == ("PASS", "pass")  # choices, not texts


# Formats.


@pytest.mark.parametrize("name", READERS)
def test_each_format_has_a_folder_that_its_reader_alone_knows(name: str) -> None:
    files = [file for file in reading.files_of(DATA / name) if file.kind in ("json", "eval") or name == "plain"]
    for file in files:
        known = [one for one, read in READERS.items() if read(file, lambda _: None)]
        assert known == [name], file.path
    assert all(table.items for tables in read_results(DATA / name / "baseline" if (DATA / name / "baseline").is_dir()
               else files[0].path).tables.values() for table in tables)  # fmt: skip


def test_nemo_averages_repeats_and_knows_the_harness_errors() -> None:
    shown = CliRunner().invoke(canary, ["evals", "show", str(DATA / "nemo"), "--json"])
    found = json.loads(shown.stdout)
    schemas.check("evals show", found)
    (one,) = found["benchmarks"]
    assert {key: one[key] for key in ("benchmark", "items", "answers", "errors", "groups")} == {
        "benchmark": "toy_math", "items": 20, "answers": 40, "errors": 1, "groups": 20,
    }  # fmt: skip
    assert one["facts"] == {"temperature": "0.0", "top_p": "1.0", "max_tokens": "64", "repeats": "2"}


def test_a_sample_of_inspect_that_failed_has_no_score_whatever_stands_there(tmp_path: Path) -> None:
    log = json.loads(gzip.decompress((INSPECT / "candidate" / "boxes.json.gz").read_bytes()))
    for sample in log["samples"][:30]:
        sample["error"] = {"message": "broke off", "traceback": "\x1b[2J" * 1000}
        sample["scores"] = {"match": {"value": "C"}}
    (tmp_path / "log.json").write_text(json.dumps(log))
    found = judged(INSPECT / "baseline" / "boxes.eval", tmp_path)
    assert answer(found) == ("INCONCLUSIVE", "missing-data")
    assert "36 items are without a score of the candidate" in found["verdict"]["reason"]


def test_csv_reads_as_jsonl(write: Callable[..., Path]) -> None:
    rows = answers(right(60, 12), group="g")
    lines = write("a.jsonl", rows)
    with lines.with_name("a.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    one, other = (read_results(lines.with_suffix(kind)).tables["evaluation"][0] for kind in (".jsonl", ".csv"))
    assert one == other
    assert {item.group for item in one.items.values()} == {"g"}


def test_a_metric_of_the_whole_corpus_is_aggregated_only(tmp_path: Path) -> None:
    sides = []
    for side, f1 in (("baseline", 0.6), ("candidate", 0.3)):
        folder = shutil.copytree(LM_EVAL / side, tmp_path / side)
        (results,) = folder.glob("results_*")
        said = json.loads(gzip.decompress(results.read_bytes()))
        said["results"]["canary_pairs"] |= {"f1,none": f1, "f1_stderr,none": 0.02}
        results.write_bytes(gzip.compress(json.dumps(said).encode()))
        sides.append(folder)
    found = checks(judged(*sides))["canary_pairs/f1"]
    assert (found["role"], found["outcome"]) == ("advisory", "NOT_JUDGED")
    assert found["reason"] == "benchmark canary_pairs/f1: aggregated only: no items to pair"


def test_subtasks_of_a_scored_group_are_one_benchmark(tmp_path: Path) -> None:
    results = {
        "results": {}, "groups": {"mmlu": {"acc,none": 0.5}}, "group_subtasks": {"mmlu": ["law", "art"]},
        "configs": {}, "versions": {"law": 1, "art": 1}, "n-shot": {"law": 5, "art": 5},
        "higher_is_better": {"law": {"acc": True}, "art": {"acc": True}}, "date": 1.5,
    }  # fmt: skip
    for task in ("law", "art"):
        results["configs"][task] = {"output_type": "multiple_choice"}
        same = {"target_hash": "0" * 8, "prompt_hash": "p", "filter": "none", "metrics": ["acc"]}
        rows = [{"doc": {"question": str(at)}, "doc_hash": f"{at:016}", "acc": at % 2, **same} for at in range(30)]
        (tmp_path / f"samples_{task}_1.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "results_1.json").write_text(json.dumps(results))
    tables = read_results(tmp_path).tables
    assert {name: len(table.items) for name, (table,) in tables.items()} == {"mmlu/acc": 60}
    assert tables["mmlu/acc"][0].facts["few-shot of law"] == "5"


def test_a_group_is_taken_where_it_is_asked_for(write: Callable[..., Path]) -> None:
    rows = [row | {"meta": {"book": f"b{row['id'] // 10}"}} for row in answers(right(200, 50))]
    base, cand = write("a.jsonl", rows), write("b.jsonl", [row | {"seconds": 2} for row in rows])
    found = checks(judged(base, cand, "--group", "meta.book"))["evaluation"]
    assert found["evidence"]["items"]["groups"] == 20
    result = compare(base, cand, "--group", "meta.page")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "item 0 has no meta.page; expected the group of each item; name another" in result.stderr


def test_folders_of_seeds_ask_about_the_recipe(write: Callable[..., Path]) -> None:
    rng = np.random.default_rng(2)
    chance = rng.random(1300) < 0.7
    for side, shift in (("a", 0.0), ("b", 0.0), ("c", 0.06)):
        for seed in range(3):
            scores = (chance ^ (rng.random(1300) < 0.04)) & (rng.random(1300) >= shift)
            write(f"{side}/seed{seed}/x.jsonl", answers(scores.astype(float).tolist()))
    folder = write("d/seed0/x.jsonl", answers(right(1300, 400))).parents[2]
    assert answer(judged(folder / "a", folder / "b", "--margin", 0.04)) == ("PASS", "pass")
    found = judged(folder / "a", folder / "c")
    assert answer(found) == ("BLOCK", "regression")
    evidence = checks(found)["evaluation"]["evidence"]
    assert (evidence["baseline_runs"], evidence["candidate_runs"]) == (3, 3)
    shutil.rmtree(folder / "c" / "seed1")
    (folder / "c" / "seed1").mkdir()  # a seed without its evaluation
    assert answer(judged(folder / "a", folder / "c")) == ("INCONCLUSIVE", "missing-data")


# Bad files end in one line.


def broken_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as box:
        box.writestr("header.json", "{}")


def bomb(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as box:
        box.writestr("header.json", b"0" * (129 << 20))


HOSTILE: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "empty": ("a.jsonl", lambda path: path.write_text(""), "is empty; expected an evaluation's results"),
    "no JSON": ("a.json", lambda path: path.write_text("{"), "no readable JSON"),
    "deep": ("a.json", lambda path: path.write_text('{"eval":' * 60 + "1" + "}" * 60), "nested more than 50 deep"),
    "a list": ("a.jsonl", lambda path: path.write_text('{"id": 1, "score": 1}\n[1]\n'), "line 2 is no object"),
    "no id": ("a.jsonl", lambda path: path.write_text('{"id": 1, "score": 1}\n{"score": 1}\n'), "row 2 has no id"),
    "no number": ("a.jsonl", lambda path: path.write_text('{"id": 1, "score": "abc"}\n'), "score 'abc' is no number"),
    "no zip": ("a.eval", lambda path: path.write_text("PK"), "no readable log"),
    "no head": ("a.eval", broken_zip, "no evaluation found"),
    "bomb": ("a.eval", bomb, "header.json holds more than 128 MiB; expected at most that"),
    "a pipe": ("a.jsonl", lambda path: os.mkfifo(path), "no evaluation found"),
    "unlike lm-eval": (
        "results_1.json",
        lambda path: path.write_text('{"results": 1, "configs": {"a": 1}, "n-shot": {}}'),
        "is not as lm_eval writes it",
    ),
    "samples alone": (
        "samples_a_1.jsonl",
        lambda path: path.write_text('{"doc_hash": "a", "filter": "none"}\n'),
        "no results_*.json beside it",
    ),
    "a number beyond all": (
        "results_1.json",
        lambda path: path.write_text(
            '{"results": {"a": {"f1,none": 1' + "0" * 400 + '}}, "configs": {"a": {}}, "n-shot": {}}'
        ),
        "no evaluation found",
    ),
    "not there": ("b/a.jsonl", lambda path: None, "no such file or folder"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_bad_file_ends_in_one_line(name: str, tmp_path: Path) -> None:
    file, make, said = HOSTILE[name]
    make(tmp_path / file)
    result = compare(tmp_path / file, INSPECT / "candidate")
    assert (result.exit_code, result.stdout) == (2, ""), result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert said in result.stderr


def test_what_a_file_says_cannot_steer_a_terminal(write: Callable[..., Path]) -> None:
    rows = answers(right(500), benchmark="\x1b[2Jx", output="\x1b]0;owned\x07")
    worse = [row | {"score": 0.0 if row["id"] < 200 else 1.0, "output": "no\x1b[1A"} for row in rows]
    result = compare(write("a.jsonl", rows), write("b.jsonl", worse), "--full")
    assert result.exit_code == 1
    assert "\x1b" not in result.stdout
    assert "\\x1b]0;owned\\x07 → no\\x1b[1A" in result.stdout


def test_without_zstandard_one_line_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    if sys.version_info >= (3, 14):
        pytest.skip("Python unpacks it itself")
    result = compare(INSPECT / "baseline" / "boxes.eval", INSPECT / "candidate")
    assert result.exit_code == 2
    assert "expected zstandard (pip install 'canary-mlflow[evals]'), or JSON (inspect log convert --to json)" in (
        result.stderr
    )


def test_a_policy_without_evals_and_two_limits_are_refused(write: Callable[..., Path]) -> None:
    base, cand = write("a.jsonl", answers(right(20))), write("b.jsonl", answers(right(20), x=1))
    for words, said in (
        (("--policy", "files"), "policy 'files': no section evals; expected a limit for each benchmark"),
        (("--policy", "files", "--margin", "0.1"), "found --policy and --margin; expected one of them"),
    ):
        result = compare(base, cand, *words)
        assert result.exit_code == 2
        assert said in result.stderr


def test_it_loads_neither_mlflow_nor_a_database(tmp_path: Path) -> None:
    files = [str(INSPECT / side / "boxes.json.gz") for side in ("baseline", "candidate")]
    code = (
        "import sys; from canary_mlflow.cli import canary; "
        f"canary(['evals', 'compare', *{files}], standalone_mode=False); "
        "print([name for name in ('mlflow', 'sqlalchemy', 'torch', 'scipy.stats') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.endswith("\n[]\n")


@pytest.mark.full  # recorded files of lm-eval are read above
def test_lm_eval_itself_writes_what_is_read(tmp_path: Path) -> None:
    pytest.importorskip("lm_eval", reason="pip install lm-eval")
    from canary_mlflow.training.assets.tiny import tiny_model_folder

    pairs = [{"prompt": f"{at}?", "good": " Yes.", "bad": " No, never.", "gold": at % 2} for at in range(16)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs))
    task = (
        "task: pairs\ndataset_path: json\ndataset_kwargs: {data_files: {test: ./pairs.jsonl}}\ntest_split: test\n"
        "output_type: multiple_choice\ndoc_to_text: '{{prompt}}'\ndoc_to_target: gold\n"
        "doc_to_choice: '{{[good, bad] if gold == 0 else [bad, good]}}'\nmetadata: {version: 1.0}\n"
    )
    (tmp_path / "pairs.yaml").write_text(task)
    words = f"run --model hf --model_args pretrained={tiny_model_folder()} --tasks pairs --include_path . --log_samples"
    command = [sys.executable, "-m", "lm_eval", *words.split(), "--output_path", "results"]
    offline = {**os.environ, "HF_HUB_OFFLINE": "1"}
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, env=offline)
    read = read_results(tmp_path / "results")
    assert {name: len(tables[0].items) for name, tables in read.tables.items()} == {
        "pairs/acc": 16,
        "pairs/acc_norm": 16,
    }
    assert read.loaded == {str(tiny_model_folder())}
