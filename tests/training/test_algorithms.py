"""Each algorithm that TRL trains for us: one short real training, and what its first steps must show.

`tests/training/test_faults.py --full` strikes them with every fault; what is broken here on purpose is small.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from forked_runs import ForkedRuns

from canary_mlflow.gates import Run
from canary_mlflow.gates.measured import by_layer
from canary_mlflow.tracking.describing.compact import expanded
from canary_mlflow.tracking.probes.invariants.beginnings import FreshAnswers, steps_on_answers
from canary_mlflow.tracking.probes.invariants.definitions import PairLoss
from canary_mlflow.tracking.probes.invariants.rollouts import SampledPolicy
from canary_mlflow.tracking.reading.samples import FILE, read
from canary_mlflow.training.assets.tiny import tiny_model_folder
from canary_mlflow.training.datasets import as_judged
from canary_mlflow.training.loading import load_tokenizer

STEPS = 10
GROUPS = ["train.batch_size=8", "algo.num_generations=4", "tier.eval_rows=8"]
FEW = ["tier.train_rows=64", "tier.eval_rows=8"]
WORDS = {"grpo": GROUPS, "rloo": GROUPS, "kto": FEW, "reward": FEW}
FIRST: dict[str, dict[str, float]] = {
    "grpo": {"kl": 0.0, "clip_fraction": 0.0},
    "rloo": {"kl": 0.0, "clip_fraction": 0.0},
    "kto": {"loss": 0.5, "kl": 0.0},
    "reward": {},  # near ln 2: the invariant says how near
}
CHECKED = {"kto": "reference start", "reward": "pair loss"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> ForkedRuns:
    return ForkedRuns(tmp_path_factory.mktemp("algorithms"))


def trained(runs: ForkedRuns, algo: str, *words: str) -> Run:
    return runs.train(f"algo={algo}", f"train.max_steps={STEPS}", *WORDS.get(algo, []), *words)


@pytest.mark.parametrize("algo", WORDS)
def test_a_short_training_is_whole_and_starts_as_it_must(runs: ForkedRuns, algo: str) -> None:
    run = trained(runs, algo)
    assert run.completed, run.reason
    said = expanded(runs.client.get_run(run.run_id).data.tags)
    assert said["canary.invariants"] == "ok"
    for name, value in FIRST[algo].items():
        assert float(run.series[name].values[0]) == pytest.approx(value, abs=1e-6)
    assert {"eval_reward", "eval_loss"} & set(run.series)
    assert {layer.rpartition(".")[2] for layer, (moved,) in by_layer([run]).items() if moved > 0} >= {"0", "1"}
    assert CHECKED.get(algo, "sampled policy") in said["canary.invariants_checked"]


TOLD = """
import os

from huggingface_hub import constants
from huggingface_hub.utils import _telemetry

os.environ.pop("CI", None)  # with it TRL sends nothing
constants.is_offline_mode = lambda: False
constants.HF_HUB_DISABLE_TELEMETRY = {disabled}
_telemetry._start_telemetry_thread = lambda: open("{file}", "w").close()
"""


@pytest.mark.parametrize(("disabled", "told"), [("constants.HF_HUB_DISABLE_TELEMETRY", False), ("False", True)])
def test_a_run_tells_the_hub_nothing_of_itself(runs: ForkedRuns, disabled: str, told: bool, tmp_path: Path) -> None:
    patch = TOLD.format(disabled=disabled, file=tmp_path / "told")
    assert runs.train("algo=sft", "train.max_steps=1", *FEW, patch=patch).completed
    assert (tmp_path / "told").exists() == told


def test_a_run_keeps_what_it_answered_unless_it_is_told_not_to(runs: ForkedRuns) -> None:
    kinds = {}
    for algo in WORDS:
        run = trained(runs, algo)
        files = {item.path for item in runs.client.list_artifacts(run.run_id)}
        text = runs.client.download_artifacts(run.run_id, FILE) if FILE in files else None
        kinds[algo] = {one.kind for one in read(Path(text).read_text(), FILE)} if text else set()
    drawn = {"fixed", "best", "worst"}
    assert kinds == {"grpo": drawn, "rloo": drawn, "kto": {"fixed"}, "reward": set()}
    private = trained(runs, "kto", "tracking.samples=false")
    assert FILE not in {item.path for item in runs.client.list_artifacts(private.run_id)}


@pytest.fixture
def experts(tmp_path: Path) -> Path:
    """A mixture of experts, whose balance TRL has the model compute."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    own = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16}
    own |= {"eos_token_id": 0, "output_router_logits": True}
    Qwen3MoeForCausalLM(Qwen3MoeConfig(vocab_size=512, **sizes, **own)).save_pretrained(tmp_path)
    load_tokenizer(tiny_model_folder()).save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize("algo", ["sft", "grpo", "ppo"])
def test_a_mixture_of_experts_answers_in_and_after_its_training(runs: ForkedRuns, experts: Path, algo: str) -> None:
    run = trained(runs, algo, "model=local", f"model.path={experts}")
    assert run.completed, run.reason
    kept = Path(runs.client.download_artifacts(run.run_id, FILE)).read_text()
    assert "fixed" in {one.kind for one in read(kept, FILE)}


def test_a_reward_models_loss_starts_near_ln_2(runs: ForkedRuns) -> None:
    run = trained(runs, "reward")
    assert float(run.series["loss"].values[0]) == pytest.approx(math.log(2), abs=0.02)


@pytest.mark.parametrize(("loss", "broken"), [(0.70, False), (0.60, True), (0.80, True)])
def test_a_loss_that_is_not_of_pairs_breaks_it(loss: float, broken: bool) -> None:
    invariant = PairLoss()
    invariant._applies = True
    row = {"loss": loss, "reward_margin": -0.01, "trl/max_reward": 0.2, "trl/min_reward": -0.2}
    invariant.row_closed(1, row)
    assert bool(invariant.broken) == broken


def test_kto_trains_on_another_order_with_another_seed(tiny_rows: Any) -> None:
    one, again, other = (as_judged(tiny_rows, seed=seed) for seed in (1, 1, 2))
    assert one["completion"] == again["completion"] != other["completion"]
    assert sorted(one["completion"]) == sorted(other["completion"])
    assert sum(one["label"]) == len(one) // 2


@pytest.fixture
def tiny_rows() -> Any:
    from datasets import Dataset

    return Dataset.from_list([{"prompt": f"p{i}", "chosen": f"a{i}", "rejected": f"b{i}"} for i in range(8)])


def test_answers_are_compared_with_the_policy_that_drew_them(runs: ForkedRuns) -> None:
    run = trained(runs, "grpo")
    checked = expanded(runs.client.get_run(run.run_id).data.tags)["canary.invariants_checked"]
    assert {"reference start", "fresh answers", "sampled policy"} <= set(checked.split(", "))
    assert len(run.series["sampling_mismatch"].values) == STEPS


def draws(tokens: int, sampled_at: float, trained_at: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Log-probabilities and entropies [16, tokens / 16] of tokens drawn at one temperature and scored at another."""
    generator = torch.Generator().manual_seed(1)
    logits = 3 * torch.randn(tokens, 50, generator=generator)
    drawn = torch.multinomial((logits / sampled_at).softmax(-1), 1, generator=generator)
    scored = (logits / trained_at).log_softmax(-1)
    shape = (16, tokens // 16)
    entropies = -(scored.exp() * scored).sum(-1)
    return scored.gather(1, drawn).view(shape), entropies.view(shape), torch.ones(shape)


@pytest.mark.parametrize(("trained_at", "said"), [(0.9, ""), (1.0, "nats per token")])
def test_a_temperature_that_is_left_out_is_seen(trained_at: float, said: str) -> None:
    invariant, row = SampledPolicy(), {}
    for _ in range(4):
        invariant._add(*draws(2048, 0.9, trained_at))
        invariant.step_ended(row)
    assert said in invariant.broken
    assert bool(invariant.broken) == bool(said)
    assert abs(row["sampling_mismatch"]) < 0.02 if not said else row["sampling_mismatch"] > 0.02


def test_a_clipped_ratio_on_fresh_answers_breaks_it_and_a_later_one_does_not() -> None:
    for step, broken in ((1, True), (2, False), (3, True)):
        invariant = FreshAnswers()
        invariant._every = 2
        invariant.row_closed(step, {"clip_fraction": 0.1})
        assert bool(invariant.broken) == broken, step


@pytest.mark.parametrize(
    ("arguments", "steps"),
    [((1, 1, 1), 1), ((2, 1, 1), 2), ((1, 4, 2), 2), ((1, 1, 2), 0), ((1, 3, 2), 0)],
)
def test_how_many_steps_are_made_on_one_batch_of_answers(arguments: tuple[int, int, int], steps: int) -> None:
    names = ("num_iterations", "steps_per_generation", "gradient_accumulation_steps")
    assert steps_on_answers(dict(zip(names, arguments, strict=True))) == steps


def flat(trainer: Any) -> torch.Tensor:
    from canary_mlflow.training.config import FaultConfig
    from canary_mlflow.training.faults.learning import FlatRewards

    FlatRewards().install(trainer, FaultConfig(name="flat_rewards"))
    scores: torch.Tensor = trainer._calculate_rewards()
    return scores


def test_flat_rewards_take_the_spread_within_groups_and_leave_an_evaluation_alone() -> None:
    class Trainer:
        num_generations = 2
        model = torch.nn.Linear(1, 1)

        def _calculate_rewards(self) -> torch.Tensor:
            return torch.tensor([[1.0], [3.0], [5.0], [5.0]])

    assert flat(Trainer()).flatten().tolist() == [2.0, 2.0, 5.0, 5.0]
    Trainer.model.eval()
    assert flat(Trainer()).flatten().tolist() == [1.0, 3.0, 5.0, 5.0]


def test_rewards_read_token_ids_as_trl_gives_them() -> None:
    from canary_mlflow.training.group_trainer import answers_of

    answers = answers_of([[5], [6, 7]], [[1, 2, 3], [4]], padding=9, device=torch.device("cpu"))
    assert answers.prompt_ids.tolist() == [[9, 5], [6, 7]]
    assert answers.prompt_mask.tolist() == [[False, True], [True, True]]
    assert answers.response_ids.tolist() == [[1, 2, 3], [4, 9, 9]]
    assert answers.response_mask.sum(1).tolist() == [3, 1]
