"""The settings of PPO on top of TrainingArguments, checked and turned into the sizes that Trainer works with."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import TrainingArguments

from canary_mlflow.training.errors import SetupError


@dataclass
class PPOConfig(TrainingArguments):
    """TrainingArguments of a PPO run.

    Sizes are given by iterations, rollout_batch_size, ppo_epochs, num_minibatches and
    gradient_accumulation_steps; max_steps, num_train_epochs and per_device_train_batch_size follow
    from them and must not be set. Steps (warm-up, schedule, global_step) are optimizer steps; an
    iteration has ppo_epochs x num_minibatches of them. Raises SetupError for sizes that do not divide.
    """

    iterations: int = 50
    rollout_batch_size: int = 16  # rows per iteration and device
    ppo_epochs: int = 4
    num_minibatches: int = 1
    init_kl_coef: float = 0.2
    target_kl: float | None = 6.0  # nats per sequence; None: the coefficient stays
    kl_horizon: int = 320  # sequences
    cliprange: float = 0.2
    cliprange_value: float = 0.2
    vf_coef: float = 0.1
    gamma: float = 1.0
    lam: float = 0.95
    max_new_tokens: int = 64
    max_prompt_length: int = 128  # tokens; longer prompts lose their beginning
    temperature: float = 1.0
    whiten_rewards: bool = False
    missing_eos_penalty: float = 0.0  # subtracted from the score of an answer that does not end
    value_head: str = "shared"  # shared: on the policy's last hidden state; separate: on a separate backbone

    def __post_init__(self) -> None:
        self._check_sizes()
        self.max_steps = -1
        self.num_train_epochs = self.iterations
        self.per_device_train_batch_size = self.rollout_batch_size // (
            self.num_minibatches * self.gradient_accumulation_steps
        )
        # The loader does not yield dataset rows; the per-iteration metrics need a log line per
        # optimizer step; and a filtered NaN would look like a perfect loss.
        self.remove_unused_columns = False
        self.logging_strategy = "steps"
        self.logging_steps = 1
        self.logging_first_step = False
        self.logging_nan_inf_filter = False
        self.include_num_input_tokens_seen = "no"
        # The KL coefficient is a callback's state, which Trainer restores only if told to.
        self.restore_callback_states_from_checkpoint = True
        super().__post_init__()
        # Resuming in the middle of an iteration would need the rollout itself.
        if self.save_strategy not in ("no", "epoch"):
            raise SetupError(
                f"save_strategy is {str(self.save_strategy)!r}; expected 'no' or 'epoch': "
                "a PPO checkpoint falls between two iterations"
            )
        if self.n_gpu > 1:
            raise SetupError(f"{self.n_gpu} GPUs in one process; expected one process per GPU: start it with torchrun")

    @property
    def updates_per_iteration(self) -> int:
        """Optimizer steps in one iteration."""
        return self.ppo_epochs * self.num_minibatches

    @property
    def micro_batches_per_iteration(self) -> int:
        """Forward and backward passes in one iteration."""
        return self.updates_per_iteration * self.gradient_accumulation_steps

    def _check_sizes(self) -> None:  # single values: algorithms.ppo.Settings.check
        parts = self.num_minibatches * self.gradient_accumulation_steps
        if self.rollout_batch_size % parts:
            raise SetupError(
                f"{self.rollout_batch_size} rows per iteration do not split into {self.num_minibatches} minibatches "
                f"x {self.gradient_accumulation_steps} accumulation steps; expected a multiple of {parts}"
            )
