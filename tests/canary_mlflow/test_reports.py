"""Reports: the verdict first, every check's meaning, human units, and nothing hidden silently."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from canary_mlflow.gates.model.rules import Role
from canary_mlflow.gates.model.verdict import (
    Check,
    CheckOutcome,
    Difference,
    Evidence,
    Outcome,
    ReasonCode,
    Verdict,
    verdict_from_dict,
)
from canary_mlflow.gates.notes import UNCOUNTED
from canary_mlflow.gates.watch import WatchWarning
from canary_mlflow.reports import markdown, terminal
from canary_mlflow.reports.decision import Decision, Question, RunWarning, decision_from_dict
from canary_mlflow.reports.study import verdict_json
from canary_mlflow.reports.view import view_of

REPORTS = {"text": terminal.render, "markdown": markdown.render, "json": verdict_json}
RULES = {
    "step_time": {"worse": "higher", "reduction": "iqm"},
    "grad_norm": {"worse": "both", "reduction": "iqm"},
}


def evidence(**changes: Any) -> Evidence:
    values: dict[str, Any] = {
        "unit": "s",
        "baseline": 0.0214,
        "candidate": 0.0269,
        "baseline_runs": 3,
        "candidate_runs": 3,
        "relative": True,
        "change": 0.257,
        "change_low": 0.21,
        "change_high": 0.305,
        "margin": 0.15,
        "p_harm": 1e-5,
        "p_noninferior": 0.99,
    }
    return Evidence(**{**values, **changes})


def check(metric: str = "step_time", outcome: CheckOutcome = CheckOutcome.BLOCK, **changes: Any) -> Check:
    values: dict[str, Any] = {
        "metric": metric,
        "role": Role.GATE,
        "outcome": outcome,
        "reason": f"{metric} says so",
        "evidence": evidence(),
    }
    return Check(**{**values, **changes})


def hard(metric: str, outcome: CheckOutcome = CheckOutcome.PASS, reason: str = "fine") -> Check:
    return check(metric, outcome, role=Role.HARD, reason=reason, evidence=None)


OURS = {"name": "ours", "rules": RULES}
NO_FRESH = {"name": "smoke", "rules": RULES, "looks": {"runs": [1, 3], "fresh_baseline": "never"}}

ENDED = "no more runs can be made: its code is gone"
OF_30 = {"name": "smoke", "rules": RULES, "warmup_steps": 10, "min_steps": 20}
SHORT = (check(outcome=CheckOutcome.INCONCLUSIVE, reason="too few rows to judge: step time has 10", evidence=None),)
OVER = {"name": "nightly", "rules": RULES, "looks": {"runs": [1, 3], "fresh_baseline": "always"}}


def verdict(outcome: Outcome = Outcome.BLOCK, code: ReasonCode = ReasonCode.REGRESSION, **changes: Any) -> Verdict:
    values: dict[str, Any] = {
        "model": "m",
        "candidate_version": "3",
        "baseline_version": "2",
        "outcome": outcome,
        "reason": "step time 21.4 ms -> 26.9 ms (+25.7 %, limit +15 %)",
        "reason_code": code,
        "checks": (hard("completed"), check()),
        "differences": (),
        "policy": {"name": "smoke", "rules": RULES},
        "baseline_runs": ("a", "b", "c"),
        "candidate_runs": ("d", "e", "f"),
        "more_runs": None,
    }
    return Verdict(**{**values, **changes})


def decision(judged: Verdict | None = None, **changes: Any) -> Decision:
    values: dict[str, Any] = {
        "verdict": judged or verdict(),
        "model": "m",
        "version": "3",
        "champion_before": "2",
        "champion_after": "2",
        "session_id": "s1",
        "store": "sqlite:////data/mlflow.db",
        "page": "/#/models/m/versions/3",
    }
    return Decision(**{**values, **changes})


def passed(**changes: Any) -> Decision:
    judged = verdict(Outcome.PASS, ReasonCode.PASS, reason="No worse than the baseline.")
    return decision(judged, **{"promoted": True, "champion_after": "3", **changes})


def no_baseline(**changes: Any) -> Decision:
    judged = verdict(
        Outcome.INCONCLUSIVE,
        ReasonCode.NO_BASELINE,
        reason="There is no baseline to compare with.",
        baseline_version=None,
        baseline_runs=(),
        checks=(hard("completed"), hard("baseline", CheckOutcome.INCONCLUSIVE)),
    )
    return decision(judged, **{"champion_before": None, "champion_after": None, **changes})


def unclear(code: ReasonCode, **changes: Any) -> Decision:
    return decision(verdict(Outcome.INCONCLUSIVE, code, **changes))


@pytest.mark.parametrize("name", REPORTS)
@pytest.mark.parametrize("outcome", Outcome)
def test_every_report_names_outcome_versions_and_metrics(name: str, outcome: Outcome) -> None:
    checks = (hard("completed"), check(), check("eval_loss", CheckOutcome.INCONCLUSIVE, evidence=None))
    made = decision(verdict(outcome, ReasonCode.TOO_NOISY, checks=checks))
    report = terminal.render(made, full=True) if name == "text" else REPORTS[name](made)
    for expected in (outcome.value, "3", "2", "completed", "step_time", "eval_loss", "eval_loss says so"):
        assert expected in report


def test_text_says_verdict_then_evidence_then_next_step_then_ui() -> None:
    report = terminal.render(decision())
    places = [
        report.index(part)
        for part in ("BLOCK", "Changed:", "[+21.0, +30.5]", "hard gates", "next ", "canary ui --tracking-uri")
    ]
    assert places == sorted(places)
    assert report.startswith("BLOCK  m version 3 against champion version 2\n")
    assert "+25.7 % [+21.0, +30.5]" in report
    assert "canary ui --tracking-uri sqlite:////data/mlflow.db" in report
    assert "http://127.0.0.1:5000/canary/session/s1" in report


@pytest.mark.parametrize("width", [40, 60, 80, 88, 107, 108, 140])
def test_text_keeps_to_the_width(width: int) -> None:
    many = (check(), check("a_rather_long_metric_name_indeed", CheckOutcome.WARN, role=Role.ADVISORY))
    report = terminal.render(decision(verdict(checks=many), store="sqlite:////d"), width=width)
    assert max(map(len, report.splitlines())) <= width


def test_what_a_narrow_terminal_leaves_out_is_said() -> None:
    narrow = terminal.render(decision(), width=60)
    assert "[+21.0, +30.5]" not in narrow
    assert "ranges of the changes are left out" in narrow
    assert "step_time: beyond the limit" in narrow
    assert "left out" not in terminal.render(decision(), width=90)


def test_headers_are_never_cut() -> None:
    """Where the cells below are short, as of metrics that were not recorded, and the last column just fits."""
    why = "step time was not recorded (in the baseline and the candidate)"
    bare = {"evidence": None, "reason_code": ReasonCode.MISSING_DATA, "reason": why}
    checks = tuple(check(name, CheckOutcome.INCONCLUSIVE, **bare) for name in ("step_time", "loss"))
    for width in range(70, 141):
        report = terminal.render(decision(verdict(checks=checks)), width=width)
        assert {"metric", "baseline", "candidate", "limit"} <= set(report.split()), width


def test_a_tail_that_costs_no_time_is_not_within_its_limit() -> None:
    relieved = check("step_time_tail", CheckOutcome.PASS)
    report = terminal.render(decision(verdict(outcome=Outcome.PASS, checks=(relieved,))), width=140, full=True)
    assert "beyond the limit, but nothing takes longer for it" in report
    assert "A tail or a drift of the step time also passes where" in " ".join(report.split())
    within = check("step_time", CheckOutcome.PASS, evidence=evidence(change_low=0.01, change_high=0.05))
    assert "nothing takes longer" not in terminal.render(
        decision(verdict(outcome=Outcome.PASS, checks=(within,))), width=140, full=True
    )


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (evidence(), ("21.4 ms", "26.9 ms", "+25.7 %", "+15 %")),
        (
            evidence(unit="MiB", baseline=900.0, candidate=1800.0, change=1.0, margin=0.2),
            ("900.0 MiB", "+100 %", "+20 %"),
        ),
        (
            evidence(unit="", relative=False, baseline=0.8, candidate=0.7, change=-0.1, margin=-0.05),
            ("0.800", "0.700", "-0.100", "-0.050"),
        ),
        (evidence(change=None, change_low=None, change_high=None, margin=None), ("21.4 ms",)),
    ],
)
def test_figures_have_human_units(made: Evidence, expected: tuple[str, ...]) -> None:
    report = terminal.render(decision(verdict(checks=(check(evidence=made),))))
    for figure in expected:
        assert figure in report


def test_limit_of_a_metric_that_may_move_neither_way() -> None:
    made = check("grad_norm", evidence=evidence(unit="", margin=0.3))
    assert "-23.1 % / +30 %" in terminal.render(decision(verdict(checks=(made,)))), "1 / 1.3 is as far as 1.3"


@pytest.mark.parametrize(
    ("metric", "ends", "words"),
    [
        ("step_time", {}, "(90 % confidence)"),
        ("grad_norm", {}, "(90 % confidence, 95 % where it may change neither way)"),
        ("grad_norm", {"change_low": None, "change_high": None, "identical": True}, ""),
    ],
)
def test_the_confidence_of_ranges_is_that_of_those_shown(metric: str, ends: dict[str, Any], words: str) -> None:
    policy = {"name": "smoke", "rules": RULES, "alpha_pass": 0.05}
    made = check(metric, evidence=evidence(**ends))
    said = " ".join(terminal.render(decision(verdict(checks=(made,), policy=policy)), full=True).split())
    assert words in said
    assert ("confidence" in said) is bool(words)


def test_identical_series_are_called_so() -> None:
    made = check(
        outcome=CheckOutcome.PASS, evidence=evidence(identical=True, change=0.0, change_low=None, change_high=None)
    )
    assert "bit-identical" in terminal.render(decision(verdict(checks=(made,))))


def test_advice_is_set_apart_and_comes_last() -> None:
    checks = (check("loss", CheckOutcome.WARN, role=Role.ADVISORY), check("step_time", CheckOutcome.PASS))
    made = decision(verdict(checks=checks))
    report = terminal.render(made, full=True)
    assert "(warning)" in report
    assert "(ok)" not in report
    assert report.index("step_time") < report.index("(warning)")
    assert "advice      beyond the limit: loss" in terminal.render(made)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (passed(), "Version 3 became champion (before: version 2). Load it as models:/m@champion"),
        (passed(promoted=False, dry_run=True), "nothing was written: without --dry-run, version 3 would be"),
        (decision(), "The champion stays version 2. Fix what is marked BLOCK and run again; if"),
        (decision(), 'canary bless m 3 --reason "…" --despite-block'),
        (no_baseline(bootstrapped=True, promoted=True, champion_after="3"), "Version 3 became champion. Load it as"),
        (no_baseline(), 'To do it by hand: canary bless m 3 --reason "…"'),
        (unclear(ReasonCode.TOO_FEW_RUNS, more_runs=5), "About 5 runs per side would decide (now 3 against 3): train"),
        (unclear(ReasonCode.TOO_FEW_RUNS, more_runs=5), "train 5 seeds (repeats=5), or add them: canary gate"),
        (unclear(ReasonCode.TOO_FEW_RUNS, more_runs=5, policy=OURS), "--top-up --policy FILE (that of policy ours)"),
        (unclear(ReasonCode.TOO_FEW_RUNS, more_runs=5, policy=NO_FRESH), "its code again with 5 seeds (repeats=5)"),
        (unclear(ReasonCode.TOO_FEW_RUNS, more_runs=5, policy=NO_FRESH, look=1), "Its plan may decide sooner: canary"),
        (unclear(ReasonCode.TOO_FEW_RUNS, more_runs=5, baseline_runs=tuple("abcde"), notes=(ENDED,)), "(repeats=5)."),
        (unclear(ReasonCode.TOO_FEW_RUNS, more_runs=5, look=2, policy=OVER), "its code again with 5 seeds (repeats=5)"),
        (replace(unclear(ReasonCode.TOO_FEW_RUNS, more_runs=5), own_script=True), "again with 5 seeds in one session,"),
        (decision(verdict(reason="Slow drift, against the anchor (version 1): Step")), "--alias anchor --reason"),
        (unclear(ReasonCode.INVALID_ENVIRONMENT), "Run it again while the machine is quiet"),
        (unclear(ReasonCode.TOO_FEW_RUNS, more_runs=3, policy=NO_FRESH), "3 against 3): train 3 seeds (repeats=3)."),
        (unclear(ReasonCode.NOT_COMPARABLE), "Compare like with like"),
        (unclear(ReasonCode.MISSING_DATA, checks=SHORT, policy=OF_30), "judges runs from 30 steps on: train longer"),
        (unclear(ReasonCode.MISSING_DATA), "misses. If the change leaves it out on purpose: canary bless m 3"),
        (unclear(ReasonCode.TOO_NOISY), "No number of runs up to 20 per side would decide"),
        (decision(question=Question.SESSION, version=None), "No version was registered. The champion stays version 2."),
        (decision(question=Question.SESSION, version=None, champion_before=None), "There is still no champion."),
        (decision(question=Question.COMPARISON, baseline_label="run a", candidate_label="run b"), "Read-only"),
    ],
)  # fmt: skip
def test_next_step_fits_what_happened(made: Decision, expected: str) -> None:
    view = view_of(made)
    assert expected in view.next
    for report in (terminal.render(made), markdown.render(made)):
        assert view.next in " ".join(report.split()).replace("`", "").replace("\\", "")


def test_commands_are_told_from_words() -> None:
    made = decision(verdict(reason="Slow drift, against the anchor (version 1): Step"), model="a `b` c")
    commands = view_of(made).card_to_dict()["commands"]
    assert [command.split(" --")[0] for command in commands] == [
        "canary bless 'a `b` c' 3",
        "canary override 'a `b` c' 3",
    ]


def test_bootstrap_is_never_called_a_pass() -> None:
    made = no_baseline(bootstrapped=True, promoted=True, champion_after="3")
    assert (made.word, made.exit_code) == ("bootstrap", 0)
    assert terminal.render(made).startswith("BOOTSTRAP  m version 3, no champion to compare with\n")
    assert "no PASS" in " ".join(terminal.render(made).split())
    assert json.loads(REPORTS["json"](made))["verdict"]["outcome"] == "INCONCLUSIVE"


@pytest.mark.parametrize(("outcome", "code"), [("PASS", 0), ("BLOCK", 1), ("INCONCLUSIVE", 3)])
def test_exit_codes(outcome: str, code: int) -> None:
    assert decision(verdict(Outcome(outcome))).exit_code == code


def test_comparison_says_what_a_gate_would_say() -> None:
    made = decision(question=Question.COMPARISON, baseline_label="run a", candidate_label="run b")
    assert terminal.render(made).startswith(
        "COMPARISON, a gate would say BLOCK  run b (candidate) against run a (baseline)\n"
    )


def test_differences_beyond_the_first_are_counted() -> None:
    found = tuple(Difference(key=f"package{n:02}", baseline="1", candidate="2") for n in range(40))
    made = decision(verdict(differences=found))
    assert "package05 1 → 2; and 34 more." in " ".join(terminal.render(made).split())
    assert "package39 1 → 2" in terminal.render(made, full=True)
    assert "and 10 more differences, in `verdict.json`" in markdown.render(made)
    assert len(json.loads(REPORTS["json"](made))["verdict"]["differences"]) == 40


def test_what_was_not_judged_is_named() -> None:
    few = tuple(check(f"metric{n}", CheckOutcome.NOT_JUDGED, evidence=None) for n in range(2))
    many = tuple(check(f"metric{n}", CheckOutcome.NOT_JUDGED, evidence=None) for n in range(6))
    assert "not judged  metric0, metric1\n" in terminal.render(decision(verdict(checks=few)))
    assert "metric5" in terminal.render(decision(verdict(checks=many)))
    assert "Not judged: metric5: Metric5 says so." in terminal.render(decision(verdict(checks=many)), full=True)


def test_a_failed_hard_gate_comes_with_its_reason_and_all_obstacles_are_shown() -> None:
    checks = (
        hard("completed"),
        hard("nonfinite", CheckOutcome.BLOCK, "1 of 3 runs: NaN at step 12"),
        hard("workload", CheckOutcome.INCONCLUSIVE, "the workload is not the same"),
        hard("hardware", CheckOutcome.INCONCLUSIVE, "the hardware is not the same"),
    )
    for name in ("text", "markdown"):
        report = REPORTS[name](decision(verdict(checks=checks)))
        assert "1 of 3 runs: NaN at step 12." in report
        assert "The hardware is not the same." in report


def test_names_are_text_not_markup() -> None:
    made = decision(
        verdict(checks=(check("[red]a|b<script>", reason="x|y <b>"),)), model="<script>", version="3", page=""
    )
    assert "[red]a|b<script>" in terminal.render(made)
    lines = [line for line in markdown.render(made).splitlines() if "red" in line]
    assert lines == [
        "### BLOCK v3: \\[red\\]a\\|b&lt;script&gt; is 26 % worse",
        "| **BLOCK** | \\[red\\]a\\|b&lt;script&gt; | 21.4 ms → 26.9 ms | +25.7 % \\[+21.0, +30.5\\] | +15 % | "
        "`··········│···┃·━●━··` |",
    ]
    assert "<script>" not in markdown.render(made)


def test_commands_survive_odd_names() -> None:
    made = decision(model="my model", store="sqlite:////data/my store/mlflow.db")
    report = " ".join(terminal.render(made).split())
    assert "canary bless 'my model' 3" in report
    assert "--tracking-uri 'sqlite:////data/my store/mlflow.db'" in report


def test_a_server_needs_no_ui_command() -> None:
    report = terminal.render(decision(store="http://mlflow.example:5000/"))
    assert "canary ui" not in report
    assert "http://mlflow.example:5000/canary/session/s1 (a server with --app-name canary)" in report
    assert "http://mlflow.example:5000/#/models/m/versions/3" in report


def test_json_is_whole_and_strict() -> None:
    made = decision(verdict(checks=(check(evidence=evidence(p_harm=float("nan"))),)))
    plain = json.loads(REPORTS["json"](made), parse_constant=pytest.fail)
    read = verdict_from_dict(plain["verdict"])
    assert read == replace(made.verdict, checks=(check(evidence=evidence(p_harm=None)),))
    assert (plain["decision"], plain["exit_code"], plain["promoted"]) == ("BLOCK", 1, False)


def test_markdown_is_cut_after_a_line_and_says_so() -> None:
    long = "\n".join(f"| line {n} |" for n in range(1000))
    cut = markdown.fit(long, 500, "report.md")
    assert len(cut) <= 500
    kept = [line for line in cut.splitlines() if line.startswith("|")]
    assert kept == long.splitlines()[: len(kept)]
    assert f"{1000 - len(kept)} more lines: report.md" in cut
    assert markdown.fit("short", 500, "report.md") == "short"


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_colours_only_on_a_terminal_that_wants_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    shown = {}
    for name, stream in (("terminal", Terminal()), ("file", io.StringIO())):
        terminal.show(decision(), stream)
        shown[name] = stream.getvalue()
    monkeypatch.setenv("NO_COLOR", "1")
    terminal.show(decision(), quiet := Terminal())
    assert "\x1b[1;31mBLOCK" in shown["terminal"]
    assert "\x1b" not in shown["file"]
    assert "31m" not in quiet.getvalue()


RECORDED = Path(__file__).resolve().parents[1] / "data" / "verdicts"  # of trained sessions, and one made up


def recorded_decision(name: str, **changes: Any) -> Decision:
    """What a session printed, with the warnings of its watch."""
    found = json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8"))
    warned = tuple(RunWarning(run=one.pop("run"), warning=WatchWarning.from_dict(one)) for one in found.pop("warnings"))
    store, page = "sqlite:////home/you/canary-mlflow/mlflow.db", "/#/models/dpo-tiny-neox-preferences-smoke/versions/5"
    return replace(decision_from_dict(found), warnings=warned, **{"store": store, "page": page, **changes})


CLOCKS = "clock not usable: 4 of 6 runs contended (baseline seeds 0, 1; candidate seeds 0, 2: one ran a fixed kernel)"
COST = "50 % of the candidate's time went by between its steps, 0 % of the baseline's: " + UNCOUNTED
POLICY = "policy changed since version 3 was judged: margin of step_cost 10 % → 50 %"
CHANGED = tuple(
    Difference(key=f"train.some_long_setting_{n}", baseline="0.0002", candidate="0.002", group="configuration")
    for n in range(9)
)


@pytest.mark.parametrize("name", ["pass", "pass_much", "block_learned", "block_nan", "unclear_harm"])
@pytest.mark.parametrize("changes", [(), CHANGED], ids=["nothing", "much"])
@pytest.mark.parametrize(
    "notes", [(), (CLOCKS,), (COST, CLOCKS), (POLICY,)], ids=["quiet", "contended", "a cost", "a policy"]
)
def test_a_short_report_hides_neither_the_verdict_nor_its_reason_nor_what_to_do(
    name: str, changes: Any, notes: Any
) -> None:
    """Of recorded sessions at 100 columns: few lines, however much there is to tell. A cost that nothing else tells of
    is said, and so is another policy than the champion's."""
    made = recorded_decision(name)
    judged = replace(made.verdict, differences=changes or made.verdict.differences, notes=(*made.verdict.notes, *notes))
    lines = terminal.render(replace(made, verdict=judged), width=100).splitlines()
    said = " ".join(" ".join(lines).split())
    assert len(lines) <= 32, "\n".join(lines)
    assert lines[0].startswith(made.word)
    assert judged.reason.rstrip(".").lower() in said.lower()
    assert " ".join(view_of(replace(made, verdict=judged)).next.split()) in said
    assert any(line.startswith("  Changed: ") for line in lines[1:9])
    assert COST not in notes or "time went by between its steps" in said
    assert POLICY not in notes or "margin of step_cost 10 % → 50 %" in said
    assert CLOCKS not in notes or "clock not usable: 4 of 6 runs contended" in said


def test_metrics_without_a_row_are_named() -> None:
    checks = tuple(check(f"metric{n}", CheckOutcome.BLOCK if n < 7 else CheckOutcome.PASS) for n in range(9))
    said = " ".join(terminal.render(decision(verdict(checks=checks))).split())
    assert "metrics BLOCK: metric6; ok: metric7, metric8" in said


def test_one_cause_is_one_line_and_runs_are_called_by_their_seeds() -> None:
    """Twelve warnings of three seeds, of two causes; no ids of runs in 32 digits but the session's."""
    made = recorded_decision("block_nan")
    said = terminal.render(made, width=200)
    assert "seeds 0, 1, 2: STOP loss, entropy from step 21: is nan." in said
    assert said.count("STOP") == 2
    assert said.count("usually") == 0
    full = terminal.render(made, width=200, full=True)
    assert full.count("Usually: an overflow or a division by zero") == 1
    for report in (said, full, markdown.render(made)):
        assert set(re.findall("[0-9a-f]{32}", report)) <= {made.session_id}


def test_hard_gates_that_block_stand_above_the_figures() -> None:
    said = terminal.render(recorded_decision("block_nan"), width=100, full=True)
    assert said.index("BLOCK watch: ") < said.index("metric  ")
    assert terminal.render(recorded_decision("block_nan"), width=100).index("BLOCK not learned: ") < said.index(
        "metric  "
    )


def test_what_a_short_report_leaves_out_is_there_with_full() -> None:
    made = recorded_decision("pass")
    short, full = terminal.render(made), terminal.render(made, full=True)
    assert f"canary report {made.session_id} --full" in short
    for metric in (check.metric for check in made.verdict.checks):
        assert metric in full


@pytest.mark.parametrize("name", REPORTS)
def test_what_changed_is_the_second_paragraph_everywhere(name: str) -> None:
    found = (Difference(key="train.learning_rate", baseline="0.002", candidate="0.02", group="configuration"),)
    report = REPORTS[name](decision(verdict(differences=found, compared=("configuration", "code"))))
    if name == "json":
        assert json.loads(report)["changed"].startswith("Changed: train.learning_rate 0.002 → 0.02.")
    else:
        assert report.index("limit +15 %") < report.index("Changed: train.learning_rate 0.002 → 0.02.")
        assert report.index("Changed: ") < report.lower().index("next")
    assert "Missing on one or both sides: facts, packages, data, hardware." in " ".join(report.split())


@pytest.mark.parametrize("name", REPORTS)
def test_what_differs_exactly_stands_first_and_is_linked_to_what_changed(name: str) -> None:
    found = (
        Difference(
            key="first.loss.1", baseline="0.6931", candidate="2.7726", group="facts", seeds=(0, 1), decides=True
        ),
        Difference(key="first.loss.2", baseline="0.69", candidate="0.690001", group="facts", seeds=(0,), rounding=True),
        Difference(key="git", baseline="a", candidate="b", group="code"),
        Difference(key="transformers", baseline="4.47.1", candidate="4.48.1", group="packages"),
    )
    report = REPORTS[name](decision(verdict(differences=found, compared=("facts", "code", "packages"))))
    moved = "transformers 4.47.1 → 4.48.1."
    exact = f"Differs exactly: first loss 0.6931 → 2.773 (4 times) in seeds 0, 1. May come from: {moved}"
    said = json.loads(report)["exact"] if name == "json" else " ".join(report.split())
    assert exact in said
    assert name == "json" or said.index(exact) < said.index(f"Changed: git a → b; {moved}")


@pytest.mark.parametrize(
    ("compared", "said"),
    [
        (
            ("facts", "configuration", "code", "packages", "data", "hardware", "workload"),
            "Changed: nothing that is recorded (facts, conf",
        ),
        ((), "Changed: unknown, the runs of both sides do not say what they were made with."),
    ],
)
def test_no_difference_is_said_of_what_was_compared_alone(compared: tuple[str, ...], said: str) -> None:
    report = " ".join(terminal.render(decision(verdict(compared=compared))).split())
    assert said in report
    assert "none" not in report


@pytest.mark.parametrize("name", REPORTS)
@pytest.mark.parametrize("common", [0, 30, 100])
def test_long_values_are_cut_to_where_they_differ(name: str, common: int) -> None:
    before, now = (f"{'template ' * 20}"[:common] + end + " and so on" * 9 for end in ("ends with A", "ends with B"))
    found = (Difference(key="chat_template", baseline=before, candidate=now, group="configuration"),)
    report = " ".join(REPORTS[name](decision(verdict(differences=found, compared=("configuration",)))).split())
    left, right = report.partition("chat_template ")[2].partition(" and so on;")[0].split(" → ")[:2]
    assert "ends with A" in left
    assert "ends with B" in right
    assert max(len(left), len(right.partition(". ")[0])) <= 45 or name != "text"


@pytest.mark.parametrize("name", REPORTS)
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"change": -0.142, "change_low": -0.16, "change_high": -0.12}, "step_time -14.2 % [-16.0, -12.0]."),
        ({"change": 0.12, "change_low": 0.09, "change_high": 0.15, "margin": -0.1}, "step_time +12 % [+9.0, +15.0]."),
        ({"change": -0.142, "change_low": -0.3, "change_high": 0.01}, ""),  # may be none
        ({"change": -0.02, "change_low": -0.03, "change_high": -0.01}, ""),  # too little to speak of
        ({"change": 0.0, "identical": True, "change_low": None, "change_high": None}, ""),
        ({"change": -0.142, "change_low": -0.16, "change_high": -0.12, "role": Role.ADVISORY}, ""),
    ],
)
def test_a_pass_says_what_got_clearly_better(name: str, changes: dict[str, Any], said: str) -> None:
    role = changes.get("role", Role.GATE)
    found = evidence(**{key: value for key, value in changes.items() if key != "role"})
    judged = verdict(
        Outcome.PASS,
        ReasonCode.PASS,
        reason="No worse than the baseline.",
        checks=(hard("completed"), check(outcome=CheckOutcome.PASS, evidence=found, role=role)),
    )
    report = " ".join(REPORTS[name](decision(judged)).split())
    if name == "json":
        report = json.loads(REPORTS[name](decision(judged)))["card"]["reason"]
    assert ("Better than the baseline: " in report) is bool(said)
    assert said in report.replace("\\", "")


def test_the_advice_names_the_noise_that_it_is() -> None:
    def said(*metrics: str) -> str:
        checks = [
            check(metric, CheckOutcome.INCONCLUSIVE, reason_code=ReasonCode.TOO_NOISY, evidence=None)
            for metric in metrics
        ]
        made = unclear(ReasonCode.TOO_NOISY, checks=tuple(checks))
        return " ".join(terminal.render(made).split()) + " ".join(
            terminal.render(replace(made, question=Question.FILES)).split()
        )

    assert said("step_time").count("look at the noise on th") == 2
    assert (
        said("eval_loss").count("seeds alone differ that much in eval_loss: look at longer runs or more held-out") == 2
    )
    assert "noise on" not in said("eval_loss")
    assert said("eval_loss", "step_cost").count("held-out data, and at the noise on th") == 2


def clear_harm(**changes: Any) -> Check:
    found = evidence(unit="", baseline=0.43, candidate=2.03, change=3.71, change_low=1.02, change_high=9.96, margin=0.1)
    advice = changes.get("role") is Role.ADVISORY
    outcome = CheckOutcome.NOT_JUDGED if advice else CheckOutcome.INCONCLUSIVE
    return check("eval_loss", outcome, evidence=found, **changes)


@pytest.mark.parametrize("more", [None, 5])
@pytest.mark.parametrize("role", [Role.GATE, Role.ADVISORY])
def test_clear_harm_is_never_called_unknown(more: int | None, role: Role) -> None:
    made = clear_harm(reason_code=ReasonCode.TOO_NOISY, more_runs=more, role=role)
    said = " ".join(
        terminal.render(
            decision(verdict(Outcome.INCONCLUSIVE, ReasonCode.TOO_NOISY, checks=(made,))), full=True
        ).split()
    )
    assert "harm beyond the limit, over the whole range; " in said
    assert ("Worse beyond the limit: eval_loss; look at what changed" in said) is (role is Role.GATE)
    for unknown in ("too noisy", "cannot tell", "both possible", "unclear", "not judged"):
        assert unknown not in said
