"""The watch with the champion's runs: a run that leaves their band is reported, one that is only late is not."""

from __future__ import annotations

import math

import numpy as np
import pytest
from watch_runs import Rows, policy, said, sft, watch

from canary_mlflow.gates.model.records import Series
from canary_mlflow.gates.watch import Band, bands_of


def series(rows: Rows) -> dict[str, Series]:
    names = rows[0]
    return {name: Series.from_pairs(name, [(at, row[name]) for at, row in enumerate(rows, 1)]) for name in names}


def test_band_of_champion_runs() -> None:
    rules = policy()
    champion = [series(sft(seed)) for seed in range(5)]
    bands = bands_of(rules.drift.streams, rules.band, champion)
    assert set(bands) == {"loss", "grad_norm"}
    assert bands_of(rules.drift.streams, rules.band, champion[:2]) == {}
    for seed in range(50, 60):
        assert "band" not in {one.rule for one in watch(sft(seed), bands=bands).warnings}
    worse = [row | {"loss": row["loss"] * 3} for row in sft(60)]  # from the first row: no drift will ever see it
    found = watch(worse, bands=bands).warnings
    assert {(one.rule, one.stream) for one in found} == {("band", "loss")}
    assert found[0].step < 80
    assert "5 runs of the champion had" in found[0].seen


def test_one_row_far_outside_of_the_band_is_said_at_once_unless_the_champion_has_such_rows_too() -> None:
    rules = policy()

    def bands(champion: list[Rows]) -> dict[str, Band]:
        return bands_of(rules.drift.streams, rules.band, [series(rows) for rows in champion])

    def spiky(rows: Rows, at: int) -> Rows:
        return [row | {"loss": row["loss"] * (10 if step == at else 1)} for step, row in enumerate(rows, 1)]

    champion = [sft(seed) for seed in range(3)]
    found = watch(spiky(sft(60), 4), bands=bands(champion)).warnings
    assert [(one.step, one.stream, one.rule, one.level.name) for one in found] == [(4, "loss", "band", "WARN")]
    restless = [spiky(rows, 50 * (1 + seed)) for seed, rows in enumerate(champion)]
    assert not watch(spiky(sft(60), 4), bands=bands(restless)).warnings
    both, usual = [policy(band__leap=leap) for leap in (8.0, 1e6)], bands(champion)
    for seed in range(50, 150):
        with_it, without = (watch(sft(seed), rules, bands=usual) for rules in both)
        assert said(with_it) == said(without)


def test_entropy_that_falls_beside_the_champions_is_a_warning_in_supervised_training_and_never_more() -> None:
    champion = [[row | {"entropy": 3.0 + 0.01 * math.sin(at)} for at, row in enumerate(sft(seed))] for seed in range(3)]
    rules = policy()
    bands = bands_of(rules.drift.streams, rules.band, [series(rows) for rows in champion])
    sure = [row | {"entropy": 0.2} for row in sft(60)]
    assert {(one.stream, one.level.name) for one in watch(sure, algo="sft", bands=bands).warnings} == {
        ("entropy", "WARN")
    }
    assert not watch(sure, algo="sft").warnings
    assert ("entropy", "CRITICAL") in {
        (one.stream, one.level.name) for one in watch(sure, algo="ppo", bands=bands).warnings
    }


def test_half_of_the_change_that_matters_is_enough_for_a_single_row_far_outside() -> None:
    rules = policy()
    champion = [[row | {"entropy": 3.0 + 0.01 * math.sin(at)} for at, row in enumerate(sft(seed))] for seed in range(3)]
    bands = bands_of(rules.drift.streams, rules.band, [series(rows) for rows in champion])
    for entropy, expected in ((3.0 / 1.6, [(4, "entropy", "band", "WARN")]), (3.0 / 1.3, [])):
        rows = [row | {"entropy": entropy if step == 4 else 3.0} for step, row in enumerate(sft(60), 1)]
        found = watch(rows, algo="sft", bands=bands).warnings
        assert [(one.step, one.stream, one.rule, one.level.name) for one in found] == expected


def learning(at: float, seed: int) -> Rows:
    """A reward that rises from -16 to -6 around one step."""
    noise = np.random.default_rng(seed).normal(0, 0.5, 200)
    return [{"score_mean": -16 + 10 / (1 + math.exp((at - step) / 5)) + float(noise[step])} for step in range(200)]


def test_a_reward_that_rises_late_is_behind_and_not_lost() -> None:
    rules = policy()
    bands = bands_of(rules.drift.streams, rules.band, [series(learning(at, at)) for at in (50, 53, 57)])
    for seed in range(20):
        assert not watch(learning(140, seed), algo="ppo", bands=bands).warnings
    collapsed = [{"score_mean": -16.0 if step > 120 else row["score_mean"]} for step, row in enumerate(learning(55, 1))]
    worse = [{"score_mean": row["score_mean"] - (8 if step > 150 else 0)} for step, row in enumerate(learning(1000, 1))]
    for rows in (collapsed, worse):
        assert "band" in {one.rule for one in watch(rows, algo="ppo", bands=bands).warnings}
    assert "band" in {one.rule for one in watch(learning(140, 1), algo="dpo", bands=bands).warnings}, "no such excuse"


@pytest.mark.parametrize(("stream", "high", "low"), [("value_loss", 10.0, 0.3), ("grad_norm", 50.0, 1.0)])
def test_other_streams_of_rl_have_no_such_excuse(stream: str, high: float, low: float) -> None:
    def falling(seed: int) -> Rows:
        noise = np.random.default_rng(seed).normal(0, 0.1, 200)
        return [{stream: (low + (high - low) * math.exp(-step / 10)) * math.exp(noise[step])} for step in range(200)]

    rules = policy()
    bands = bands_of(rules.drift.streams, rules.band, [series(falling(seed)) for seed in range(3)])
    back = [{stream: row[stream] * (20 if step > 100 else 1)} for step, row in enumerate(falling(9))]
    assert not watch(falling(9), algo="ppo", bands=bands).warnings
    assert "band" in {one.rule for one in watch(back, algo="ppo", bands=bands).warnings}
