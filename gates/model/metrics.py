"""The one table of metrics: name, label, unit, the direction that is worse, the scale that fits, and special traits.

Recorder, policies, watch, pages, imports and reports read it. What trainers call a metric:
tracking/describing/schema.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A series of a run, one value per optimizer step.

    `worse` is higher, lower or both. `scale` is log for quantities above zero, identity for those of any sign.
    `group`: perf, stability or quality, the sections of MLflow's UI; "" for a metric of the user's own.

    Traits:
    repeatable     follows from seed, code and data alone: bit-equal series prove that nothing changed
    may_be_signed  positive as a rule: judged on the log scale, or on the identity scale if values are not positive
    share          lies between 0 and 1
    of_iterations  measured once per iteration, not per step
    clock          read from a clock at every step, to the nanosecond: no two runs agree at every step
    wall_clock     follows wall-clock time, which other processes can stretch
    speed          its level follows the machine's speed; its tails and drifts are ratios within a run and do not
    never_nan      a NaN is a fault; an explained variance or a spread may be undefined in a healthy run
    training_loss  what the optimizer minimizes
    reward         what the training is rewarded for
    least          a rise by no more than this, in the metric's unit, is within every limit
    ranks          how the ranks' values become one: "largest" (a step is as slow as its slowest rank), "sum", or "" for
                   the first rank's
    """

    name: str
    label: str
    unit: str = ""
    worse: str
    scale: str
    group: str = ""
    repeatable: bool = True
    may_be_signed: bool = False
    share: bool = False
    of_iterations: bool = False
    clock: bool = False
    wall_clock: bool = False
    speed: bool = False
    never_nan: bool = False
    training_loss: bool = False
    reward: bool = False
    least: float = 0.0
    ranks: str = ""


def _perf(name: str, unit: str, **given: Any) -> Metric:
    values = {"label": name.replace("_", " "), "worse": "higher", "scale": "log", "repeatable": False, **given}
    return Metric(name=name, unit=unit, group="perf", **values)


def _time(name: str, **given: Any) -> Metric:
    return _perf(name, "s", ranks="largest", **given)


def _stability(name: str, worse: str, scale: str, **given: Any) -> Metric:
    values = {"label": name.replace("_", " "), "group": "stability", **given}
    return Metric(name=name, worse=worse, scale=scale, **values)


def _share(name: str, worse: str, **given: Any) -> Metric:
    return _stability(name, worse, "identity", share=True, **given)


def _quality(name: str, label: str, worse: str, scale: str = "identity", **given: Any) -> Metric:
    return _stability(name, worse, scale, label=label, group="quality", **given)


LAYER_GROUPS = ("embeddings", "early", "middle", "late", "head")
"""Where in a model a gradient belongs: its embeddings, its first layers, and so on to what follows the last."""

_TABLE = (
    # Time, end to end and on the CPU.
    _time("step_time", clock=True, wall_clock=True, speed=True),
    _time("step_cpu_time", label="step CPU time", clock=True, speed=True),
    _perf("step_cost", "kernels", speed=True),
    _perf("sentinel_time", "s", label="sentinel kernel"),
    _time("iteration_time", clock=True, wall_clock=True, speed=True, of_iterations=True),
    _time("iteration_cpu_time", label="iteration CPU time", clock=True, speed=True, of_iterations=True),
    _perf("iteration_cost", "kernels", speed=True, of_iterations=True),
    # What a step's time went into. compute_time excludes data_wait; the others are parts of compute_time, except in
    # our PPO, where they are parts of iteration_time.
    _time("compute_time"),
    _time("data_wait", scale="identity"),
    _time("step_wait", scale="identity"),
    # The CPU's. A package's first use takes a quarter of a second more or less from one release to the next; a few
    # checkpoints of a small model take half a second.
    _perf("setup_time", "s", label="CPU time before the first step", speed=True, least=0.5),
    _perf("outside_time", "s", label="CPU time between steps", speed=True, least=1.0),
    _perf("pause_time", "s", scale="identity"),  # between the steps: no part of a step's time
    _time("time_forward"),
    _time("time_backward"),
    _time("time_optimizer"),
    _time("time_generate"),
    _time("time_reward"),
    _time("time_reference"),
    _perf("time_score", "s"),
    _perf("time_update", "s"),
    # Work.
    _perf("tokens", "tokens", label="tokens per step", worse="both", repeatable=True, ranks="sum"),
    _perf("tokens_prompt", "tokens", worse="both", repeatable=True),
    _perf("tokens_response", "tokens", worse="both", repeatable=True),
    _perf("tokens_per_second", "tokens/s", worse="lower", wall_clock=True, speed=True),
    _perf("samples_per_second", "samples/s", worse="lower", wall_clock=True, speed=True),
    # Memory: the GPU's allocator where there is one, else the process.
    _perf("peak_memory", "MiB", ranks="largest"),
    _perf("reserved_memory", "MiB", ranks="largest"),
    _perf("allocated_memory", "MiB", ranks="largest"),
    _perf("host_memory", "MiB", ranks="largest"),
    _perf("memory_growth", "MiB/step", scale="identity", ranks="largest"),
    # What NVIDIA's driver says about the device, whoever uses it.
    _perf("gpu_utilization", "%", worse="lower", scale="identity"),
    _perf("gpu_memory", "MiB"),
    _perf("gpu_power", "W", worse="both"),
    _perf("gpu_clock", "MHz", worse="lower"),
    # Every algorithm.
    _stability("loss", "higher", "log", may_be_signed=True, never_nan=True, training_loss=True),
    _stability("grad_norm", "both", "log", label="gradient norm", never_nan=True),
    *(_stability(f"grad_norm_{where}", "both", "log", label=f"gradient norm, {where}") for where in LAYER_GROUPS),
    _share("clipped", "higher"),
    _stability("learning_rate", "both", "log"),
    _stability("entropy", "both", "log"),
    _stability("nonfinite", "higher", "identity", label="non-finite values", unit="values", ranks="sum"),
    # Learning from answers: PPO, GRPO, RLOO.
    _stability("kl", "both", "log", label="KL", never_nan=True),
    _stability("kl_coef", "both", "log", label="KL coefficient"),
    _stability("kl_target_error", "both", "identity", label="KL-target error"),
    _stability("approx_kl", "higher", "identity", label="approximate KL"),
    _share("clip_fraction", "higher"),
    _share("value_clip_fraction", "higher"),
    _stability("policy_loss", "higher", "log", may_be_signed=True, never_nan=True, training_loss=True),
    _stability("value_loss", "higher", "log", may_be_signed=True, never_nan=True),
    _stability("explained_variance", "lower", "identity"),
    _stability("reward_mean", "lower", "identity", label="mean reward", reward=True),
    _stability("reward_std", "both", "identity", label="reward spread"),
    _stability("score_mean", "lower", "identity", label="mean score", reward=True),
    _stability("score_std", "both", "identity", label="score spread"),
    _stability("advantage_mean", "both", "identity", label="mean advantage"),
    _stability("advantage_std", "both", "identity", label="advantage spread"),
    _stability("response_length", "both", "log", unit="tokens"),
    _share("truncated_share", "higher"),
    _share("zero_spread_share", "higher"),
    _share("repetition", "higher"),
    _share("empty_share", "higher"),
    _stability("ratio", "both", "log", label="probability ratio"),
    _stability("sampling_mismatch", "both", "identity", unit="nats"),
    _stability("first_kl_max_abs", "higher", "identity", label="largest first-update KL"),
    # Learning from pairs: DPO, KTO, Reward.
    _stability("chosen_reward", "both", "identity"),
    _stability("rejected_reward", "both", "identity"),
    _stability("reward_margin", "lower", "identity"),
    _share("reward_accuracy", "lower"),
    _stability("chosen_logp", "both", "identity", label="chosen log-probability"),
    _stability("rejected_logp", "both", "identity", label="rejected log-probability"),
    _stability("implied_kl", "both", "identity", label="implied KL"),
    # On held-out data.
    _quality("eval_loss", "evaluation loss", "higher", "log", may_be_signed=True, never_nan=True),
    _quality("eval_accuracy", "evaluation accuracy", "lower", share=True),
    _quality("eval_margin", "evaluation reward margin", "lower"),
    _quality("eval_reward", "evaluation reward", "lower", reward=True, never_nan=True),
)
METRICS = {metric.name: metric for metric in _TABLE}
_LEVEL = {"weight": 6.0, "must_have": True}  # of the machine's speed: the first that users ask about
_LEARNED = {"prior": 0.015, "weight": 2.0}
_REWARDED = {"prior": 0.3, "weight": 2.0}
USUAL: Mapping[str, Mapping[str, Any]] = {
    "step_time": {"prior": 0.02, **_LEVEL},
    "step_time_tail": {"metric": "step_time", "reduction": "tail_excess", "prior": 0.01},
    "step_time_drift": {"metric": "step_time", "reduction": "drift", "prior": 0.03},
    "run_time": {"metric": "step_time", "reduction": "steady", "prior": 0.05},
    "total_time": {"metric": "step_time", "reduction": "whole", "prior": 0.05},
    "step_cost": {"prior": 0.04, **_LEVEL},
    "step_cost_growth": {"metric": "step_cost", "reduction": "drift", "prior": 0.03},
    "run_cost": {"metric": "step_cost", "reduction": "steady", "prior": 0.05},
    "token_cost": {"metric": "step_cost", "reduction": "per_token", "prior": 0.04, "weight": 6.0},
    **{name: {"reduction": "sum", "prior": 0.1, "weight": 0.5} for name in ("setup_time", "outside_time")},
    "tokens_per_second": {"reduction": "rate", "prior": 0.02, "weight": 6.0},
    "samples_per_second": {"prior": 0.02, "weight": 6.0},
    "step_cpu_time": {"prior": 0.05, "must_have": True},
    "iteration_time": {"prior": 0.02, **_LEVEL},
    "iteration_cpu_time": {"prior": 0.05, "must_have": True},
    "iteration_cost": {"prior": 0.04, **_LEVEL},
    "peak_memory": {"reduction": "max", "prior": 0.005, "headroom": 0.5},
    "host_memory": {"reduction": "max", "prior": 0.02},
    "memory_growth": {"metric": "peak_memory", "reduction": "drift", "prior": 0.004},
    "eval_loss": {"reduction": "last", **_LEARNED},
    "eval_accuracy": {"reduction": "last", "prior": 0.03},
    "eval_margin": {"reduction": "last", "prior": 0.05},
    "eval_reward": {"reduction": "last", **_REWARDED},
    "loss": {"reduction": "tail_area", **_LEARNED},
    "reward_mean": {"reduction": "tail_mean", **_REWARDED},
    "score_mean": {"reduction": "tail_mean", **_REWARDED},
    "grad_norm": {"prior": 0.05},
    "entropy": {"reduction": "tail_mean", "prior": 0.05},
    "kl": {"reduction": "tail_mean", "prior": 0.05},
    "clip_fraction": {"reduction": "mean", "prior": 0.02},
    "response_length": {"reduction": "tail_mean", "prior": 0.1},
}
"""How a policy's rule of this name judges, unless the rule says otherwise: its metric, if that has another name, how a
series becomes one number, the spread of that to expect between equal runs, and what else a rule may state."""
MEANING = "canary_mlflow."
"""How the key of a run's environment begins that says what one of its metrics means."""
MEANINGS: Mapping[str, str] = {
    f"{MEANING}peak_memory": "counts an evaluation after the training",
    **dict.fromkeys(
        (f"{MEANING}{cost}" for cost in ("step_cost", "iteration_cost", "sentinel_time")), "counts warm kernels"
    ),
}
"""What runs record of metrics that meant something else in earlier versions of this package. Two sides on which such a
metric means different things are not compared by it: unchanged code would block."""
RECORDINGS = ("recorded", "early", "new", "absent")
"""What a policy's overlays may ask of a metric: see gates.model.sides.conditions."""


def label(name: str) -> str:
    """The display name of a metric, a rule or a series."""
    return METRICS[name].label if name in METRICS else name.replace("_", " ")


def metrics_with(trait: str) -> tuple[str, ...]:
    """The names of the metrics that have this trait, in the table's order."""
    return tuple(metric.name for metric in _TABLE if getattr(metric, trait))
