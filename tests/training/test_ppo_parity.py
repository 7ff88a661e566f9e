"""From the same rollout, our PPO computes what TRL 1.12.0's did: against a recorded run, and a live one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from oracle import record
from oracle.trl_ppo import EOS, PAD, word_tokenizer
from transformers import GPTNeoXForCausalLM, PrinterCallback

from canary_mlflow.training.ppo.losses import Batch, Clip, gae, ppo_loss, token_rewards, value_mask_of, whiten
from canary_mlflow.training.ppo.settings import PPOConfig
from canary_mlflow.training.ppo.trainer import PPOTrainer

ROOT = Path(__file__).parents[2]
FIXTURE = ROOT / "tests" / "data" / "trl_ppo_1_12_0.npz"
ORACLE = ROOT / ".oracle"
TOLERANCE = 1e-6


Recording = Mapping[str, np.ndarray]


@pytest.fixture(scope="module")
def recorded() -> Recording:
    return dict(np.load(FIXTURE))


def _tensor(recording: Recording, name: str) -> torch.Tensor:
    return torch.from_numpy(recording[name])


def _model(recording: Recording, name: str) -> GPTNeoXForCausalLM:
    model = GPTNeoXForCausalLM(record.neox_config())
    prefix = f"{name}/"
    state = {key.removeprefix(prefix): torch.from_numpy(w) for key, w in recording.items() if key.startswith(prefix)}
    model.load_state_dict(state)
    return model


def _raw_scores(recording: Recording) -> torch.Tensor:
    """TRL takes the missing-eos penalty off in place."""
    ended = (_tensor(recording, "responses") == EOS).any(1)
    return _tensor(recording, "scores") + record.SETTINGS["missing_eos_penalty"] * ~ended


def _replay(recording: Recording, folder: Path) -> tuple[PPOTrainer, torch.Tensor]:
    """Run our trainer on the recorded answers; also returns, for our rows, the recording's row numbers."""
    answers = {tuple(map(int, query)): row for row, query in enumerate(recording["queries"])}

    def sampler(policy: Any, prompt_ids: torch.Tensor, *_: Any) -> torch.Tensor:
        rows = [answers[tuple(query)] for query in prompt_ids.tolist()]
        return _tensor(recording, "responses")[rows]

    scores = _raw_scores(recording)
    settings = dict(record.SETTINGS)
    args = PPOConfig(
        output_dir=str(folder),
        iterations=1,
        rollout_batch_size=record.ROWS,
        ppo_epochs=settings.pop("num_ppo_epochs"),
        init_kl_coef=settings.pop("kl_coef"),
        temperature=settings.pop("temperature") + 1e-7,  # TRL adds it
        max_new_tokens=record.TOKENS,
        value_head="separate",
        max_grad_norm=0.0,  # TRL's PPO does not clip
        lr_scheduler_type="constant",
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        save_strategy="no",
        **settings,
    )
    trainer = PPOTrainer(
        model=_model(recording, "policy"),
        ref_model=_model(recording, "reference"),
        args=args,
        tokenizer=word_tokenizer(record.VOCABULARY),
        train_prompts=record.prompts(),
        reward=lambda seen: scores[[answers[tuple(query)] for query in seen.prompt_ids.tolist()]],
        sampler=sampler,
    )
    trainer.remove_callback(PrinterCallback)
    _load_value_model(trainer, recording)
    trainer.train()
    rollout = trainer.last_rollout
    assert rollout is not None
    width = recording["queries"].shape[1]
    order = [answers[tuple(query)] for query in rollout.input_ids[:, :width].tolist()]
    return trainer, torch.tensor(order)


def _load_value_model(trainer: PPOTrainer, recording: Recording) -> None:
    backbone = trainer.model.value_backbone
    assert backbone is not None
    prefix = "value/gpt_neox."
    state = {key.removeprefix(prefix): torch.from_numpy(w) for key, w in recording.items() if key.startswith(prefix)}
    backbone.load_state_dict(state)
    with torch.no_grad():
        trainer.model.value_head.weight.copy_(_tensor(recording, "value/score.weight"))


def _assert_parity(recording: Recording, folder: Path) -> None:
    trainer, order = _replay(recording, folder)
    rollout = trainer.last_rollout
    assert rollout is not None
    policy_mask, value_mask = ~_tensor(recording, "padding_mask"), ~_tensor(recording, "padding_mask_p1")
    assert torch.equal(rollout.policy_mask, policy_mask[order])
    assert torch.equal(rollout.value_mask, value_mask[order])
    # A token's KL is a difference of log-probabilities, and another CPU rounds those by a part of *their* size.
    size = _tensor(recording, "logprobs")[order].abs().clamp(min=1)
    for ours, theirs, mask, scale in (
        (rollout.old_logps, "logprobs", policy_mask, 1),
        (rollout.values, "values", value_mask, 1),
        (rollout.advantages, "advantages", policy_mask, 1),
        (rollout.returns, "returns", value_mask, 1),
        (rollout.kl, "kl", policy_mask, size),
    ):
        difference = (ours - _tensor(recording, theirs)[order]) * mask[order] / scale
        assert float(difference.abs().max()) < TOLERANCE, theirs
    row = next(row for row in trainer.state.log_history if "kl" in row)
    # TRL averages the squared difference over padding too, where it is 0.
    padding = policy_mask.float().mean()
    expected = {
        "kl": recording["mean_kl"],
        "policy_loss": recording["pg_loss_stats"].mean(),
        "value_loss": recording["vf_loss_stats"].mean(),
        "clip_fraction": recording["pg_clipfrac_stats"].mean(),
        "value_clip_fraction": recording["vf_clipfrac_stats"].mean(),
        "approx_kl": recording["approxkl_stats"].mean() / padding,
    }
    for name, value in expected.items():
        assert row[name] == pytest.approx(float(value), abs=TOLERANCE), name


def test_one_iteration_equals_the_recorded_trl_run(recorded: Recording, tmp_path: Path) -> None:
    _assert_parity(recorded, tmp_path)


def test_the_recorded_run_clips_pads_and_penalizes(recorded: Recording) -> None:
    """A fixture in which nothing happens would prove nothing."""
    assert 0 < recorded["pg_clipfrac_stats"].mean() < 1
    assert 0 < recorded["vf_clipfrac_stats"].mean() < 1
    assert recorded["padding_mask"].any()
    assert abs(recorded["mean_kl"]) > 0.01
    assert (recorded["queries"] == PAD).any()


def test_pure_functions_equal_trl_step_by_step(recorded: Recording) -> None:
    old, ref = _tensor(recorded, "logprobs"), _tensor(recorded, "ref_logprobs")
    policy_mask = ~_tensor(recorded, "padding_mask")
    settings = record.SETTINGS
    assert torch.equal(value_mask_of(policy_mask), ~_tensor(recorded, "padding_mask_p1"))
    rewards = token_rewards(_tensor(recorded, "scores"), (old - ref) * policy_mask, settings["kl_coef"], policy_mask)
    torch.testing.assert_close(rewards, _tensor(recorded, "rewards"), rtol=0, atol=TOLERANCE)
    values = _tensor(recorded, "values")
    advantages, returns = gae(rewards, values, settings["gamma"], settings["lam"])
    torch.testing.assert_close(returns, _tensor(recorded, "returns"), rtol=0, atol=TOLERANCE)
    whitened = whiten(advantages, policy_mask)
    torch.testing.assert_close(whitened, _tensor(recorded, "advantages"), rtol=0, atol=TOLERANCE)


def test_the_first_update_loss_equals_trl(recorded: Recording) -> None:
    """On the first update nothing has moved, so TRL's own log-probabilities and values are the new ones too."""
    policy_mask = ~_tensor(recorded, "padding_mask")
    value_mask = ~_tensor(recorded, "padding_mask_p1")
    batch = Batch(
        old_logps=_tensor(recorded, "logprobs"),
        values=_tensor(recorded, "values"),
        advantages=_tensor(recorded, "advantages"),
        returns=_tensor(recorded, "returns"),
        policy_mask=policy_mask,
        value_mask=value_mask,
        policy_tokens=policy_mask.sum(),
        value_tokens=value_mask.sum(),
    )
    clip = Clip(**{name: record.SETTINGS[name] for name in ("cliprange", "cliprange_value", "vf_coef")})
    _, stats = ppo_loss(batch.old_logps, batch.values, batch, clip)
    assert float(stats.policy_loss) == pytest.approx(float(recorded["pg_loss_stats"][0, 0, 0]), abs=TOLERANCE)
    assert float(stats.value_loss) == pytest.approx(float(recorded["vf_loss_stats"][0, 0, 0]), abs=TOLERANCE)


@pytest.mark.skipif(not (ORACLE / "trl").is_dir(), reason="no live oracle; `make oracle` brings trl 1.12.0")
def test_one_iteration_equals_a_live_trl_run(tmp_path: Path) -> None:
    target = tmp_path / "live.npz"
    environment = {**os.environ, "PYTHONPATH": f"{ORACLE}{os.pathsep}{ROOT / 'tests'}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "oracle.record", str(target)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    _assert_parity(dict(np.load(target)), tmp_path / "ours")
