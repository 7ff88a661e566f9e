"""The arithmetic of PPO against cases worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from canary_mlflow.training.ppo.losses import (
    Batch,
    Clip,
    gae,
    ppo_loss,
    token_entropy,
    token_logps,
    token_rewards,
    value_mask_of,
    whiten,
)


def test_gae_by_hand() -> None:
    """gamma = lambda = 1/2: delta = (1 + 1 - 1, 0 + 2 - 2, 4 - 4), A2 = 0, A1 = 0 + 0/4, A0 = 1 + 0/4."""
    rewards, values = torch.tensor([[1.0, 0.0, 4.0]]), torch.tensor([[1.0, 2.0, 4.0]])
    advantages, returns = gae(rewards, values, gamma=0.5, lam=0.5)
    assert advantages.tolist() == [[1.0, 0.0, 0.0]]
    assert returns.tolist() == [[2.0, 2.0, 4.0]]


def test_gae_carries_a_late_surprise_back() -> None:
    """delta = (0, 0, 8); with gamma = 1 and lambda = 1/2 each step back halves it."""
    advantages, _ = gae(torch.tensor([[0.0, 0.0, 8.0]]), torch.zeros(1, 3), gamma=1.0, lam=0.5)
    assert advantages.tolist() == [[2.0, 4.0, 8.0]]


def test_gae_at_lambda_one_is_return_minus_value_and_at_zero_the_td_error() -> None:
    rewards, values = torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[0.5, 0.25, 1.0]])
    _, returns = gae(rewards, values, gamma=1.0, lam=1.0)
    assert returns.tolist() == [[6.0, 5.0, 3.0]]
    advantages, _ = gae(rewards, values, gamma=1.0, lam=0.0)
    assert advantages.tolist() == [[1.0 + 0.25 - 0.5, 2.0 + 1.0 - 0.25, 3.0 - 1.0]]


def test_whitening_by_hand() -> None:
    """Mean 2, unbiased variance ((1)^2 + 0 + (1)^2) / 2 = 1; the masked 100 counts for nothing."""
    values = torch.tensor([[1.0, 2.0, 3.0, 100.0]])
    mask = torch.tensor([[True, True, True, False]])
    torch.testing.assert_close(whiten(values, mask), torch.tensor([[-1.0, 0.0, 1.0, 0.0]]))
    torch.testing.assert_close(whiten(values, mask, shift_mean=False), torch.tensor([[1.0, 2.0, 3.0, 0.0]]))


def test_whitening_scales_by_the_unbiased_deviation() -> None:
    """Values 0 and 4: mean 2, unbiased variance 8, so +-2 / sqrt(8)."""
    whitened = whiten(torch.tensor([[0.0, 4.0]]), torch.ones(1, 2, dtype=torch.bool))
    torch.testing.assert_close(whitened, torch.tensor([[-1.0, 1.0]]) / math.sqrt(2))


def test_whitening_one_value_gives_a_number() -> None:
    assert whiten(torch.tensor([[3.0]]), torch.ones(1, 1, dtype=torch.bool)).tolist() == [[0.0]]


def test_whitening_on_two_ranks_equals_whitening_everything() -> None:
    torch.manual_seed(0)
    values, mask = torch.randn(6, 5), torch.rand(6, 5) > 0.3
    whole = whiten(values, mask)
    # Each rank's reduction adds what the other contributes at the same point.
    count, total = mask.sum().float(), (values * mask).sum()
    squares = ((values - total / count).square() * mask).sum()
    answers = iter([count, total, squares])
    part = whiten(values[:3], mask[:3], reduce=lambda _: next(answers))
    torch.testing.assert_close(part, whole[:3])


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_chunks_of_logits_give_the_bits_and_gradients_of_the_whole(
    monkeypatch: pytest.MonkeyPatch, precision: torch.dtype
) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(
        "canary_mlflow.training.ppo.losses.CHUNK", 3 * 2 * 50
    )  # three positions at a time; the last has one
    whole = (4 * torch.randn(2, 8, 50)).to(precision)[:, :-1].requires_grad_()
    apart = whole.detach().clone().requires_grad_()
    tokens, weights = torch.randint(0, 50, (2, 7)), torch.randn(2, 7)
    scaled = whole.float() / 0.7
    logps = scaled.gather(-1, tokens.unsqueeze(-1)).squeeze(-1) - scaled.logsumexp(-1)
    found = token_logps(apart, tokens, 0.7)
    (logps * weights).sum().backward()
    (found * weights).sum().backward()
    assert torch.equal(found, logps)
    assert torch.equal(apart.grad, whole.grad)
    torch.testing.assert_close(token_entropy(apart, 0.7), torch.distributions.Categorical(logits=scaled).entropy())


def test_token_logps_and_entropy() -> None:
    logits = torch.tensor([[[0.0, math.log(3.0)], [0.0, 0.0]]])
    tokens = torch.tensor([[1, 0]])
    torch.testing.assert_close(token_logps(logits, tokens), torch.tensor([[math.log(0.75), math.log(0.5)]]))
    expected = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    torch.testing.assert_close(token_entropy(logits), torch.tensor([[expected, math.log(2)]]))


def test_score_stands_after_the_end_and_on_the_last_token_of_a_full_answer() -> None:
    policy_mask = torch.tensor([[True, True, False, False], [True, True, True, True]])
    kl = torch.tensor([[1.0, 2.0, 9.0, 9.0], [0.0, 0.0, 0.0, 1.0]])
    rewards = token_rewards(torch.tensor([5.0, 7.0]), kl, 0.5, policy_mask)
    assert rewards.tolist() == [[-0.5, -1.0, 5.0, 0.0], [0.0, 0.0, 0.0, 6.5]]
    assert value_mask_of(policy_mask).tolist() == [[True, True, True, False], [True, True, True, True]]


def _batch(rows: slice = slice(None), **changes: torch.Tensor) -> Batch:
    fields = {
        "old_logps": torch.zeros(2, 2),
        "values": torch.zeros(2, 2),
        "advantages": torch.tensor([[1.0, -1.0], [2.0, 0.0]]),
        "returns": torch.tensor([[1.0, 0.1], [0.0, 0.0]]),
        "policy_mask": torch.tensor([[True, True], [True, False]]),
        "value_mask": torch.tensor([[True, True], [True, True]]),
    } | changes
    counts = {"policy_tokens": fields["policy_mask"].sum(), "value_tokens": fields["value_mask"].sum()}
    return Batch(**{name: tensor[rows] for name, tensor in fields.items()}, **counts)


CLIP = Clip(cliprange=0.2, cliprange_value=0.2, vf_coef=0.5)


def test_policy_loss_by_hand() -> None:
    """Ratios 1.5 (gain, clipped to 1.2), 0.5 (loss, clipped to 0.8), 1.1 (inside): (-1.2 + 0.8 - 2.2) / 3."""
    new = torch.tensor([[math.log(1.5), math.log(0.5)], [math.log(1.1), 3.0]])
    loss, stats = ppo_loss(new, torch.zeros(2, 2), _batch(returns=torch.zeros(2, 2)), CLIP)
    assert float(stats.policy_loss) == pytest.approx((-1.2 + 0.8 - 2.2) / 3)
    assert float(loss) == pytest.approx((-1.2 + 0.8 - 2.2) / 3)
    assert float(stats.clip_fraction) == pytest.approx(2 / 3)
    assert float(stats.ratio) == pytest.approx((1.5 + 0.5 + 1.1) / 3)
    logs = [math.log(1.5), math.log(0.5), math.log(1.1)]
    assert float(stats.approx_kl) == pytest.approx(0.5 * sum(x * x for x in logs) / 3)
    assert float(stats.max_abs_diff) == pytest.approx(abs(math.log(0.5)))


def test_value_loss_by_hand() -> None:
    """A value of 0.9 moved further than 0.2 from 0: the worse of (0.1)^2 and (0.2 - 1)^2 counts."""
    new_values = torch.tensor([[0.9, 0.1], [0.0, 0.0]])
    loss, stats = ppo_loss(torch.zeros(2, 2), new_values, _batch(advantages=torch.zeros(2, 2)), CLIP)
    assert float(stats.value_loss) == pytest.approx(0.5 * 0.64 / 4)
    assert float(loss) == pytest.approx(0.5 * 0.5 * 0.64 / 4)
    assert float(stats.value_clip_fraction) == pytest.approx(1 / 4)


def test_unmoved_values_never_count_as_clipped() -> None:
    """old + clamp(new - old) would round for values like these."""
    torch.manual_seed(0)
    values = torch.randn(2, 2) * 1e3
    _, stats = ppo_loss(torch.zeros(2, 2), values, _batch(values=values), CLIP)
    assert float(stats.value_clip_fraction) == 0


def test_micro_batches_add_up_to_the_minibatch() -> None:
    torch.manual_seed(0)
    new, values = torch.randn(2, 2), torch.randn(2, 2)
    whole, _ = ppo_loss(new, values, _batch(), CLIP)
    parts = [ppo_loss(new[i : i + 1], values[i : i + 1], _batch(slice(i, i + 1)), CLIP)[0] for i in range(2)]
    assert float(parts[0] + parts[1]) == pytest.approx(float(whole))
