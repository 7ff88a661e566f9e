"""What follows from a run's numbers and names: how it learns, from examples, where the loss tells how well it does, or
from rewards, where it does not; and what a step waits for, which says by which clock it is judged."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum

import numpy as np

from canary_mlflow.gates.model.records import Run


class Paradigm(StrEnum):
    """How a training learns, and so what its loss tells. An RL loss is scaled by its own advantages: it rose in half of
    the healthy public GRPO histories seen."""

    SUPERVISED = "supervised"
    REINFORCEMENT = "reinforcement"


# A trainer's name begins or ends with one of them: papers and releases make ever new ones of these, such as Dr. GRPO,
# REINFORCE++ and recurrent PPO. The first three compare answers that they draw themselves, so their loss stays near
# ln 2 however well they learn.
_REINFORCEMENT = (
    "onlinedpo", "xpo", "nashmd", "grpo", "ppo", "rloo", "dapo", "vapo", "gspo", "gmpo", "cispo", "sapo", "remax",
    "reinforce", "policygradient", "a2c", "a3c", "sac", "td3", "ddpg", "dqn",
)  # fmt: skip
_SUPERVISED = ("sft", "dpo", "kto", "orpo", "cpo", "simpo", "gkd", "reward")
# Too short, or no kind of what it ends with: the metrics tell what SDPO, GDPO and DDPO are, which learn from rewards.
_WHOLE: dict[str, Paradigm | None] = {
    "rm": Paradigm.SUPERVISED, "sppo": Paradigm.SUPERVISED, "sdpo": None, "gdpo": None, "ddpo": None
}  # fmt: skip
_OF_PREFERENCES = frozenset({"chosen_reward", "rejected_reward", "reward_margin", "eval_margin"})
_OF_REWARDS = frozenset({"reward_mean", "reward_std", "score_mean", "advantage_mean", "response_length"})
_OF_POLICY_GRADIENTS = frozenset({"policy_loss", "clip_fraction", "approx_kl", "advantage_mean", "reward_std"})


def is_policy_gradient(metrics: Collection[str]) -> bool:
    """Whether the metrics are ones that nothing but a policy gradient has."""
    return not _OF_POLICY_GRADIENTS.isdisjoint(metrics)


def paradigm_of(algo: str, metrics: Collection[str]) -> Paradigm:
    """The paradigm by the algorithm's name, else by the recorded metrics; SUPERVISED if neither tells."""
    return named_paradigm(algo) or recorded_paradigm(metrics) or Paradigm.SUPERVISED


def named_paradigm(algo: str) -> Paradigm | None:
    """The paradigm by the algorithm's name; None if the name is unknown."""
    name = "".join(filter(str.isalnum, algo.lower()))
    if name in _WHOLE:
        return _WHOLE[name]
    for stems, paradigm in ((_REINFORCEMENT, Paradigm.REINFORCEMENT), (_SUPERVISED, Paradigm.SUPERVISED)):
        if name.startswith(stems) or name.endswith(stems):
            return paradigm
    return None


def recorded_paradigm(metrics: Collection[str]) -> Paradigm | None:
    """The paradigm by the metrics: by the marks of a policy gradient, or by rewards; None if nothing tells. A KL alone
    is no such mark: distillation has one. A reward model's training has a mean reward too, but only learning from
    preferences has metrics that set the preferred answer apart. An accuracy tells nothing: classifiers have one, and
    beside rewards it may be that of the answers."""
    if is_policy_gradient(metrics):
        return Paradigm.REINFORCEMENT
    if not _OF_PREFERENCES.isdisjoint(metrics):
        return Paradigm.SUPERVISED
    return None if _OF_REWARDS.isdisjoint(metrics) else Paradigm.REINFORCEMENT


IDLE = 50.0
"""GPU utilization in %: below it the GPU waits for the host most of the time. Trainings of a tiny model had 4 to 14 on
an H200 (docs/gpu.md), and its steps took 25 % longer in some sessions than in others, as its host was busy."""
COMPUTES = 0.9
"""Share of a step's time that the host computes: one that sleeps, or waits for a disk, is judged by the clock."""


class Bound(StrEnum):
    """The host's computing, whose speed its neighbours change; the GPU; or something else, such as a disk."""

    HOST = "host"
    DEVICE = "device"
    IO = "io"


def bound_of(hardware: Mapping[str, str]) -> dict[str, str]:
    """The fact `bound`, by the hardware alone: on a CPU the host computes. Empty if the hardware is not known."""
    backend = hardware.get("backend", "").lower()
    return {"bound": Bound.HOST if backend == "cpu" else Bound.DEVICE} if backend else {}


def bound_of_sides(baseline: Sequence[Run], candidate: Sequence[Run]) -> Bound | None:
    """What the steps of both sides wait for, as far as their series tell; None where only the hardware does.

    Half of a side's runs that wait for something else than their host are enough; one among several had a disk that
    stood still for a moment. A candidate that leaves out `step_wait`, which the baseline has, may hide it.
    """
    runs = (*baseline, *candidate)
    backends = {run.hardware.get("backend", "").lower() for run in runs}
    if backends == {"cpu"}:
        told, tells = (["step_wait" in run.series for run in side] for side in (baseline, candidate))
        hidden = any(told) and not all(tells)
        return Bound.IO if hidden or _wait(baseline) or _wait(candidate) else Bound.HOST
    return Bound.HOST if backends == {"cuda"} and all(map(_waits_for_host, runs)) else None


def _wait(runs: Sequence[Run]) -> bool:
    """Whether more than a tenth of the steps' time is waiting, on a CPU."""
    shares = [share for run in runs if (share := _waited(run)) is not None]
    return bool(shares) and 2 * sum(share > 1 - COMPUTES for share in shares) >= len(shares)


def _waited(run: Run) -> float | None:
    """The share of its steps' time that a run waited; None if it does not tell. First steps read libraries from the
    disk."""
    waited, wall = (values[len(values) // 3 :] for values in map(run.finite, ("step_wait", "step_time")))
    return float(np.mean(waited) / np.mean(wall)) if len(waited) and len(wall) else None


def _waits_for_host(run: Run) -> bool:
    """Whether a GPU idles for most of a step while the host computes."""
    used, wall, cpu = (run.finite(name) for name in ("gpu_utilization", "step_time", "step_cpu_time"))
    if not (len(used) and len(wall) and len(cpu)):
        return False
    return bool(np.mean(used) < IDLE and np.median(cpu) >= COMPUTES * np.median(wall))
