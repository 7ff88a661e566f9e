"""Rule rewards on answers short enough to count by eye, a real reward model, and rewards that cannot be built."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_ppo import EOS, PAD, tiny_tokenizer
from transformers import GPTNeoXConfig, GPTNeoXForSequenceClassification

from canary_mlflow.training.errors import SetupError
from canary_mlflow.training.ppo.generation import response_mask_of
from canary_mlflow.training.reward_config import RewardConfig
from canary_mlflow.training.rewards import Answers, build_reward

CPU = torch.device("cpu")


def _answers(rows: list[list[int]], prompt: list[int] | None = None) -> Answers:
    response = torch.tensor(rows)
    prompts = torch.tensor([prompt or [5, 6]] * len(rows))
    return Answers(
        prompt_ids=prompts,
        prompt_mask=torch.ones_like(prompts).bool(),
        response_ids=response,
        response_mask=response_mask_of(response, EOS),
    )


def test_length_counts_tokens_up_to_the_end() -> None:
    reward = build_reward(RewardConfig(kind="length", scale=10.0, target=2), tiny_tokenizer(), CPU)
    scores = reward(_answers([[7, EOS, PAD, PAD], [7, 7, 7, 7], [EOS, PAD, PAD, PAD]]))
    assert scores.tolist() == [0.0, -10.0, -5.0]


def test_scale_and_target_change_the_score() -> None:
    answers = _answers([[7, 7, 7, 7]])
    scores = {
        (scale, target): float(
            build_reward(RewardConfig(kind="length", scale=scale, target=target), None, CPU)(answers)
        )
        for scale in (1.0, 10.0)
        for target in (1, 2)
    }
    assert scores == {(1.0, 1): -3.0, (1.0, 2): -1.0, (10.0, 1): -30.0, (10.0, 2): -10.0}


def test_token_share_counts_first_letters() -> None:
    tokenizer = tiny_tokenizer()
    c, d, s = (tokenizer.convert_tokens_to_ids(letter) for letter in "cds")
    reward = build_reward(RewardConfig(kind="token_share", scale=10.0, tokens=["c", "S"]), tokenizer, CPU)
    assert reward(_answers([[c, d, s, d], [d, d, d, d], [c, EOS, c, c]])).tolist() == [5.0, 0.0, 5.0]


def test_a_short_answer_of_wanted_tokens_is_not_as_good_as_a_long_one() -> None:
    tokenizer = tiny_tokenizer()
    c = tokenizer.convert_tokens_to_ids("c")
    reward = build_reward(RewardConfig(kind="token_share", scale=10.0, tokens=["c"], min_tokens=4), tokenizer, CPU)
    assert reward(_answers([[c, EOS, PAD, PAD], [c, c, c, c]])).tolist() == [2.5, 10.0]


def test_ids_beyond_the_tokenizer_are_never_wanted() -> None:
    tokenizer = tiny_tokenizer()
    reward = build_reward(RewardConfig(kind="token_share", scale=1.0, tokens=["c"]), tokenizer, CPU)
    assert float(reward(_answers([[len(tokenizer), len(tokenizer) + 5]]))) == 0


def _reward_model(folder: Path, labels: int = 1) -> Path:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = GPTNeoXConfig(vocab_size=280, num_labels=labels, initializer_range=0.5, pad_token_id=PAD, **sizes)
    GPTNeoXForSequenceClassification(config).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def test_a_reward_model_reads_prompt_and_answer(tmp_path: Path) -> None:
    path = str(_reward_model(tmp_path))
    tokenizer = tiny_tokenizer()
    one = build_reward(RewardConfig(kind="model", scale=1.0, path=path), tokenizer, CPU)
    ten = build_reward(RewardConfig(kind="model", scale=10.0, path=path), tokenizer, CPU)
    answers = _answers([[70, 71, EOS, PAD], [90, 91, 92, 93]], prompt=[80, 81])
    with torch.no_grad():
        scores = one(answers)
        assert scores.shape == (2,)
        assert scores[0] != scores[1]
        torch.testing.assert_close(ten(answers), 10 * scores)
        # What stands after the end is not read; the prompt is.
        torch.testing.assert_close(one(_answers([[70, 71, EOS, 99], [90, 91, 92, 93]], prompt=[80, 81])), scores)
        assert one(_answers([[70, 71, EOS, PAD], [90, 91, 92, 93]], prompt=[82, 81]))[0] != scores[0]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (RewardConfig(kind="token_share", tokens=["€"]), "reward tokens are"),
        (RewardConfig(kind="model", path="./nowhere"), "./nowhere is not a folder"),
    ],
)
def test_a_reward_that_cannot_be_built_says_so(spec: RewardConfig, words: str) -> None:
    with pytest.raises(SetupError) as caught:
        build_reward(spec, tiny_tokenizer(), CPU)
    assert words in str(caught.value)


def test_a_classifier_with_several_labels_is_no_reward_model(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="has 3 labels; expected 1"):
        build_reward(RewardConfig(kind="model", path=str(_reward_model(tmp_path, labels=3))), tiny_tokenizer(), CPU)


def test_a_folder_without_a_model_is_no_reward_model(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"lacks config\.json"):
        build_reward(RewardConfig(kind="model", path=str(tmp_path)), tiny_tokenizer(), CPU)
