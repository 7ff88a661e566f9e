"""What each warning usually means, and what to try."""

from __future__ import annotations

_SMALLER_STEPS = "halve the learning rate, lengthen the warm-up, clip gradients at 1.0"
_LOOK_AT_DATA = "look at the batches around this step"

# (rule, stream) or (rule, "") for every stream → meaning, advice.
_TEXTS: dict[tuple[str, str], tuple[str, str]] = {
    ("nonfinite", ""): (
        "an overflow or a division by zero; from here on the weights are not numbers",
        "go back to the last good checkpoint; bf16 instead of fp16, a lower learning rate; " + _LOOK_AT_DATA,
    ),
    ("zero_loss", ""): (
        "no token counts (all labels masked), or a NaN that the trainer wrote down as 0",
        "print one batch with its labels; set logging_nan_inf_filter to false",
    ),
    ("no_learning", ""): (
        "no gradient reaches the weights, or the learning rate is too small to matter",
        "check the learning rate and its schedule, which parameters are trainable, and the labels",
    ),
    ("no_learning", "kl"): (
        "the policy is the reference still: it does not move",
        "raise the learning rate; check that rewards differ within a group, and that the adapter is trainable",
    ),
    ("nonfinite", "eval_loss"): (
        "the evaluation is broken: it overflows, or has no label to score; the training may be sound",
        "evaluate in bf16 or fp32, look for held-out rows without labels",
    ),
    ("no_learning", "reward_mean"): (
        "nothing was learned from the rewards, or it was lost again",
        "see whether rewards differ within a group, raise the learning rate, read some responses",
    ),
    ("length_runaway", ""): (
        "responses run on, in the end to the length limit: their rewards are of fragments then, or length is rewarded",
        "look at what the reward pays for, mask truncated responses, penalise length",
    ),
    ("length_collapse", ""): (
        "the policy ends its answers at once: each token costs more, by its distance from the reference, than it earns",
        "go back to the last good checkpoint; lower the KL coefficient or the learning rate; see what no answer earns",
    ),
    ("no_spread", ""): (
        "all answers to a prompt earn the same, so that no gradient is left",
        "see whether the reward still works; harder or easier prompts, a higher temperature, more answers per prompt",
    ),
    ("displacement", ""): (
        "likelihood displacement: the preferred answers become less likely, only less so than the rejected ones",
        "lower the learning rate, raise beta, add an SFT term on the preferred answers (rpo_alpha)",
    ),
    ("loss_rise", ""): (
        "the run diverges: what was learned is being lost",
        "go back to the last good checkpoint; " + _SMALLER_STEPS + "; " + _LOOK_AT_DATA,
    ),
    ("reward_fall", ""): (
        "what was gained is being lost: the policy collapses, or what it is scored by has changed",
        "if the task changed there as planned, name its step under `phases` in the watch policy; else go back to the "
        "last good checkpoint, lower the learning rate, raise the KL coefficient; read some responses",
    ),
    ("drift", "grad_norm"): ("gradients grow steadily: the run nears instability", _SMALLER_STEPS),
    ("drift", "kl"): (
        "the policy drifts away from the reference",
        "raise the KL coefficient (init_kl_coef, beta), lower the learning rate",
    ),
    ("drift", "value_loss"): (
        "the value model does not follow the rewards",
        "raise vf_coef, lower the learning rate, normalise rewards",
    ),
    ("drift", ""): ("this signal leaves its course", "compare it with an earlier run; " + _SMALLER_STEPS),
    ("resource_growth", ""): (
        "something is kept that is not needed any more, or the machine is slower than it was",
        "detach what is logged, empty buffers and caches; see what else runs there, its clocks and its disks",
    ),
    ("overfitting", ""): (
        "the model learns its training data by heart",
        "keep the checkpoint of the best evaluation; fewer epochs, a lower learning rate, more data",
    ),
    ("first_value", ""): (
        "a loss summed over micro-batches, or another one than it seems",
        "see how the trainer divides by the accumulated micro-batches",
    ),
    ("band", ""): (
        "this run does not do what the champion's runs did at this step",
        "look at what changed: data, versions, settings",
    ),
    ("ceiling", ""): ("a limit that you set is broken", "see the stream's own rule in docs/watch.md for what helps"),
}


def explain(rule: str, stream: str) -> tuple[str, str]:
    """What a warning of this rule on this stream usually means, and what to try."""
    return _TEXTS.get((rule, stream)) or _TEXTS[rule, ""]


def rules() -> frozenset[str]:
    """The names of all rules."""
    return frozenset(rule for rule, _ in _TEXTS)
