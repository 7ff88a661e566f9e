"""The watch over a history that was read from a file, as if it were going on now."""

from __future__ import annotations

import numpy as np

from canary_mlflow.files.history import History
from canary_mlflow.gates.model.paradigm import recorded_paradigm
from canary_mlflow.gates.watch import Watch, WatchPolicy
from canary_mlflow.policies import load_watch

REWARDS = ("reward_mean", "score_mean")
LEARNING = ("loss", "policy_loss", "reward_margin", *REWARDS)  # one of them, to call a run healthy
_OFTEN = 0.1  # share of the rows


def watch_over(history: History, policy: WatchPolicy, algo: str) -> Watch:
    """The watch after all rows. `algo`: sft, dpo, grpo …; "" to tell it from the streams."""
    watch = Watch(policy, algo=algo, max_steps=history.max_steps)
    for step, row in history.rows():
        watch.observe(step, row)
    # A checkpoint's trainer_state.json is the beginning of a run: that it learned nothing yet is not a finding. Nor is
    # it in the rest of a run.
    watch.finish(history.completed and not history.goes_on)
    return watch


def algo_of(history: History) -> str:
    """The algorithm that the file names. Without a name: a policy gradient, where nothing but the loss tells and it is
    often below 0, as no likelihood is; else "", for the watch to tell it from the streams."""
    loss = history.series.get("loss")
    if history.algo or loss is None or recorded_paradigm(history.series) is not None:
        return history.algo
    return "reinforce" if np.mean(loss.values < 0) > _OFTEN else ""


def rows_that_tell(history: History, watch: Watch) -> int:
    """Rows with the loss, the reward or the margin that most of them have: rows of evaluations say nothing of how the
    training went. All rows if there is none of these."""
    return max((len(history.series[name].values) for name in LEARNING if name in history.series), default=watch.rows)


def critical_held(history: History, algo: str) -> str | None:
    """What the shipped watch would have held against the run, in one clause; "" for nothing, None if it has too few
    rows to tell, or none that the watch looks at. `algo`: "" for what the file says."""
    watch = watch_over(history, load_watch(), algo or algo_of(history))
    enough = rows_that_tell(history, watch) >= watch.policy.rows.burn_in_least
    return watch.critical_held if watch.watched and (enough or watch.critical_held) else None
