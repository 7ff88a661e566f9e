"""Quality on held-out data, measured once, when training is done."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments


class EvaluateAtEnd(TrainerCallback):
    """Asks the trainer for one evaluation after its last optimizer step."""

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.global_step >= state.max_steps:
            control.should_evaluate = True
