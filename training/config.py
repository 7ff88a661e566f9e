"""The typed shape of a composed canary: every key a user may set, with its unit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Dict, List, Optional

from omegaconf import MISSING

if TYPE_CHECKING:
    from canary_mlflow.training.reward_config import RewardConfig

# OmegaConf reads these annotations at run time, hence typing's Optional/Dict/List.


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
    variants: List[str] = field(default_factory=list)  # in conf/variant: additional short trainings, for their facts


@dataclass
class VariantConfig:
    """How a short training differs from the run that it belongs to."""

    name: str = "plain"
    algorithms: List[str] = field(default_factory=list)  # that have it; empty: all
    settings: Dict[str, Any] = field(default_factory=dict)  # other values of train, algo and adapter
    arguments: Dict[str, Any] = field(default_factory=dict)  # passed to the trainer's configuration unchanged
    arguments_of: Dict[str, Any] = field(default_factory=dict)  # algorithm -> arguments that replace `arguments`
    pinned: bool = True  # False: no argument is given for which the library has a default
    resumes: bool = False  # it also resumes from its first checkpoint, and the next step is compared


@dataclass
class ModelConfig:
    """What is trained."""

    name: str = MISSING
    source: str = MISSING  # embedded | hub | local
    path: Optional[str] = None  # hub id or folder
    revision: Optional[str] = None
    learning_rate: Dict[str, float] = MISSING  # per algorithm
    chat_template: Optional[str] = None  # a Jinja file in place of the tokenizer's own


@dataclass
class DataConfig:
    """What it is trained on."""

    name: str = MISSING
    source: str = MISSING  # embedded | hh-rlhf | jsonl | hub
    path: Optional[str] = None
    revision: Optional[str] = None
    split: str = "train"
    subset: Optional[str] = None  # hub: which one, if a repository has several
    held_out: Optional[str] = None  # hub: the split of the held-out rows; None: part of the training split
    columns: Dict[str, Optional[str]] = field(default_factory=dict)  # hub: prompt, chosen … -> the column's name there
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
class MemoryConfig:
    """How much of its device's memory a run uses, and where it spends time or precision to save memory."""

    name: str = "default"  # default | saving
    gradient_checkpointing: bool = False  # activations are computed twice instead of kept
    weights: str = "auto"  # auto | fp32 | bf16, as loaded; auto: trained ones fp32, frozen ones the run's precision
    attention: str = "auto"  # auto | eager | sdpa | flash_attention_2; auto: what Transformers chooses for the model
    optimizer: str = "adamw_torch"  # train.optimizer, unless that is set


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
    samples: bool = True  # texts: answers to held-out prompts, the best and the worst of RL; false: none are kept
    full_report: bool = False  # the verdict on stdout with every check, note and warning
    system_metrics: bool = True  # CPU, memory, disk, network and GPUs, every 10 s


@dataclass
class FaultConfig:
    """A regression put in on purpose."""

    name: str = MISSING
    kind: Optional[str] = None  # what strikes, a key of training.faults.FAULTS; None: the one with the fault's name
    description: str = ""
    step: int = 0  # optimizer steps done before it strikes
    strength: Optional[float] = None  # how strong it is; None: it has no degrees
    unit: str = ""  # of the strength
    settings: Dict[str, Any] = field(default_factory=dict)  # kind `settings`: other values of train and algo
    settings_of: Dict[str, Any] = field(default_factory=dict)  # algorithm -> settings that replace `settings`
    signals: Dict[str, List[str]] = field(default_factory=dict)  # algorithm it applies to: checks that must show it


@dataclass
class HardwareConfig:
    """Where a run computes."""

    name: str = MISSING
    device: str = MISSING  # auto | cpu | cuda
    precision: str = MISSING  # auto | fp32 | bf16
    threads: int = MISSING  # OMP threads of a run on CPU
    gpus: float = 1.0  # of a cluster's node, for each pair; may be a fraction if nothing is judged by the clock
    host_class: Optional[str] = None  # on a cluster: use nodes that declare this resource, one unit for each pair
    deterministic: bool = False  # the same numbers from the same seed, on a GPU too; slower, and a separate canary
    ranks: Any = 1  # processes that train one run together, or auto: one for each visible GPU


@dataclass
class ParallelConfig:
    """How the ranks of a run share the model."""

    name: str = "ddp"  # ddp | fsdp2
    settings: Dict[str, Any] = field(default_factory=dict)  # fsdp2: TrainingArguments.fsdp_config


@dataclass
class LauncherConfig:
    """Where the runs of a session are made, and how many at a time."""

    name: str = "local"  # local | ray
    address: str = "auto"  # of the cluster: host:port; auto: RAY_ADDRESS, else the one that runs on this machine
    cpus: Optional[float] = None  # that a pair takes on its node; None: so many that no two pairs share a node's clock
    attempts: int = 3  # how often a pair is started whose node is lost
    wait_minutes: float = 10  # for a node that fits
    runtime_env: Dict[str, Any] = field(default_factory=dict)  # Ray's own keys; empty: the code is on a shared path


@dataclass
class TrainConfig:
    """The settings that every trainer shares."""

    learning_rate: float = MISSING
    max_steps: int = MISSING  # optimizer steps; PPO: iterations
    batch_size: int = MISSING  # sequences (pairs for DPO, rollouts for PPO) per step and rank
    gradient_accumulation_steps: int = MISSING
    max_length: int = MISSING  # tokens
    warmup_steps: int = MISSING
    max_grad_norm: float = MISSING
    weight_decay: float = MISSING
    lr_scheduler: str = MISSING
    optimizer: str = MISSING


@dataclass
class Algo:
    """The base of every algorithm's settings; an algorithm's own keys are in its module of training/algorithms.

    It answers what the rest of a canary needs to know, so that no list of algorithms is needed anywhere.
    """

    head: ClassVar[str] = "language"  # or score: what the model ends in
    reads: ClassVar[str] = "answer"  # or pair | judged | prompt: what it reads from a row (training.datasets.records)

    name: str = MISSING

    def check(self, train: TrainConfig) -> None:
        """Raise UsageError naming the first key whose value cannot be trained with."""

    def check_machine(self, hardware: HardwareConfig) -> None:
        """Raise SetupError for what it needs and this machine lacks; imports no torch."""

    def work(self) -> dict[str, str]:
        """The settings that two runs must share to be compared; training.workload adds the rewards."""
        return {}

    def updates(self) -> int:
        """Optimizer steps per unit of train.max_steps."""
        return 1

    def positions(self, train: TrainConfig) -> dict[str, int]:
        """Key → number of tokens for which the model must have positions because of that key."""
        return {"train.max_length": train.max_length}

    def scored_by(self) -> tuple[RewardConfig, ...]:
        """The rewards that score drawn answers; none if the data hold the answers."""
        return ()


@dataclass
class NotifyConfig:
    """Who is told about the session's outcome."""

    name: str = "none"
    url_env: Optional[str] = None  # the environment variable with the address that is told about this session
    format: str = "json"  # json | slack
    secret_env: Optional[str] = None  # the environment variable with the secret that signs the message's body
    about: List[str] = field(default_factory=lambda: ["BLOCK", "INCONCLUSIVE", "CRITICAL", "STOP", "NIGHTLY"])

    def entry(self) -> dict[str, Any]:
        """The webhook of this session as `canary_mlflow.notify.session` takes it."""
        keys = ("name", "url_env", "format", "secret_env")
        return {**{key: getattr(self, key) for key in keys}, "about": list(self.about)}


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
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    launcher: LauncherConfig = field(default_factory=LauncherConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    seed: int = 0  # the first run's; run i uses seed + i
    repeats: Optional[int] = None  # None: the tier's; 1 under --multirun
    profile: bool = False  # True: also a few steps under torch's profiler after the first run; never promoted
    register: bool = True  # False: judged against the champion, but no version is made and the champion stays
    model_name: Optional[str] = None  # registered model; None: training.naming.default_model_name
    variant: VariantConfig = field(default_factory=VariantConfig)


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
    "memory": MemoryConfig,
    "parallel": ParallelConfig,
    "launcher": LauncherConfig,
}
