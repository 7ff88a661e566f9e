"""What the watch says of losses, rewards and margins: falls and rises, noise and short runs."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from watch_runs import Rows, constant, fail, policy, reward, said, sft, watch

from canary_mlflow.gates.watch import Level, Watch


@pytest.mark.parametrize("seed", [52, 313])
def test_the_first_turns_of_a_level_do_not_tell_how_far_it_wanders(seed: int) -> None:
    """A reward model's margin that wanders: where the mean of twenty rows first turns, it happens to turn by little."""
    rng = np.random.default_rng(seed)
    margins, off = [], 0.0
    for row in range(100):
        off = 0.65 * off + rng.normal(0, 0.28)
        margins.append(1.2 * (1 - np.exp(-row / 15)) + off)
    seen = watch([{"reward_margin": margin} for margin in margins], algo="reward", max_steps=100)
    assert seen.verdict in ("healthy", "warned")


def test_a_reward_of_rare_successes_does_not_fall_where_there_is_none_for_a_while() -> None:
    """As in a public run of 5,500 episodes, which earned one of two rewards and succeeded more and more often."""
    rng = np.random.default_rng(1)
    chances = np.concatenate([np.zeros(500), np.full(400, 0.03), np.zeros(600), np.linspace(0.0, 0.5, 1500)])
    episodes = [{"reward_mean": 0.8 if rng.random() < chance else -0.64} for chance in chances]
    assert watch(episodes).verdict == "healthy"


def test_a_lost_run_is_critical_then_stopped() -> None:
    rows = fail(sft(0), 200, 100, loss=lambda x, share: 8 * x)
    seen = watch(rows)
    levels = [one.level for one in seen.warnings if one.rule == "loss_rise"]
    assert levels == [Level.CRITICAL, Level.STOP]
    assert seen.verdict == "failed"
    assert seen.critical_held.startswith("loss CRITICAL for 10 rows")
    warning = seen.warnings[0]
    assert 200 < warning.step < 210
    assert warning.meaning
    assert warning.advice


def test_a_run_that_blows_up_within_its_first_rows_is_critical() -> None:
    high = [9.0 + 0.3 * math.sin(2.4 * row) for row in range(30)]
    assert watch([{"loss": value} for value in (2.5, 6.0, 8.0, *high)]).verdict == "failed"
    # The first batches were easy ones; the run settles.
    easy = [
        0.9,
        1.2,
        1.4,
        1.9,
        1.9,
        2.1,
        1.9,
        2.0,
        *(1.5 - 0.01 * row + 0.2 * math.sin(2.4 * row) for row in range(40)),
    ]
    assert watch([{"loss": value} for value in easy]).verdict == "healthy"


@pytest.mark.parametrize(
    "rows",
    [
        [1.0, 4.3, 8.8, 13.5, 15.7, 15.0, 18.8, 20.8, 25.6, 29.6],
        [1.0 * 1.46**row for row in range(10)],
        [1.1, 0.9, 1.0, 30.0, 31.0, 29.0],
    ],
    ids=["at once", "by and by", "after three rows"],
)
def test_ten_times_its_first_loss_is_beyond_recovery_however_few_rows_there_are(rows: list[float]) -> None:
    found = watch([{"loss": value} for value in rows])
    assert {one[1:] for one in said(found) if one[3] == "loss_rise"} == {("STOP", "loss", "loss_rise")}
    assert "(loss_rise, step" in found.critical_held, "the gate's row `watch`"


@pytest.mark.parametrize(
    "rows",
    [
        [0.05, 1.0, 0.98, 1.02, 0.99, 1.0, 0.97, 1.01, 0.96, 0.95, 0.94, 0.93],
        [0.02, 1.4, 0.3, 0.8, 1.1, 0.2, 0.9, 1.3, 0.6, 0.1, 0.7, 1.2],
    ],
    ids=["one lucky batch", "small batches"],
)
def test_one_low_first_loss_is_no_beginning_to_blow_up_from(rows: list[float]) -> None:
    assert "STOP" not in {one[1] for one in said(watch([{"loss": value} for value in rows]))}


def test_one_noisy_stretch_of_small_batches_is_not_critical() -> None:
    """DPO: ten rows of larger losses that vary by as much as they rise, and then the run goes on as before."""
    rng = np.random.default_rng(3)
    loss = 0.45 + 0.12 * rng.standard_normal(100)
    loss[:10] = 0.69 - 0.02 * np.arange(10)
    stretch = [1.1, 0.4, 1.5, 0.5, 1.3, 0.45, 1.2, 0.4, 1.35, 0.6]
    noisy, lost = loss.copy(), loss.copy()
    noisy[50:60], lost[50:60] = stretch, np.sort(stretch)[::-1] * 0 + 0.88
    (steady,) = {one.level.name for one in watch([{"loss": value} for value in noisy]).warnings}
    assert steady == "WARN"
    assert "CRITICAL" in {one.level.name for one in watch([{"loss": value} for value in lost]).warnings}


def test_single_spikes_and_late_noise_are_no_divergence() -> None:
    rows = sft(3)
    for at in (60, 130, 131, 250):
        rows[at] |= {"loss": 20.0, "grad_norm": 400.0}
    assert watch(rows).verdict == "healthy"
    memorised = [{"loss": 1e-4 * (1 + (row * 7919 % 13))} for row in range(100)]
    assert watch([{"loss": 2.0 * 0.8**row} for row in range(40)] + memorised).verdict == "healthy"


# Losses of the smoke canary (DPO, small batches, seed 1), and of it under `fault=lr_high`.
SMALL_BATCHES = """
    0.69 0.69 0.69 0.6 0.68 0.78 0.58 0.8 0.59 0.71 0.36 0.64 0.79 0.95 0.97 0.82 0.48 0.53 0.7 0.52 0.68 0.49 0.6
    0.6 0.55 0.44 0.33 0.57 0.41 0.5 0.22 0.19 0.15 0.55 0.63 0.91 0.38 0.5 0.39 0.8 0.6 0.68 0.98 0.58 0.68 0.48
    0.51 0.6 0.28 0.22 0.53 0.85 0.47 0.3 0.18 0.12 0.46 0.36 0.24 0.6 0.12 1 0.28 0.35 0.19 0.37 0.3 0.21 0.67 0.3
    0.98 0.45 0.73 0.13 0.76 1.33 1.06 0.3 0.32 1.26 0.78 0.34 0.36 0.59 0.17 0.97 0.12 0.22 0.28 0.42
"""


LOST = [0.69, 0.69, 0.81, 1.03, 2.17, 1.96, 0.57, 0.84, 1.92, 2.91, 1.74, 1.81, 0.07, 38.39, 9.63, 6.01, 6.23, 5.68]
LOST += [2.79, 8.05, 26.51, 6.03, 7.2, 11.26, 17.59, 6.96, 2.58, 1.08, 2.82]


def test_three_large_losses_among_five_are_small_batches_and_no_rise() -> None:
    losses = [float(word) for word in SMALL_BATCHES.split()]
    assert max(np.median(losses[at : at + 5]) for at in range(70, 80)) > 1.0
    assert watch([{"loss": loss} for loss in losses]).verdict == "healthy"


def test_a_blow_up_is_no_excuse_for_itself() -> None:
    """Its rows jump as far as it has risen; it lasts all the same."""
    seen = watch([{"loss": value} for value in LOST], max_steps=len(LOST))
    assert [one.level for one in seen.warnings] == [Level.CRITICAL, Level.STOP]


def test_few_rows_are_judged_with_care() -> None:
    falling = [2.0, 1.6, 1.4, 1.3, 1.25, 1.2, 1.18, 1.17, 1.15, 1.14, 1.13, 1.12]
    assert watch([{"loss": value} for value in falling]).verdict == "healthy"
    blown = [*falling[:6], 4.0, 6.0, 7.0, 7.5, 7.0, 7.2]
    assert watch([{"loss": value} for value in blown]).verdict == "critical"
    assert watch([]).verdict == "healthy"
    assert watch([{"loss": 2.0}]).verdict == "healthy"


def rewarded(values: np.ndarray, **beside: float) -> Rows:
    return [{"reward_mean": float(value), **beside} for value in values]


def test_a_reward_that_collapses_is_critical_within_rows() -> None:
    for seed in range(20):
        values = reward(seed)
        assert watch(rewarded(values)).verdict == "healthy"
        values[150:] = 0.1 * np.abs(np.random.default_rng(seed).normal(size=50))
        first = next(one for one in said(watch(rewarded(values))) if one[1] == "CRITICAL")
        assert first[2:] == ("reward_mean", "reward_fall")
        assert 150 < first[0] <= 160


def test_a_loss_that_rises_while_the_margin_falls_needs_to_rise_less() -> None:
    def critical(*names: str) -> int:
        found = 0
        for seed in range(40):
            noise, at = np.random.default_rng(seed), np.arange(90)
            level = 2 * np.minimum(at / 50, 1) - 0.9 * (at >= 60)
            margin = level + 0.4 * noise.normal(size=90)
            series = {"loss": 0.7 - 0.2 * level + 0.08 * noise.normal(size=90), "reward_margin": margin}
            seen = watch([{name: float(series[name][row]) for name in names} for row in at], algo="dpo", max_steps=90)
            found += any(one.rule == "loss_rise" and one.level >= Level.CRITICAL for one in seen.warnings)
        return found

    assert critical("loss", "reward_margin") >= 2 * critical("loss") > 0


def test_a_reward_models_mean_score_may_drift() -> None:
    """Only differences of scores are trained. A reward that a policy is trained for may not: same values, GRPO."""
    drifting = np.concatenate([np.linspace(0.03, 0.47, 40), np.linspace(0.47, -0.17, 40)])
    beside = {"loss": 0.6, "reward_margin": 0.5, "reward_accuracy": 0.8}
    assert not [one for one in said(watch(rewarded(drifting, **beside), algo="reward")) if one[2] == "reward_mean"]
    assert ("reward_mean", "reward_fall") in [one[2:] for one in said(watch(rewarded(drifting), algo="grpo"))]


def test_a_reward_that_collapses_within_its_noise_is_seen_in_more_rows() -> None:
    """A fall by one and a half of its standard deviations: five rows cannot tell it, twenty can."""
    levels = Counter()
    for seed in range(20):
        values = np.random.default_rng(seed).normal(size=300) + 1.8 * np.clip(np.arange(300) / 80, 0, 1)
        assert watch(rewarded(values)).verdict in ("healthy", "warned")
        values[200:] -= 1.8
        levels[watch(rewarded(values)).verdict] += 1
    assert levels["healthy"] <= 2
    assert levels["failed"] + levels["critical"] >= 10


def test_a_collapse_in_a_short_run_is_critical_before_it_ends() -> None:
    """60 noisy rows, of which the reward falls in the last 22: the long window has no turns of its own yet."""
    path = [0.2 + 0.6 * min(row / 20, 1) if row < 38 else max(0.8 - (row - 38) / 10, 0.1) for row in range(60)]
    critical = [
        any(one.rule == "reward_fall" and one.level >= Level.CRITICAL for one in seen.warnings)
        for seen in (watch(rewarded(np.random.default_rng(seed).normal(path, 0.2)), algo="grpo") for seed in range(20))
    ]
    assert sum(critical) >= 15


def test_a_collapse_in_the_first_rows_is_seen_before_the_level_has_turned() -> None:
    """As in two public PPO runs, whose answers shrink to a token from row 22 on."""
    path = [-0.6 if row < 22 else max(-0.6 - (row - 22) / 45, -0.9) for row in range(59)]
    critical = []
    for seed in range(20):
        noise = np.random.default_rng(seed).normal(0, 0.045, 59)
        steady = watch(rewarded(np.full(59, -0.6) + noise), algo="ppo")
        assert steady.verdict == "healthy"
        critical.append(
            any(one[1] == "CRITICAL" and one[0] < 50 for one in said(watch(rewarded(path + noise), algo="ppo")))
        )
    assert sum(critical) >= 15


MARGINS = """
    .00 .00 .01 .15 .14 .24 -.36 .36 .09 .01 .44 -.25 .36 .57 .17 1.19 .61 1.28 .80 1.08 .70 1.38 .94 1.33 .39 .97
    2.01 1.07 1.19 .75 .74 1.91 1.23 1.12 2.07 2.00 3.02 1.94 .92 1.73 1.05 .63 1.94 1.61 1.88 2.94 2.03 3.18 2.41
    1.76 2.72 1.08 1.86 2.69 -.76 1.27 2.78 .50 1.48 -1.67 1.02 .06 -.18 -1.70 .84 1.31 -.50 .80 1.66 .83 -.24 -.54
    .62 .65 .52 .45 1.22 -.09 .17 1.16 .51 .70 -.18 .57 1.56 1.26 .13 .74 -.10 1.42 1.57 1.13 1.42 1.32 -.17 1.11
    2.02 .70 1.40 1.39
"""
"""Of `python -m training algo=dpo seed=5443581`: the margin halves, and its held-out loss ends where others end."""


def test_a_margin_that_sinks_and_stays_well_above_its_start_ends_no_run() -> None:
    seen = watch([{"reward_margin": float(value)} for value in MARGINS.split()], algo="dpo", max_steps=100)
    assert max(one.level for one in seen.warnings) == Level.WARN, said(seen)


def test_rewards_of_one_or_two_answers_fall_now_and_then() -> None:
    """0 or 2, as small groups earn: two bad batches among five are no collapse."""
    share = np.linspace(0.5, 0.85, 120)
    verdicts = Counter(
        watch(rewarded(2.0 * (np.random.default_rng(seed).random(120) < share))).verdict for seed in range(100)
    )
    assert verdicts["critical"] + verdicts["failed"] <= 2
    assert verdicts["warned"] <= 10


def test_a_long_reward_that_goes_nowhere_is_no_fall() -> None:
    """Eight answers, half of them right: among 3,000 rows some stretch is the best, and some other the worst."""
    for seed in range(12):
        values = np.random.default_rng(seed).binomial(8, 0.5, 3000) / 8
        found = [one for one in said(watch(rewarded(values))) if one[3] == "reward_fall"]
        assert found == []


def test_groups_without_spread_have_learned_or_never_moved_or_fallen() -> None:
    risen = [{"reward_mean": min(1.0, at / 60), "zero_spread_share": float(at > 60)} for at in range(120)]
    assert watch(risen).verdict == "healthy"
    dead = constant(60, reward_mean=0.0, zero_spread_share=1.0)
    assert said(watch(dead))[0] == (20, "WARN", "zero_spread_share", "no_spread")
    broken = [*risen[:100], *constant(60, reward_mean=0.0, zero_spread_share=1.0)]
    assert ("CRITICAL", "zero_spread_share", "no_spread") in [one[1:] for one in said(watch(broken))]


def test_preferred_answers_that_become_unlikely_are_displaced() -> None:
    def run(lost: float, times: float) -> Watch:
        share = np.clip((np.arange(120) - 40) / 30, 0, 1)
        return watch(
            [
                {"loss": 0.7 - 0.5 * at + 0.02 * (row % 3), "reward_margin": 0.1 + 2 * at,
                 "chosen_reward": -lost * 2 * at, "chosen_logp": -40.0 * (1 + (times - 1) * at)}
                for row, at in enumerate(share.tolist())
            ],
            algo="dpo",
        )  # fmt: skip

    assert run(0.1, 1.2).verdict == "healthy"
    assert run(0.8, 1.3).verdict == "healthy"
    assert run(0.4, 4.0).verdict == "failed"
    assert {one.rule for one in run(0.4, 4.0).warnings} == {"displacement"}


# A real session of KTO whose labels are drawn from row 48 on (watch-fresh.jsonl.gz), means of ten rows: the preferred
# answers lose ten nats, and no margin is left that could show it.
LABELS_DRAWN = {
    "reward_margin": (0.0037, 0.0345, 0.0393, 0.05, 0.0387, -0.0334, -0.0085, -0.0104, -0.0178, -0.0245),
    "chosen_reward": (-0.0066, 0.0115, -0.0221, -0.0883, -0.0932, -0.0973, -0.185, -0.428, -0.68, -0.896),
    "chosen_logp": (-5.86, -5.7, -6.08, -6.8, -7.05, -7.97, -8.97, -11.5, -13.7, -15.9),
}


# Two real sessions of DPO, means of ten rows: a healthy one, whose held-out margin rose from 1.8 to 5.7 nats, and one
# whose pairs differ in one letter from row 47 on.
TOLD_APART = {
    "reward_margin": (0.0119, 0.0602, 0.0588, 0.0814, 0.0966, 0.115, 0.154, 0.179, 0.173, 0.215),
    "reward_accuracy": (0.456, 0.631, 0.587, 0.644, 0.644, 0.65, 0.716, 0.675, 0.688, 0.756),
    "chosen_reward": (-0.0003, -0.0617, -0.0779, -0.116, -0.135, -0.2, -0.132, -0.246, -0.29, -0.241),
    "chosen_logp": (-5.74, -7.02, -7.69, -8.47, -8.66, -9.98, -8.5, -10.8, -11.7, -10.7),
}


NEAR_PAIRS = {
    "reward_margin": (0.0427, 0.117, 0.182, 0.234, 0.158, 0.19, 0.161, 0.287, 0.402, 0.316),
    "reward_accuracy": (0.519, 0.591, 0.625, 0.653, 0.569, 0.487, 0.466, 0.447, 0.487, 0.397),
    "chosen_reward": (0.0651, 0.052, 0.001, -0.0859, -0.157, -0.417, -1.14, -1.42, -1.21, -1.93),
    "chosen_logp": (-5.77, -5.82, -5.94, -6.24, -6.4, -7.26, -9.5, -10.4, -9.73, -12.3),
}


def test_displaced_answers_are_lost_only_if_pairs_are_no_longer_told_apart() -> None:
    def levels(means: dict[str, tuple[float, ...]]) -> list[Level]:
        rows = [
            dict(zip(means, values, strict=True)) for values in zip(*means.values(), strict=True) for _ in range(10)
        ]
        return [one.level for one in watch(rows, algo="dpo", max_steps=100).warnings if one.rule == "displacement"]

    assert levels(TOLD_APART) == []
    assert max(levels(NEAR_PAIRS)) == Level.STOP
    assert max(levels(LABELS_DRAWN)) == Level.STOP


def test_noise_alone_does_not_trip_the_patterns() -> None:
    rng = np.random.default_rng(0)
    rows = [
        {
            "loss": float(rng.lognormal(0, 0.3)),
            "grad_norm": float(rng.lognormal(0, 0.8)),
            "kl": float(rng.lognormal(0, 0.6)),
        }
        for _ in range(5000)
    ]
    found = [one for one in watch(rows, algo="sft").warnings if one.rule != "no_learning"]
    assert max((one.level for one in found), default=0) <= Level.WARN
    assert len(found) <= 2


SHARPENED = """
1.45, 1.36, 1.37, 1.33, 1.32, 1.37, 1.41, 1.37, 1.42, 1.37, 1.32, 1.35, 1.37, 1.29, 1.3, 1.29, 1.31, 1.33, 1.28,
1.32, 1.34, 1.3, 1.2, 1.32, 1.33, 1.27, 1.14, 1.24, 1.26, 1.24, 1.25, 1.19, 1.2, 1.26, 1.26, 1.21, 1.21, 1.24,
1.26, 1.2, 1.25, 1.23, 1.24, 1.22, 1.19, 1.14, 1.28, 1.27, 1.16, 1.17, 1.15, 1.2, 1.16, 1.12, 1.19, 1.16, 1.17,
1.23, 1.27, 1.33, 1.33, 1.27, 1.32, 1.34, 1.34, 1.3, 1.41, 1.42, 1.23, 1.32, 1.31, 1.38, 1.34, 1.3, 1.33, 1.34,
1.4, 1.31, 1.34, 1.28, 1.31, 1.28, 1.36, 1.37, 1.36, 1.39, 1.3, 1.35, 1.29, 1.39, 1.31, 1.37, 1.31, 1.4, 1.29,
1.35, 1.31, 1.31, 1.29, 1.31
"""


def test_a_noisy_loss_that_ends_with_two_high_rows_is_healthy() -> None:
    """As public logs of batches of one or two: 0.4 to 2.2 about a mean of 1, and 2.1 and 2.0 at the end."""
    noise = np.random.default_rng(1)
    losses = [*(1.0 + 0.35 * noise.standard_normal(400)).clip(0.4, 2.2), 2.12, 1.98]
    assert said(watch([{"loss": float(value)} for value in losses], algo="sft")) == []


def test_a_loss_that_is_noisy_and_flat_is_seldom_lost() -> None:
    lost = 0
    for seed in range(100):
        losses = (1.0 + 0.35 * np.random.default_rng(seed).standard_normal(60)).clip(0.05)
        levels = [one.level for one in watch([{"loss": float(value)} for value in losses], algo="sft").warnings]
        lost += max(levels, default=0) >= Level.CRITICAL
    assert lost <= 3


def test_a_steady_loss_that_rises_by_a_little_of_its_gain_is_not_lost() -> None:
    """From 3 to 1, steady to a hundredth; then 1.05, as after a change of the data: five of its standard deviations."""
    losses = 1.0 + 2.0 * np.exp(-np.arange(3000) / 50) + 0.01 * np.random.default_rng(0).standard_normal(3000)
    losses[2700:] += 0.05
    rows = [{"loss": float(value)} for value in losses]
    assert watch(rows, algo="sft").verdict == "healthy"
    assert watch(rows, policy(gain__lost=0.0), algo="sft").verdict == "failed"


def test_what_never_fell_is_not_said_to_have_fallen() -> None:
    steady = 1.0 + 0.02 * np.random.default_rng(0).standard_normal(60)
    steady[40:] *= 3
    found = [one.seen for one in watch([{"loss": float(value)} for value in steady], algo="sft").warnings]
    assert found
    assert all("fell to" not in seen for seen in found), found


def test_a_loss_that_ends_far_above_0_is_lost_when_its_gain_is() -> None:
    """A recorded session (watch-third.jsonl.gz) whose attention sharpens from row 55 on: its loss rises by a tenth."""
    losses = [float(value) for value in SHARPENED.split(",")]
    found = [one for one in said(watch([{"loss": value} for value in losses], algo="sft")) if one[3] == "loss_rise"]
    assert [one[1] for one in found] == ["WARN", "CRITICAL", "STOP"]
    assert found[1][0] <= 70
    calm = [*losses[:54], *losses[44:54] * 4]
    assert said(watch([{"loss": value} for value in calm], algo="sft")) == []


def test_three_high_losses_in_a_row_are_small_batches_and_more_are_a_rise() -> None:
    calm = [0.5 + 0.1 * math.sin(2.4 * step) for step in range(60)]

    def levels(high: list[float]) -> list[Level]:
        rows = [*calm[:30], *high, *calm[30:]]
        return [one.level for one in watch([{"loss": value} for value in rows]).warnings]

    assert levels([1.2, 1.6, 1.1]) == []
    assert max(levels([1.2, 1.6, 1.1, 1.3, 1.2, 1.5])) == Level.CRITICAL


@pytest.mark.parametrize("equal", [1, 10])
def test_a_loss_whose_noise_grows_from_nothing_has_seldom_risen(equal: int) -> None:
    """DPO begins where policy and reference are equal: every batch's loss is ln 2. Then small batches differ."""

    def small_batches(seed: int, rows: int = 100) -> Rows:
        rng, step = np.random.default_rng(seed), np.arange(rows)
        spread = np.clip((step - equal + 1) / 25, 0, 1)
        level = math.log(2) - 0.2 * np.clip((step - equal + 1) / 20, 0, 1)
        return [{"loss": float(value)} for value in level * np.exp(0.4 * spread * rng.normal(size=rows) - 0.1 * spread)]

    found = Counter(one.level for seed in range(200) for one in watch(small_batches(seed)).warnings)
    assert found[Level.STOP] == 0
    assert found[Level.CRITICAL] <= 4  # 0.2 in 1000 rows
    assert found[Level.WARN] <= 10
    for seed in range(20):
        lost = [row["loss"] * (1 if step < 60 else 6) for step, row in enumerate(small_batches(seed))]
        assert watch([{"loss": value} for value in lost]).verdict in ("critical", "failed")
