"""The typed shape of a composed canary: every key a user may set, with its unit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional

from omegaconf import MISSING

# OmegaConf reads these annotations at run time, hence typing's Optional/Dict/List.


@dataclass
class SFTAlgo:
    """Supervised fine-tuning on prompt + chosen answer (trl.SFTTrainer)."""

    name: str = MISSING


@dataclass
class DPOAlgo:
    """Direct preference optimisation (trl.DPOTrainer)."""

    name: str = MISSING
    beta: float = MISSING
    loss_type: str = MISSING


@dataclass
class RewardConfig:
    """The score that PPO maximises: a rule on the answer's tokens, or a reward model."""

    kind: str = MISSING  # length | token_share | model
    scale: float = MISSING  # multiplies the raw score
    target: int = MISSING  # length: the wanted number of answer tokens
    tokens: List[str] = field(default_factory=list)  # token_share: first letters that count
    min_tokens: int = MISSING  # token_share: a shorter answer counts as if it had so many
    path: Optional[str] = None  # model: folder or hub id of a sequence classifier


@dataclass
class PPOAlgo:
    """Proximal policy optimisation (training.ppo), with the knobs under their usual names."""

    name: str = MISSING
    ppo_epochs: int = MISSING
    num_minibatches: int = MISSING
    init_kl_coef: float = MISSING
    target_kl: float = MISSING  # nats per sequence
    kl_horizon: int = MISSING  # sequences over which the KL coefficient may double
    cliprange: float = MISSING
    cliprange_value: float = MISSING
    vf_coef: float = MISSING
    gamma: float = MISSING
    lam: float = MISSING
    max_new_tokens: int = MISSING
    max_prompt_length: int = MISSING
    temperature: float = MISSING
    whiten_rewards: bool = MISSING
    missing_eos_penalty: float = MISSING
    value_head: str = MISSING  # shared | separate
    reward: RewardConfig = field(default_factory=RewardConfig)


@dataclass
class TierConfig:
    """How long and how often a canary runs."""

    name: str = MISSING
    repeats: int = MISSING  # runs (seeds) in one session
    steps: Dict[str, int] = MISSING  # optimizer steps; PPO: iterations
    train_rows: int = MISSING
    eval_rows: int = MISSING
    warmup_steps: int = MISSING  # learning-rate warm-up
    timeout_minutes: float = MISSING  # per run


@dataclass
class ModelConfig:
    """What is trained."""

    name: str = MISSING
    source: str = MISSING  # embedded | hub | local
    path: Optional[str] = None  # hub id or folder
    revision: Optional[str] = None
    learning_rate: Dict[str, float] = MISSING  # per algorithm


@dataclass
class DataConfig:
    """What it is trained on."""

    name: str = MISSING
    source: str = MISSING  # embedded | hh-rlhf | jsonl
    path: Optional[str] = None
    revision: Optional[str] = None
    split: str = "train"
    label_noise: float = 0.0  # embedded: share of flipped preference pairs


@dataclass
class AdapterConfig:
    """Full fine-tuning, or a LoRA adapter."""

    name: str = MISSING  # full | lora
    r: int = 16
    alpha: int = 32
    dropout: float = 0.05
    target_modules: str = "all-linear"


@dataclass
class QuantizationConfig:
    """Precision in which frozen weights are held."""

    name: str = MISSING  # none | nf4 | int8


@dataclass
class TrackingConfig:
    """Where runs are recorded."""

    name: str = MISSING
    uri: Optional[str] = None  # None: MLFLOW_TRACKING_URI, else sqlite:///mlflow.db
    experiment: str = "canary"
    mlflow: bool = True  # rows to MLflow; without them the gate has nothing to judge
    jsonl: bool = True  # rows to stability.jsonl, an artifact of the run
    tensorboard: bool = False  # rows to event files in the run's output folder
    weights: str = "log"  # log | none: the version is evidence only, and has no weights to load
    full_report: bool = False  # the verdict on stdout with every check, note and warning
    system_metrics: bool = True  # CPU, memory, disk, network and GPUs, every 10 s


@dataclass
class FaultConfig:
    """A regression put in on purpose."""

    name: str = MISSING
    kind: Optional[str] = None  # what strikes, of training.faults.FAULTS; None: the one called as the fault is
    description: str = ""
    step: int = 0  # optimizer steps done before it strikes
    strength: Optional[float] = None  # how much of it; None: it has no degrees
    unit: str = ""  # of the strength
    settings: Dict[str, Any] = field(default_factory=dict)  # kind settings: other values of train and algo
    signals: Dict[str, List[str]] = field(default_factory=dict)  # algorithm it applies to: checks that must show it


@dataclass
class HardwareConfig:
    """Where a run computes."""

    name: str = MISSING
    device: str = MISSING  # auto | cpu | cuda
    precision: str = MISSING  # auto | fp32 | bf16
    threads: int = MISSING  # OMP threads of a run on CPU


@dataclass
class TrainConfig:
    """What every trainer shares."""

    learning_rate: float = MISSING
    max_steps: int = MISSING  # optimizer steps; PPO: iterations
    batch_size: int = MISSING  # sequences (pairs for DPO, rollouts for PPO) per step and device
    gradient_accumulation_steps: int = MISSING
    max_length: int = MISSING  # tokens
    warmup_steps: int = MISSING
    max_grad_norm: float = MISSING
    weight_decay: float = MISSING
    lr_scheduler: str = MISSING
    optimizer: str = MISSING


@dataclass
class NotifyConfig:
    """Who is told what became of it."""

    name: str = "none"
    webhooks: Optional[str] = None  # a file, as docs/webhooks.md describes it


@dataclass
class CanaryConfig:
    """One canary: algorithm x model x data x tier, and how to run and judge it."""

    algo: Any = MISSING
    tier: TierConfig = MISSING
    model: ModelConfig = MISSING
    data: DataConfig = MISSING
    adapter: AdapterConfig = MISSING
    quantization: QuantizationConfig = MISSING
    tracking: TrackingConfig = MISSING
    gate: Dict[str, Any] = MISSING  # a policy; canary_mlflow.policies checks it
    watch: Dict[str, Any] = MISSING  # the watch's policy; checked there too
    notify: NotifyConfig = field(default_factory=NotifyConfig)
    fault: FaultConfig = MISSING
    hardware: HardwareConfig = MISSING
    train: TrainConfig = field(default_factory=TrainConfig)
    seed: int = 0  # the first run's; run i uses seed + i
    repeats: Optional[int] = None  # None: the tier's; 1 under --multirun
    register: bool = True  # False: judged beside the champion, but no version is made and the champion stays
    model_name: Optional[str] = None  # registered model; None: training.naming.default_model_name


ALGORITHMS = {"sft": SFTAlgo, "dpo": DPOAlgo, "ppo": PPOAlgo}
GROUPS = {
    "tier": TierConfig,
    "model": ModelConfig,
    "data": DataConfig,
    "adapter": AdapterConfig,
    "quantization": QuantizationConfig,
    "tracking": TrackingConfig,
    "notify": NotifyConfig,
    "fault": FaultConfig,
    "hardware": HardwareConfig,
}
