"""Sampling: the cache, padding, ends, foreign generation settings, and non-finite numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_ppo import EOS, PAD, PROMPTS, tiny_model, tiny_tokenizer
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, StaticCache

from canary_mlflow.training.errors import InstabilityError, SetupError
from canary_mlflow.training.ppo.actor_critic import response_logits
from canary_mlflow.training.ppo.generation import Prompts, SamplingSpec, _fixed_cache, response_mask_of, sample
from canary_mlflow.training.ppo.trainer import Stream, prompt_rows, torch_stream

CPU = torch.device("cpu")
TOKENS = 8


def _spec(**changes: Any) -> SamplingSpec:
    options = {"max_new_tokens": TOKENS, "temperature": 1.0, "eos_token_id": EOS, "pad_token_id": PAD}
    return SamplingSpec(**options | changes)


def _draw(model: Any, ids: torch.Tensor, mask: torch.Tensor, **changes: Any) -> torch.Tensor:
    return sample(model.eval(), ids, mask, _spec(**changes), torch_stream(CPU, 0, Stream.SAMPLING), 0)


def _absolute_positions() -> GPT2LMHeadModel:
    """A model whose positions are absolute, and so can be wrong under padding."""
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=280, n_embd=32, n_layer=2, n_head=2, initializer_range=0.3))


@pytest.mark.parametrize("build", [tiny_model, _absolute_positions])
def test_drawing_with_the_cache_sees_what_a_full_forward_pass_sees(build: Any) -> None:
    model = build().eval()
    ids, mask = Prompts(PROMPTS, tiny_tokenizer(), 32, PAD).batch(range(6), CPU)
    assert not mask.all()  # there is padding
    drawn = _draw(model, ids, mask, temperature=1e-4)  # practically the most likely token
    full = torch.cat([mask.long(), response_mask_of(drawn, EOS).long()], dim=1)
    with torch.no_grad():
        best = response_logits(model, torch.cat([ids, drawn], dim=1), full, drawn.shape[1]).argmax(-1)
    kept = response_mask_of(drawn, EOS)
    assert torch.equal(best[kept], drawn[kept])


@pytest.mark.parametrize("build", [tiny_model, _absolute_positions])
def test_left_padding_changes_nothing(build: Any) -> None:
    model = build().eval()
    ids, mask = Prompts(PROMPTS[:1], tiny_tokenizer(), 32, PAD).batch([0], CPU)
    padded_ids = torch.cat([torch.full((1, 5), PAD), ids], dim=1)
    padded_mask = torch.cat([torch.zeros(1, 5, dtype=torch.bool), mask], dim=1)
    drawn = _draw(model, ids, mask)
    assert torch.equal(drawn, _draw(model, padded_ids, padded_mask))
    tail = torch.ones_like(drawn)
    with torch.no_grad():
        plain = response_logits(model, torch.cat([ids, drawn], 1), torch.cat([mask.long(), tail], 1), TOKENS)
        padded = response_logits(
            model, torch.cat([padded_ids, drawn], 1), torch.cat([padded_mask.long(), tail], 1), TOKENS
        )
    torch.testing.assert_close(plain, padded, rtol=0, atol=2e-5)


def _llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(vocab_size=280, num_key_value_heads=2, initializer_range=0.3, **shape))


@pytest.mark.parametrize("build", [tiny_model, _absolute_positions, _llama])
@pytest.mark.parametrize("end", [EOS, 7])  # 7: rows end at different tokens, the last before the last look
def test_a_gpu_is_asked_seldom_and_draws_the_same(build: Any, end: int) -> None:
    model = build().eval()
    assert isinstance(_fixed_cache(model, 40), StaticCache)
    ids, mask = Prompts(PROMPTS, tiny_tokenizer(), 32, PAD).batch(range(6), CPU)
    spec = _spec(max_new_tokens=40, eos_token_id=end)
    drawn = [
        sample(model, ids, mask, spec, torch_stream(CPU, 0, Stream.SAMPLING), 0, as_on_gpu=gpu) for gpu in (False, True)
    ]
    assert torch.equal(*drawn)


@pytest.mark.parametrize("build", [tiny_model, _absolute_positions, _llama])
def test_a_cache_of_fixed_size_takes_what_autocast_leaves_in_two_precisions(build: Any) -> None:
    """As on a GPU, where weights are float32 and products bf16: keys are turned in float32, values are not."""
    model = build().eval()
    ids, mask = Prompts(PROMPTS, tiny_tokenizer(), 32, PAD).batch(range(6), CPU)
    spec = _spec(max_new_tokens=20, temperature=1e-4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        grown, fixed = (
            sample(model, ids, mask, spec, torch_stream(CPU, 0, Stream.SAMPLING), 0, as_on_gpu=gpu)
            for gpu in (False, True)
        )
    assert (grown[:, :4] == fixed[:, :4]).float().mean() > 0.9  # a tie may be rounded the other way


def test_a_gpu_names_the_token_whose_logits_were_no_numbers() -> None:
    class Breaking(torch.nn.Module):
        calls = 0

        def forward(self, input_ids: torch.Tensor, **_: Any) -> Any:
            self.calls += 1
            logits = torch.zeros(len(input_ids), 1, 10)
            logits[1] = float("nan") if self.calls == 3 else 0.0
            return type("Output", (), {"logits": logits, "past_key_values": None})()

    ids = torch.full((2, 3), 5)
    with pytest.raises(InstabilityError, match="logits for answer token 3 are not finite"):
        sample(
            Breaking(),
            ids,
            torch.ones_like(ids).bool(),
            _spec(),
            torch_stream(CPU, 0, Stream.SAMPLING),
            0,
            as_on_gpu=True,
        )


def test_settings_left_in_the_model_do_not_leak_into_sampling() -> None:
    ids, mask = Prompts(PROMPTS, tiny_tokenizer(), 32, PAD).batch(range(4), CPU)
    plain = _draw(tiny_model(), ids, mask)
    model = tiny_model()
    model.generation_config.repetition_penalty = 50.0
    model.generation_config.suppress_tokens = list(range(2, 200))
    model.generation_config.typical_p = 0.1
    assert torch.equal(plain, _draw(model, ids, mask))


def test_rows_end_at_end_of_text_and_are_padded_after() -> None:
    class Ending(torch.nn.Module):
        """Row 0 ends at its second token, row 1 never does."""

        step = 0

        def forward(self, input_ids: torch.Tensor, **_: Any) -> Any:
            logits = torch.full((len(input_ids), 1, 10), -1e9)
            logits[:, :, 7] = 0
            if self.step == 1:
                logits[0] = -1e9
                logits[0, :, EOS] = 0
            self.step += 1
            return type("Output", (), {"logits": logits, "past_key_values": None})()

    ids = torch.full((2, 3), 5)
    drawn = _draw(Ending(), ids, torch.ones_like(ids).bool(), max_new_tokens=4)
    assert drawn.tolist() == [[7, EOS, PAD, PAD], [7, 7, 7, 7]]
    assert _draw(Ending(), ids[:1], torch.ones(1, 3).bool()).tolist() == [[7, EOS]]  # and stops early


def test_the_mask_goes_by_position_where_padding_is_the_end_token() -> None:
    answers = torch.tensor([[7, EOS, EOS, EOS], [EOS, EOS, EOS, EOS], [7, 7, 7, 7]])
    mask = response_mask_of(answers, EOS)
    assert mask.tolist() == [[True, True, False, False], [True, False, False, False], [True] * 4]


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_logits_are_checked_before_they_are_sampled_from(poison: float) -> None:
    model = tiny_model()
    with torch.no_grad():
        model.lm_head.weight[3] = poison
    ids, mask = Prompts(PROMPTS, tiny_tokenizer(), 32, PAD).batch(range(2), CPU)
    with pytest.raises(InstabilityError, match="step 12: the policy's logits for answer token 1") as caught:
        sample(model.eval(), ids, mask, _spec(), torch_stream(CPU, 0, Stream.SAMPLING), 12)
    assert caught.value.step == 12


def test_prompts_lose_their_beginning() -> None:
    tokenizer = tiny_tokenizer()
    whole = Prompts(PROMPTS[:1], tokenizer, 100, PAD).rows[0]
    assert len(whole) > 3
    assert Prompts(PROMPTS[:1], tokenizer, 3, PAD).rows[0] == whole[-3:]


def test_empty_prompts_are_refused() -> None:
    with pytest.raises(SetupError, match="prompt 2 has no tokens"):
        Prompts(["a", ""], tiny_tokenizer(), 8, PAD)
    with pytest.raises(SetupError, match="no prompts"):
        Prompts([], tiny_tokenizer(), 8, PAD)


def test_every_prompt_comes_once_per_pass_whatever_the_ranks() -> None:
    """10 prompts, 4 rows: a pass is 2.5 iterations; two ranks share each iteration."""
    stream = [row for i in range(5) for row in prompt_rows(0, i, rank=0, world=1, rows=4, total=10)]
    assert sorted(stream[:10]) == list(range(10))
    assert sorted(stream[10:]) == list(range(10))
    assert stream[:10] != stream[10:]
    shared = [
        row for i in range(5) for rank in (0, 1) for row in prompt_rows(0, i, rank=rank, world=2, rows=2, total=10)
    ]
    assert shared == stream
    one_pass = {"rank": 0, "world": 1, "rows": 10, "total": 10}
    assert prompt_rows(0, 0, **one_pass) != prompt_rows(1, 0, **one_pass)


def test_streams_are_keyed() -> None:
    def first(*key: int) -> float:
        return float(torch.rand(1, generator=torch_stream(CPU, 0, Stream.SAMPLING, *key)))

    assert first(3, 0) == first(3, 0)
    assert len({first(3, 0), first(4, 0), first(3, 1)}) == 3
