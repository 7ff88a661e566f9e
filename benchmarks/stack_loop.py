"""A team's own loop without a Transformers trainer: a session of three trainings, then the version it became.

    python stack_loop.py plain|lightning|accelerate|ppo LEARNING_RATE

Run by benchmarks/stacks.py from the wheel, outside of the checkout, in an environment that has torch and, where it is
asked for, Lightning, Accelerate or TRL 0.11. The model continues lines of words; its evaluation is on lines that it
never saw. `ppo`: the hand loop of TRL 0.11's PPOTrainer, which rewards answers for the letter a.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.functional import cross_entropy

import canary_mlflow

TEXT = "a cat sat on the mat and the dog ran home while birds sang in tall green trees"
WORDS = TEXT.split()
NAMES = sorted(set(WORDS))
STEPS, BATCH, LENGTH = 40, 8, 12
STRIDES = (1, 5, 7, 11)


def lines(seed: int, count: int) -> torch.Tensor:
    """(count, LENGTH + 1) numbers of words: each line goes through the text by one of a few strides."""
    draw = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(WORDS), (count, 1), generator=draw)
    strides = torch.tensor(STRIDES)[torch.randint(len(STRIDES), (count, 1), generator=draw)]
    at = (starts + strides * torch.arange(LENGTH + 1)) % len(WORDS)
    return torch.tensor([NAMES.index(word) for word in WORDS])[at]


class Words(torch.nn.Module):
    """Logits of the next word at each place, by a small recurrent network."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(len(NAMES), 32)
        self.recurrent = torch.nn.GRU(32, 32, batch_first=True)
        self.head = torch.nn.Linear(32, len(NAMES))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.recurrent(self.embedding(rows))
        return self.head(hidden)

    def loss(self, rows: torch.Tensor) -> torch.Tensor:
        return cross_entropy(self(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())


def batches(seed: int) -> Iterator[torch.Tensor]:
    yield from lines(seed + 1, STEPS * BATCH).split(BATCH)


HELD_OUT = lines(0, 64)


def plain(session: Any, seed: int, rate: float) -> None:
    torch.manual_seed(seed)
    model = Words()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    with session.run(seed=seed, max_steps=STEPS, config={"learning_rate": rate}) as run:
        run.watch(model, optimizer)
        for step, rows in enumerate(batches(seed), 1):
            loss = model.loss(rows)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(step, loss=loss)
        with torch.no_grad():
            run.log(STEPS, eval_loss=model.loss(HELD_OUT))


def lightning(session: Any, seed: int, rate: float) -> None:
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.words = Words()
            self.save_hyperparameters({"learning_rate": rate})

        def training_step(self, rows: torch.Tensor, index: int) -> torch.Tensor:
            loss = self.words.loss(rows)
            self.log("train_loss", loss)
            return loss

        def validation_step(self, rows: torch.Tensor, index: int) -> None:
            self.log("val_loss", self.words.loss(rows))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=rate)

    pl.seed_everything(seed, verbose=False)
    trainer = pl.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[canary_mlflow.LightningCallback()],
    )  # fmt: skip
    data = (list(batches(seed)), [HELD_OUT])
    trainer.fit(Module(), *(torch.utils.data.DataLoader(rows, batch_size=None) for rows in data))


def accelerate(session: Any, seed: int, rate: float) -> None:
    from accelerate import Accelerator

    tracker = canary_mlflow.AccelerateTracker(seed=seed, max_steps=STEPS)
    accelerator = Accelerator(cpu=True, log_with=tracker)
    accelerator.init_trackers("words", config={"learning_rate": rate})
    torch.manual_seed(seed)
    model = Words()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=rate))
    tracker.watch(model, optimizer)
    for step, rows in enumerate(batches(seed), 1):
        loss = model.loss(rows)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        accelerator.log({"train_loss": loss.item()}, step=step)
    with torch.no_grad():
        accelerator.log({"eval_loss": model.loss(HELD_OUT).item()}, step=STEPS)
    accelerator.end_training()


def ppo(session: Any, seed: int, rate: float) -> None:
    from stack_session import LINES, tiny
    from transformers import set_seed
    from trl import AutoModelForCausalLMWithValueHead, PPOConfig, PPOTrainer

    tokenizer = tiny("base")
    set_seed(seed)
    rate = min(rate / 5, 0.02)  # of what the supervised loops learn well with; beyond, its samples have no probability
    settings = PPOConfig(batch_size=16, mini_batch_size=8, ppo_epochs=2, learning_rate=rate, seed=seed)
    model, reference = (AutoModelForCausalLMWithValueHead.from_pretrained("base") for _ in range(2))
    trainer = PPOTrainer(settings, model, reference, tokenizer)
    prompts = [torch.tensor(tokenizer(line[:10])["input_ids"]) for line in LINES]
    sampling = {"max_new_tokens": 8, "min_length": -1, "do_sample": True, "top_k": 0, "pad_token_id": 0}
    with session.run(seed=seed, algo="ppo", max_steps=STEPS, config={"learning_rate": rate}) as run:
        run.watch(trainer.model, trainer.optimizer)
        for step in range(1, STEPS + 1):
            queries = [prompts[(16 * step + place) % len(prompts)] for place in range(16)]
            responses = trainer.generate(queries, return_prompt=False, **sampling)
            rewards = [torch.tensor(float(answer.count("a"))) for answer in tokenizer.batch_decode(responses)]
            run.log(step, trainer.step(queries, responses, rewards))


LOOPS: dict[str, Callable[[Any, int, float], None]] = {
    "plain": plain,
    "lightning": lightning,
    "accelerate": accelerate,
    "ppo": ppo,
}


def main(loop: str, rate: float) -> None:
    with canary_mlflow.session(f"tiny-{loop}") as session:
        for seed in range(3):
            LOOPS[loop](session, seed, rate)
    print("version", canary_mlflow.register(session.session_id))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
