"""verl's rows in our names and units: one row per training iteration.

Its names stand in metric_utils.py and ray_trainer.py of verl/trainer/ppo, dp_actor.py and dp_critic.py of verl/workers,
the shape of its file, {"step": 1, "data": {"actor/pg_loss": …}}, in verl/utils/tracking.py, all of
https://github.com/volcengine/verl. The table is in canary_mlflow/files/names.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from canary_mlflow.files.names import VERL, VERL_SUMS

MARKS = ("actor/", "critic/", "timing_s/")
# One held-out score per data source and number of tries; with several of them nobody knows which one counts.
_SCORE = re.compile(r"val-core/.+/reward/mean@\d+")


def is_verl(row: Mapping[str, Any]) -> bool:
    """Whether the row is one of verl's, as its file or its TensorBoard writer has it."""
    return isinstance(row.get("data"), Mapping) or any(key.startswith(MARKS) for key in row)


def translate(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with the step beside the metrics, ours by our names and in our units; the rest as it is."""
    data = row.get("data")
    flat = {"step": row.get("step"), **data} if isinstance(data, Mapping) else dict(row)
    numbers = {key: float(value) for key, value in flat.items() if _is_number(value)}
    found = dict(flat)
    for theirs, (ours, factor) in VERL.items():
        if theirs in numbers:
            found.pop(theirs)
            found[ours] = numbers[theirs] * factor
    for ours, parts in VERL_SUMS.items():
        present = [numbers[part] for part in parts if part in numbers]
        if present:
            found[ours] = sum(present)
    return {**found, **_derived(numbers)}


def _derived(numbers: Mapping[str, float]) -> dict[str, float]:
    """What verl logs in another unit than ours, computed from two of its numbers."""
    derived: dict[str, float] = {}
    length, kl = numbers.get("response_length/mean"), numbers.get("actor/kl_loss")
    if length is not None and kl is not None:
        # Theirs is a mean over tokens (loss_agg_mode token-mean, the default), ours is summed over a response.
        derived["kl"] = kl * length
    tokens, seconds = numbers.get("perf/total_num_tokens"), numbers.get("timing_s/step")
    if tokens is not None and seconds:
        derived["tokens_per_second"] = tokens / seconds  # perf/throughput is per GPU
    if seconds is not None:
        # Its step is the iteration, so that it is both.
        derived |= {"step_time": seconds, "iteration_time": seconds}
    scores = [value for key, value in numbers.items() if _SCORE.fullmatch(key)]
    if len(scores) == 1:
        derived["eval_reward"] = scores[0]
    return derived


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
