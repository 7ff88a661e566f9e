"""NeMo Evaluator: a bundle eval-*.json beside results.jsonl, which has a row per problem and repeat."""

from __future__ import annotations

from canary_mlflow.errors import UsageError
from canary_mlflow.evals.drafts import Contents, Draft, GroupOf, facts
from canary_mlflow.evals.files import EvalFile, at, digest

FACTS = ("temperature", "top_p", "max_tokens", "system_prompt", "max_problems", "repeats")
HARNESS = ("infra_error", "system")
"""Categories of errors that are not the model's."""
ROWS = "results.jsonl"


def read(file: EvalFile, group_of: GroupOf) -> Contents | None:
    """The benchmark of one bundle."""
    name, config = at(file.value, "benchmark.name"), file.value.get("config")
    if not isinstance(name, str) or not isinstance(config, dict):
        return None
    if (results := file.beside(ROWS)) is None:
        raise UsageError(f"{file.path}: no {ROWS} beside it; expected the score of each problem; copy both")
    draft = Draft(name, name, results.path, group_of(name), run=str(file.value.get("run_id", "")))
    draft.facts = facts({key: config.get(key) for key in FACTS})
    for row in results.rows():
        harness = at(row, "scoring_details.error_category") in HARNESS
        asked, said = row.get("prompt"), row.get("extracted_answer") or row.get("model_response")
        draft.add(
            str(row.get("problem_idx")),
            None if harness else row.get("reward"),
            row,
            prompt=digest(asked, row.get("expected_answer")),
            answer=digest(row.get("model_response") or said) if said else "",
            asked=asked,
            said=said,
        )
    return Contents([draft.table()], [file, results])
