"""The watch's policy: the shipped file is complete, each key changes an outcome, nonsense is refused by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from watch_runs import DEFAULT, Rows, fail, policy, said, sft, watch

from canary_mlflow.errors import UsageError
from canary_mlflow.gates.model.fields import PolicyError
from canary_mlflow.gates.model.records import Series
from canary_mlflow.gates.watch import Watch, bands_of, parse_watch
from canary_mlflow.policies import load_watch, policy_names

NAN = math.nan


def paths(body: dict[str, Any], above: str = "") -> list[str]:
    found = []
    for key, value in body.items():
        name = f"{above}{key}"
        found += paths(value, f"{name}__") if isinstance(value, dict) else [name]
    return found


def column(name: str, values: Any) -> Rows:
    return [{name: float(value)} for value in values]


def wavy(rows: int, level: float, share: float = 0.1) -> np.ndarray:
    """A level with a regular wobble, which has no chance in it."""
    return level * (1 + share * np.sin(np.arange(rows) * 2.4))


def noisy(rows: int, level: float, share: float) -> np.ndarray:
    return level * (1 + share * np.random.default_rng(1).normal(size=rows))


def loss(*parts: Any) -> Rows:
    return column("loss", np.concatenate([np.atleast_1d(part) for part in parts]))


explosion = fail(sft(0), 200, 100, loss=lambda x, s: 8 * x)
creep = fail(sft(0), 100, 250, grad_norm=lambda x, s: x * 60**s)
turns = column("grad_norm", np.concatenate([wavy(30, 1.0), wavy(5, 30.0)] * 8))
distant = column("kl", np.concatenate([wavy(60, 2.0), wavy(40, 40.0)]))
early = fail(sft(0), 45, 60, grad_norm=lambda x, s: x * 8)
sixfold = fail(sft(0), 200, 100, grad_norm=lambda x, s: x * 6)
zeros = loss(wavy(10, 0.5), np.zeros(4), wavy(10, 0.5), np.zeros(9))
short = fail(sft(4, 60), 25, 30, grad_norm=lambda x, s: x * 8)
short_lost = fail(sft(0, 60), 40, 9, loss=lambda x, s: 8 * x)


def rewards(*parts: Any, **beside: float) -> Rows:
    """A reward that rises from 0 to 1 in 40 rows and then is what `parts` say."""
    risen = 0.2 * np.sin(np.arange(40) * 2.4) / 4 + np.linspace(0.0, 1.0, 40)
    return [row | beside for row in column("reward_mean", np.concatenate([risen, *parts]))]


half_gone = rewards(wavy(20, 1.0, 0.03), wavy(30, 0.45, 0.06))
noisy_fall = column(
    "reward_mean",
    np.random.default_rng(0).normal(size=300)
    + 1.8 * np.clip(np.arange(300) / 80, 0, 1)
    - 1.8 * (np.arange(300) >= 200),
)
collapsed = rewards(wavy(20, 1.0, 0.03), wavy(30, 0.1, 0.3))
falling_margin = [{"reward_margin": row["reward_mean"]} for row in collapsed]
equal = [{"reward_mean": 0.5, "zero_spread_share": 0.96} for _ in range(30)]
capped = column("truncated_share", [0.3] * 20 + [0.97] * 12)
preferred = [
    {"reward_margin": 1.0, "chosen_reward": -0.7 * (at > 20), "chosen_logp": -10.0 - 24.0 * (at > 20)}
    for at in range(60)
]
band_run = [row | {"loss": row["loss"] * 3} for row in sft(60)]
leap_run = [row | {"loss": row["loss"] * (30 if at == 4 else 1)} for at, row in enumerate(sft(60))]

# Key → another value, rows that tell the two apart, options of the watch.
FLIPS: dict[str, tuple[Any, Rows] | tuple[Any, Rows, dict[str, Any]]] = {
    "rows__burn_in": (60, early),
    "rows__burn_in_share": (0.9, short, {"max_steps": 60}),
    "rows__burn_in_least": (29, short, {"max_steps": 60}),
    "rows__burn_in_skip": (25, early),
    "rows__window": (11, distant, {"algo": "ppo"}),
    "rows__quiet": (200, turns),
    "rows__hold": (30, explosion),
    "rows__hold_share": (0.5, short_lost, {"max_steps": 60}),
    "rows__hold_least": (9, short_lost, {"max_steps": 60}),
    "drift__half_life": (400.0, creep),
    "drift__allowance": (3.5, sixfold),
    "drift__warn": (20.0, sixfold),
    "drift__critical": (200.0, distant, {"algo": "ppo"}),
    "drift__alone": (["kl"], sixfold),
    "band__min_runs": (6, band_run),
    "band__allowance": (6.0, band_run),
    "band__warn": (20.0, band_run),
    "band__critical": (200.0, band_run),
    "band__leap": (1e3, leap_run),
    "facts__nonfinite": (False, loss(2.0, NAN)),
    "facts__untrained_rows": (2, column("policy_loss", [NAN] * 4 + [0.1] * 4)),
    "facts__zero_loss_rows": (3, zeros[:14]),
    "facts__zero_loss_from": (0.7, zeros[14:]),
    "facts__frozen_rows": (40, column("learning_rate", [0.0] * 25)),
    "facts__flat_range": (0.001, loss(wavy(60, 2.0, 0.004))),
    "facts__no_gain": (0.5, loss(np.linspace(2.0, 1.5, 60))),
    "facts__no_gain_doubt": (2.0, loss(np.random.default_rng(5).normal(1.0, 0.25, 60))),
    "facts__stuck_rows": (60, loss(wavy(80, 2.0, 0.004))[:70]),
    "facts__stuck_share": (0.9, loss(wavy(60, 2.0, 0.004)), {"max_steps": 100}),
    "facts__capped_share": (0.98, capped),
    "facts__capped_from": (0.2, capped),
    "facts__capped_rows": (20, capped),
    "facts__shrunk_share": (0.3, column("response_length", [40.0] * 20 + [10.0] * 20), {"algo": "ppo"}),
    "gain__min_rows": (80, collapsed[:75]),
    "gain__window": (40, noisy_fall),
    "gain__noise": (60.0, half_gone),
    "gain__floor": (2.0, half_gone),
    "gain__lost": (0.9, half_gone),
    "gain__critical_noise": (60.0, collapsed),
    "gain__critical_margin_noise": (60.0, falling_margin),
    "algos__kto__gain__critical_margin_noise": (60.0, falling_margin, {"algo": "kto"}),
    "growth__memory": (3.0, column("host_memory", np.linspace(100.0, 200.0, 60))),
    "growth__time": (4.0, column("step_time", np.linspace(1.0, 3.0, 60))),
    "patterns__no_spread": (0.99, equal),
    "patterns__no_spread_rows": (40, equal),
    "patterns__displaced_times": (6.0, preferred),
    "patterns__displaced_nats": (40.0, preferred),
    "silent": (["drift"], sixfold),
    "phases": ([201], explosion),
    "ceilings__kl": (0.2, column("kl", [0.1] * 20 + [0.3] * 20)),
    "ceilings__entropy": (0.5, column("entropy", [0.6] * 20 + [0.4] * 20)),
    "ceilings__grad_norm": (2.0, column("grad_norm", [1.0] * 20 + [3.0] * 20)),
    "ceilings__reward_std": (2.0, column("reward_std", [1.0] * 20 + [3.0] * 20)),
    "ceilings__kl_target_error": (0.15, column("kl_target_error", [0.1] * 20 + [-0.2] * 20)),
}  # fmt: skip


def drifting(stream: str, rule: dict[str, Any], change: float) -> Rows:
    """The stream at a level of its own, then changed for the worse by this factor, or by this many of its spreads."""
    level = max(3 * rule["floor"], 0.3)
    sign = 1 if rule["worse"] == "higher" else -1
    before = level * (1 + 0.05 * np.random.default_rng(2).normal(size=80))
    after = before * change**sign if rule["scale"] == "log" else before + sign * change * 0.05 * level
    return column(stream, [*before, *after])


def flips_of_streams() -> list[tuple[str, Any, Rows]]:
    found = []
    for stream, rule in DEFAULT["drift"]["streams"].items():
        key = f"drift__streams__{stream}"
        log, warn = rule["scale"] == "log", rule["warn_change"]
        weak = drifting(stream, rule, 1 + 0.7 * (warn - 1) if log else 0.7 * warn)
        strong = drifting(stream, rule, 1.5 * (rule["critical_change"] or 2 * rule["warn_change"]))
        found += [
            (f"{key}__worse", "lower" if rule["worse"] == "higher" else "higher", strong),
            (f"{key}__scale", "identity" if log else "log", weak if log else drifting(stream, rule, 1.3 * warn)),
            (f"{key}__warn_change", 1.05 if log else 0.5, weak),
        ]
        if log:
            high = rule["worse"] == "higher"
            found.append((f"{key}__floor", 1e4 if high else 10.0, strong))
        changed = None if rule["critical_change"] else rule["warn_change"] + 0.01
        found.append((f"{key}__critical_change", changed, strong))
    return found


def outcome(rows: Rows, change: dict[str, Any], options: dict[str, Any]) -> tuple[object, ...]:
    rules = policy(**change)
    if rows is band_run or rows is leap_run:
        champion = [
            {"loss": Series.from_pairs("loss", [(at, row["loss"]) for at, row in enumerate(sft(seed), 1)])}
            for seed in range(5)
        ]
        options = options | {"bands": bands_of(rules.drift.streams, rules.band, champion)}
    seen = watch(rows, rules, **options)
    return (*said(seen), seen.notices)


@pytest.mark.parametrize("key", FLIPS)
def test_every_key_changes_an_outcome(key: str) -> None:
    value, rows, *options = FLIPS[key]
    chosen: dict[str, Any] = options[0] if options else {}
    assert outcome(rows, {}, chosen) != outcome(rows, {key: value}, chosen)


STREAM_FLIPS = flips_of_streams()


@pytest.mark.parametrize(("key", "value", "rows"), STREAM_FLIPS, ids=[flip[0] for flip in STREAM_FLIPS])
def test_every_key_of_a_stream_changes_an_outcome(key: str, value: Any, rows: Rows) -> None:
    changes, algo = {key: value}, "sft" if "__loss__" in key or "__grad_norm__" in key else "ppo"
    if key.endswith("__scale") and value == "log":  # which needs more
        changes |= {key.replace("__scale", "__floor"): 0.01}
    # Other rules look at some of these streams too, so drift alone is compared.
    alone = {"drift__alone": list(DEFAULT["drift"]["streams"])}
    before, after = (
        [one for one in said(watch(rows, policy(**alone, **change), algo=algo)) if one[3] == "drift"]
        for change in ({}, changes)
    )
    assert before != after


def test_no_key_is_without_a_flip() -> None:
    flipped = {*FLIPS, *(flip[0] for flip in STREAM_FLIPS)}
    # A name is a label; on_critical has a test of its own; on the identity scale there is no floor.
    rest = set(paths(DEFAULT)) - flipped - {"name", "on_critical"}
    identity = {name for name, rule in DEFAULT["drift"]["streams"].items() if rule["scale"] == "identity"}
    assert rest == {f"drift__streams__{name}__floor" for name in identity}


def test_the_shipped_policy_is_complete_and_named() -> None:
    assert policy_names("watch") == ["default"]
    assert load_watch().name == "default"
    assert load_watch({"base": "default", "rows": {"hold": 20}}).rows.hold == 20


def change(path: str, value: Any) -> Callable[[], Any]:
    return lambda: policy(**{path: value})


def without(key: str) -> Callable[[], Any]:
    return lambda: parse_watch({name: value for name, value in DEFAULT.items() if name != key})


BAD = [
    (without("facts"), "watch: facts missing; expected all of name, on_critical"),
    (lambda: parse_watch(DEFAULT | {"fact": {}}), "watch: unknown key 'fact'; valid: "),
    (change("on_critical", "kill"), "watch.on_critical: found 'kill'; valid: warn, stop, auto"),
    (change("rows__hold", 0), "watch.rows.hold: found 0; expected a whole number of at least 2"),
    (change("drift__critical", 1.0), "watch.drift.critical: found 1; expected at least watch.drift.warn (15)"),
    (change("rows__burn_in_least", 90), "watch.rows.burn_in_least: found 90; expected at most watch.rows.burn_in"),
    (change("drift__streams__kl__floor", 0), "watch.drift.streams.kl: found floor 0"),
    (change("drift__streams__kl__critical_change", 2.0), "kl.critical_change: found 2; expected at least warn_change"),
    (change("drift__streams__kl__worse", "up"), "watch.drift.streams.kl.worse: found 'up'; valid: higher, lower"),
    (change("ceilings__kl", "0.2"), "watch.ceilings.kl: found '0.2'; expected a number of at least 0"),
    (change("silent", ["drifts"]), "watch.silent: unknown rule 'drifts'; valid: band, ceiling"),
    (change("silent", "drift"), "watch.silent: found 'drift'; expected a list, [] for none"),
    (change("phases", [0]), "watch.phases: found 0; expected a whole number of at least 1"),
    (change("drift__alone", ["los"]), "watch.drift.alone: unknown stream 'los'; valid: approx_kl"),
    (lambda: parse_watch(DEFAULT | {"algos": {"grpo": {"gain": {"nois": 1}}}}),
     "watch.algos.grpo.gain: unknown key 'nois'; valid: critical_margin_noise, critical_noise"),
    (lambda: parse_watch(DEFAULT | {"ceilings": {"loss": 1}}), "watch.ceilings: unknown key 'loss'; valid: entropy"),
]  # fmt: skip


@pytest.mark.parametrize(("parse", "expected"), BAD, ids=[case[1][:40] for case in BAD])
def test_nonsense_is_refused_by_name(parse: Callable[[], Any], expected: str) -> None:
    with pytest.raises(PolicyError) as caught:
        parse()
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_rule_that_bears_its_own_number_is_switched_off_by_null() -> None:
    assert "no_spread" in {one.rule for one in watch(equal).warnings}
    assert "no_spread" not in {one.rule for one in watch(equal, policy(patterns__no_spread=None)).warnings}


def test_an_algorithm_has_rules_of_its_own() -> None:
    rules = parse_watch(DEFAULT | {"algos": {"SFT": {"drift": {"alone": []}}}})
    said_of = {algo: {one.rule for one in watch(sixfold, rules, algo=algo).warnings} for algo in ("sft", "dpo", "")}
    assert said_of == {"sft": set(), "dpo": {"drift"}, "": {"drift"}}


def test_a_policy_file_that_is_not_there_is_one_line() -> None:
    with pytest.raises(UsageError, match="policy 'strict' not found; valid: default, or the path of a YAML file"):
        load_watch("strict")


def test_a_watch_needs_nothing_but_a_policy() -> None:
    assert Watch(load_watch()).verdict == "healthy"
