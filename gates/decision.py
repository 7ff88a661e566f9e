"""From all checks to the answer: BLOCK, PASS or INCONCLUSIVE, with its code and its sentence."""

from __future__ import annotations

from collections.abc import Sequence

from gates.facts.check import alone
from gates.facts.exact import FACTS
from gates.model.policy import Policy
from gates.model.rules import Role
from gates.model.verdict import Check, CheckOutcome, Outcome, ReasonCode
from gates.model.wording import listed, sentence_case


def decide(policy: Policy, checks: Sequence[Check]) -> tuple[Outcome, ReasonCode, str]:
    """BLOCK if anything blocks; PASS if everything that decides passed and something was judged; else INCONCLUSIVE."""
    deciding = [check for check in checks if check.role in (Role.HARD, Role.GATE, Role.GUARD)]
    blocking = [check for check in deciding if check.outcome is CheckOutcome.BLOCK]
    if blocking:
        return Outcome.BLOCK, _code(blocking[0]), _sentence(blocking)
    missing = [check for check in checks if check.outcome is CheckOutcome.INCONCLUSIVE]
    if missing:
        missing.sort(key=lambda check: list(ReasonCode).index(_code(check)))
        return Outcome.INCONCLUSIVE, _code(missing[0]), _sentence(missing)
    passed = [check.metric for check in deciding if check.role is Role.GATE and check.outcome is CheckOutcome.PASS]
    if alone(policy) and any(check.metric == FACTS for check in deciding):
        return Outcome.PASS, ReasonCode.PASS, "Every exact fact is equal, or differs by rounding alone."
    if not passed:
        return Outcome.INCONCLUSIVE, ReasonCode.MISSING_DATA, "No gate metric could be judged."
    judged = f"No worse than the baseline, within every limit: {', '.join(passed)}."
    if warned := [check.metric for check in checks if check.outcome is CheckOutcome.WARN]:
        judged += f" Beyond a limit that only warns: {', '.join(warned)}."
    return Outcome.PASS, ReasonCode.PASS, judged


def _code(check: Check) -> ReasonCode:
    assert check.reason_code, f"{check.metric}: a deciding check without a reason code"
    return check.reason_code


def _sentence(checks: Sequence[Check]) -> str:
    first = checks[0]
    named = f"{first.metric}: " if first.reason_code in (ReasonCode.HARD_GATE, ReasonCode.FAILS_ALIKE) else ""
    also = f"; also {listed([check.metric for check in checks[1:]])}" if len(checks) > 1 else ""
    return sentence_case(f"{named}{first.reason}{also}.")
