"""Requests made up from the server's own OpenAPI, right ones and wrong ones, by schemathesis."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance

# Names that fit the document may still hold characters that cannot be printed, which OpenAPI has no words for.
UNDECIDED = [positive_data_acceptance]


def fuzz(schema: Any, examples: int) -> dict[str, int]:
    """Call every operation `examples` times with data that fit the schema, and as often with data that do not.

    Every answer must be one that the document knows, with the body that it describes, and no 5xx. Returns how many
    requests each operation got.
    """
    sent: dict[str, int] = {}
    for found in schema.get_all_operations():
        operation = found.ok()
        takes = bool(operation.body) or bool(operation.query)  # with nothing to send, nothing can be wrong
        for mode in (GenerationMode.POSITIVE, *([GenerationMode.NEGATIVE] if takes else [])):
            call(operation, mode, examples, sent)
    return sent


def call(operation: Any, mode: GenerationMode, examples: int, sent: dict[str, int]) -> None:
    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=mode))
    def one(case: Any) -> None:
        sent[operation.label] = sent.get(operation.label, 0) + 1
        response = case.call_and_validate(excluded_checks=UNDECIDED)
        assert response.status_code < 500, response.text
        assert "Traceback" not in response.text

    one()
