"""The verdict as JUnit XML, for CI systems: one case per check; what could not be judged is skipped with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from canary_mlflow.gates.model.verdict import Check, CheckOutcome
from canary_mlflow.reports.formatting import sentence
from canary_mlflow.reports.rows import WORDS, Row
from canary_mlflow.reports.study import Study
from canary_mlflow.reports.view import view_of
from canary_mlflow.shown import shown, visible

if TYPE_CHECKING:
    from junitparser import TestCase

UNDECIDED = (CheckOutcome.INCONCLUSIVE, CheckOutcome.NOT_JUDGED)


def render(study: Study) -> str:
    """The whole file."""
    from junitparser import JUnitXml, TestSuite

    study = shown(study)
    suite = TestSuite(clean(study.subject))
    for case in cases(study):
        suite.add_testcase(case)
    whole = JUnitXml("canary")
    whole.add_testsuite(suite)
    whole.update_statistics()
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{whole.tostring().decode()}\n'


def cases(study: Study) -> Iterator[TestCase]:
    """One case for each check; if nothing was checked, one that says so: an empty suite would read as a success."""
    from junitparser import Skipped, TestCase

    view = None if study.decision is None else view_of(study.decision)
    if study.decision is None or view is None or not study.decision.verdict.checks:
        case = TestCase("verdict", "canary")
        case.result = [Skipped(clean(study.no_verdict or (view.reason if view else "")))]
        yield case
        return
    rows = {row.metric: row for row in view.rows}
    for check in study.decision.verdict.checks:
        yield case_of(check, rows.get(check.metric))


def case_of(check: Check, row: Row | None) -> TestCase:
    """One check: BLOCK is a failure, undecided is skipped, a warning passes and says so."""
    from junitparser import Failure, Skipped, TestCase

    case = TestCase(clean(check.metric), f"canary.{check.role}")
    said = clean(sentence(check.reason))
    if check.outcome is CheckOutcome.BLOCK:
        case.result = [Failure(said, str(check.reason_code or "BLOCK"))]
    elif check.outcome in UNDECIDED:
        case.result = [Skipped(said)]
    figures = "" if row is None else f"{row.baseline} → {row.candidate}, {row.change} {row.range}, limit {row.limit}\n"
    case.system_out = clean(f"{WORDS[check.outcome]}: {said}\n{figures}")
    return case


def clean(text: str) -> str:
    """Text without the control characters that XML 1.0 does not allow."""
    return visible(text, keep="\t\n")
