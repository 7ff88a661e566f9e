"""The progress bar of a run: step, loss, time left."""

from __future__ import annotations

import sys
from typing import Any

from tqdm import tqdm
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

QUIET_INTERVAL = 10.0  # seconds between lines where no terminal redraws them


class ProgressBar(TrainerCallback):
    """One line on standard error, redrawn in place on a terminal."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.bar: tqdm[Any] | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if state.is_world_process_zero:
            interval = 0.1 if sys.stderr.isatty() else QUIET_INTERVAL
            self.bar = tqdm(
                total=state.max_steps,
                desc=self.label,
                unit="step",
                mininterval=interval,
                dynamic_ncols=True,
                bar_format="{desc} {percentage:3.0f}% |{bar:20}| step {n_fmt}/{total_fmt}{postfix} eta {remaining}",
            )

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self.bar is not None:
            self.bar.update(state.global_step - self.bar.n)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        loss = (logs or {}).get("loss")
        if self.bar is not None and loss is not None:
            self.bar.set_postfix_str(f"loss {float(loss):.4f}", refresh=False)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the line; also called when training breaks off."""
        if self.bar is not None:
            self.bar.close()
            self.bar = None
