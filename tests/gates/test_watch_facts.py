"""Hard facts: what the watch says of each, on which stream and at which row."""

from __future__ import annotations

import math

import pytest
from watch_runs import Rows, constant, said, watch

NAN = math.nan


FACTS: list[tuple[str, Rows, list[tuple[int, str, str, str]]]] = [
    ("NaN loss", constant(3, loss=2.0) + constant(5, loss=NAN), [(4, "STOP", "loss", "nonfinite")]),
    ("infinite loss", [{"loss": 2.0}, {"loss": math.inf}], [(2, "STOP", "loss", "nonfinite")]),
    ("NaN KL", [{"kl": 1.0}, {"kl": NAN}], [(2, "CRITICAL", "kl", "nonfinite")]),
    ("gradients that fp16's scaler leaves out", constant(9, grad_norm=math.inf) + constant(9, grad_norm=1.0), []),
    (
        "a broken evaluation",
        [{"loss": 2.0, "eval_loss": NAN}, {"loss": 2.0}],
        [(1, "WARN", "eval_loss", "nonfinite")],
    ),
    ("no label counts", constant(9, loss=0.0), [(5, "STOP", "loss", "zero_loss")]),
    (
        "a NaN written down as 0",
        [{"loss": 2.0 + 0.1 * (row % 3)} for row in range(10)] + constant(9, loss=0.0),
        [(15, "STOP", "loss", "zero_loss")],
    ),
    (
        "a loss learned away from one batch to the next, as the gradients say",
        [{"loss": 0.03 + 0.01 * (row % 3), "grad_norm": 1e-3} for row in range(14)]
        + constant(9, loss=0.0, grad_norm=1e-4),
        [],
    ),
    (
        "a NaN written down as 0, as the gradients say",
        [{"loss": 0.03 + 0.01 * (row % 3), "grad_norm": 1e-3} for row in range(14)]
        + constant(9, loss=0.0, grad_norm=NAN),
        [(19, "STOP", "loss", "zero_loss")],
    ),
    (
        "labels that are masked from some row on",
        [{"loss": 0.03 + 0.01 * (row % 3), "grad_norm": 1e-3} for row in range(14)]
        + constant(9, loss=0.0, grad_norm=0.0),
        [(19, "STOP", "loss", "zero_loss")],
    ),
    (
        "a loss that is 0 and comes back, as no NaN does",
        [{"loss": 0.03 + 0.01 * (row % 3)} for row in range(14)]
        + constant(4, loss=0.0)
        + constant(1, loss=0.02)
        + constant(9, loss=0.0),
        [],
    ),
    (
        "a loss learned away at once, as the margin says",
        [
            {"loss": loss, "reward_margin": margin}
            for loss, margin in ((0.69, 0.0), (0.16, 27.0), (0.0, 120.0), (0.0, 142.0))
        ],
        [],
    ),
    (
        "gradients that grow in RL",
        [{"reward_mean": 0.1 * row, "grad_norm": 1.0 + 30.0 * (row >= 60)} for row in range(120)],
        [],
    ),
    ("KTO leaves its reference", [{"chosen_reward": 0.1 * row, "kl": 1.0 + 0.1 * row} for row in range(120)], []),
    ("a loss learned away", [{"loss": round(2 * 0.5**row, 4)} for row in range(40)], []),
    ("RL begins at a loss of 0", constant(15, loss=0.0, reward_mean=1.0, kl=0.1), []),
    ("a loss that does not move", constant(30, loss=0.6931), [(20, "STOP", "loss", "no_learning")]),
    ("no learning rate", constant(25, learning_rate=0.0), [(20, "STOP", "learning_rate", "no_learning")]),
    (
        "a schedule with warm-up and end",
        [{"learning_rate": rate} for rate in [0.0] * 10 + [1e-4] * 20 + [0.0] * 30],
        [],
    ),
    ("no gradient", constant(9, grad_norm=0.0), []),
    ("no gradient for longer", constant(21, grad_norm=0.0), [(20, "STOP", "grad_norm", "no_learning")]),
    (
        "a policy that is the reference, or a KL that is not measured: no gradient tells",
        [{"kl": 0.0, "reward_mean": 0.1 * math.sin(2.4 * row)} for row in range(60)],
        [(20, "WARN", "kl", "no_learning")],
    ),
    (
        "a KL that is not measured, as the reward shows",
        [{"kl": 0.0, "reward_mean": 0.1 * row + 0.1 * math.sin(2.4 * row)} for row in range(60)],
        [],
    ),
    (
        "a KL that is not measured, as the gradients show",
        [{"kl": 0.0, "grad_norm": 0.1 * (row % 2), "reward_mean": 0.1 * math.sin(2.4 * row)} for row in range(60)],
        [],
    ),
    (
        "a policy that no gradient reaches",
        [{"kl": 0.0, "grad_norm": 0.0, "reward_mean": 0.1 * math.sin(2.4 * row)} for row in range(25)],
        [(20, "CRITICAL", "kl", "no_learning")],
    ),
    (
        "responses at the limit from the start",
        constant(30, truncated_share=1.0),
        [(30, "WARN", "truncated_share", "length_runaway")],
    ),
    (
        "responses at the limit from the start, of a policy that learns",
        [{"truncated_share": 1.0, "reward_mean": 0.1 * row + 0.2 * math.sin(2.4 * row)} for row in range(30)],
        [],
    ),
    (
        "responses that run to the limit",
        constant(20, truncated_share=0.2) + constant(12, truncated_share=1.0),
        [(28, "CRITICAL", "truncated_share", "length_runaway")],
    ),
    (
        "responses that run to the limit while the reward holds",
        [
            {"truncated_share": 0.02 + 0.95 * (row >= 30), "reward_mean": 0.85 + 0.1 * math.sin(2.4 * row)}
            for row in range(60)
        ],
        [(38, "WARN", "truncated_share", "length_runaway")],
    ),
    (
        "responses that run to the limit and earn less",
        [
            {
                "reward_mean": 0.85 - 0.6 * (row >= 30) + 0.1 * math.sin(2.4 * row),
                "truncated_share": 0.02 + 0.95 * (row >= 30),
            }
            for row in range(60)
        ],
        [
            (38, "WARN", "truncated_share", "length_runaway"),
            (39, "WARN", "reward_mean", "reward_fall"),
            (39, "CRITICAL", "truncated_share", "length_runaway"),
        ],
    ),
    (
        "answers that shrink to nothing while each token costs more than it earns",
        [
            {"response_length": max(400.0 * 0.8**row, 1.0), "score_mean": -0.5, "reward_mean": -10.0 * 0.8**row}
            for row in range(30)
        ],
        [(19, "CRITICAL", "response_length", "length_collapse")],
    ),
    (
        "answers that become brief as the reward rises",
        [{"response_length": max(400.0 * 0.8**row, 1.0), "reward_mean": 0.1 * row} for row in range(30)],
        [],
    ),
    (
        "answers that run on, long before their limit, while the reward stays where it was",
        [{"response_length": 100.0 * 1.15**row, "reward_mean": 0.5 + 0.1 * (row % 3)} for row in range(30)],
        [(25, "WARN", "response_length", "length_runaway")],
    ),
    (
        "answers that become long as the reward rises",
        [{"response_length": 100.0 * 1.15**row, "reward_mean": 0.1 * row} for row in range(30)],
        [],
    ),
    (
        "a policy that is not trained yet",
        constant(5, policy_loss=NAN, kl=NAN, value_loss=1.0) + constant(20, policy_loss=0.1, kl=0.1, value_loss=1.0),
        [(1, "WARN", "policy_loss", "nonfinite"), (1, "WARN", "kl", "nonfinite")],
    ),
    (
        "a policy that breaks",
        constant(5, policy_loss=0.1, value_loss=1.0) + constant(2, policy_loss=NAN, value_loss=1.0),
        [(6, "STOP", "policy_loss", "nonfinite")],
    ),
    (
        "a policy that is never a number",
        constant(9, policy_loss=NAN, value_loss=1.0),
        [(1, "WARN", "policy_loss", "nonfinite"), (9, "STOP", "policy_loss", "nonfinite")],
    ),
    (
        "a loss stuck at ln 2",
        [{"loss": math.log(2) + 0.003 * math.sin(2.4 * row)} for row in range(210)],
        [(200, "CRITICAL", "loss", "no_learning")],
    ),
    (
        "a loss stuck at ln 2 while the margin rises",
        [
            {"loss": math.log(2) + 0.003 * math.sin(2.4 * row), "reward_margin": 0.01 * row + 0.1 * math.sin(2.4 * row)}
            for row in range(210)
        ],
        [],
    ),
    (
        "KTO's loss with a small beta, which falls by a percent",
        [{"loss": 0.5 - 2.5e-5 * row + 0.001 * math.sin(2.4 * row)} for row in range(210)],
        [],
    ),
]


@pytest.mark.parametrize(("rows", "expected"), [case[1:] for case in FACTS], ids=[case[0] for case in FACTS])
def test_hard_facts(rows: Rows, expected: list[tuple[int, str, str, str]]) -> None:
    found = said(watch(rows))
    # The constant rows here hold CRITICAL for long enough; this test is about the first word.
    assert [one for one in found if one[:2] != (29, "STOP")][: max(1, len(expected))] == expected
