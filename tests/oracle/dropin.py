"""On trl 1.12.0: a plain script of its PPOTrainer, the last there was, and our own SFT and DPO canaries.

    make oracle
    PYTHONPATH=.oracle:.:tests python tests/oracle/dropin.py STORE FOLDER

Prints one JSON line: algorithm → run id. tests/canary_mlflow/test_dropin_oracle.py looks at the runs.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from canaries import a_config
from tiny_trainers import PAIRS, save_tiny
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer, set_seed
from trl_ppo import trl_trainer

from canary_mlflow import CanaryCallback
from canary_mlflow.training.algorithms import build
from canary_mlflow.training.config import TrainConfig
from canary_mlflow.training.devices import settle
from canary_mlflow.training.parts import build_parts

ROWS, UPDATES = 4, 3


def ppo(tiny: str, callbacks: list[Any]) -> Any:
    """TRL's own PPO, whose reference is a copy that it makes itself."""
    from trl.experimental.ppo import PPOTrainer

    set_seed(1)  # it seeds nothing itself
    return trl_trainer(
        PPOTrainer,
        policy=AutoModelForCausalLM.from_pretrained(tiny),
        reference=None,
        value=AutoModelForSequenceClassification.from_pretrained(tiny, num_labels=1),
        rule=lambda ids, mask: (ids % 7 == 0).float().cumsum(1),
        tokenizer=AutoTokenizer.from_pretrained(tiny, padding_side="left"),
        prompts=[pair["prompt"] for pair in PAIRS],
        rows=ROWS,
        iterations=UPDATES,
        callbacks=callbacks,
        num_ppo_epochs=2,
        response_length=6,
    )


def own(algo: str, folder: Path, callbacks: list[Any]) -> Any:
    """The trainer of a canary of ours."""
    config = a_config(algo=algo)
    config.train = TrainConfig(
        learning_rate=1e-3,
        max_steps=UPDATES,
        batch_size=ROWS,
        gradient_accumulation_steps=1,
        max_length=256,
        warmup_steps=0,
        max_grad_norm=1.0,
        weight_decay=0.0,
        lr_scheduler="constant",
        optimizer="adamw_torch",
    )
    config.seed = 1
    set_seed(config.seed)
    device = settle(config.hardware)
    return build(config, build_parts(config, device), device, folder / algo, callbacks)


def main(store: str, folder: Path) -> None:
    """Train each once."""
    tiny = save_tiny(str(folder / "tiny"))
    found = {}
    for algo in ("ppo", "sft", "dpo"):
        canary = CanaryCallback(tracking_uri=store, experiment="recorded", system_metrics=False)
        trainer = ppo(tiny, [canary]) if algo == "ppo" else own(algo, folder, [canary])
        trainer.train()
        found[algo] = canary.run_id
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
