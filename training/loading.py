"""A model and its tokenizer, loaded from the folder that holds them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from canary_mlflow.training import peers
from canary_mlflow.training.config import CanaryConfig
from canary_mlflow.training.errors import SetupError, first_line
from canary_mlflow.training.memory import loading_options
from canary_mlflow.training.quantization import keep_trainable, quantization_config

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from canary_mlflow.training.devices import Device


HEADS = ("score.weight", "classifier.weight", "classifier.bias")  # of a sequence classifier
SEED = 20240229  # of what is drawn alike in all runs: new heads, and the noise of evaluations


@contextmanager
def quiet(wanted: bool) -> Iterator[None]:
    """Silence Transformers' table of missing weights if `wanted`: a new head lacks them on purpose."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    if wanted:
        logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer, with a padding token and padding on the left (as generation needs it)."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:
        raise SetupError(
            f"{folder} has no tokenizer that transformers {version('transformers')} can load: {first_line(error)}"
        ) from error
    if tokenizer.eos_token is None:
        raise SetupError(f"the tokenizer in {folder} has no end-of-text token; expected eos_token in its config")
    if tokenizer.pad_token is None:
        # Pythia has a padding token that it does not declare as such; without one, TRL uses end of text.
        padding = "<|padding|>"
        tokenizer.pad_token = padding if padding in tokenizer.get_vocab() else tokenizer.eos_token
    tokenizer.padding_side = "left"
    # No model trained here reads them, and GRPOTrainer of older TRLs hands them to generate(), which refuses them.
    tokenizer.model_input_names = [name for name in tokenizer.model_input_names if name != "token_type_ids"]
    return tokenizer


def unfit(folder: Path, config: CanaryConfig, error: Exception) -> SetupError:
    """What to say of a folder from which Transformers makes no model of the kind that is trained."""
    wanted = "sequence classifier" if config.algo.head == "score" else "causal language model"
    return SetupError(f"{folder} holds no {wanted} that can be loaded: {first_line(error)}")


def load_model(
    config: CanaryConfig, folder: Path, tokenizer: Any, device: Device, *, inspect_only: bool = False
) -> PreTrainedModel:
    """Load the weights in the precision in which they are trained or frozen, straight to the device.

    A score head that the files lack is initialized, the same in each run: on the CPU, whose generator is seeded for it.
    `inspect_only`: the model is only inspected while another holds the device's memory; it stays on the CPU, unless
    quantized. Raises SetupError if weights are missing, or the tokenizer has more tokens than the model.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    scores = config.algo.head == "score"
    kind: Any = AutoModelForSequenceClassification if scores else AutoModelForCausalLM
    run_dtype = torch.bfloat16 if device.precision == "bf16" else torch.float32
    options = loading_options(config, device)
    mine = peers.rank()  # index among the visible GPUs
    if device.kind == "cuda" and not scores and not inspect_only:
        options["device_map"] = {"": mine}
    quantization = quantization_config(config.quantization, run_dtype)
    if quantization is not None:
        options |= {
            "quantization_config": quantization,
            "device_map": {"": mine if device.kind == "cuda" else "cpu"},
        }
    try:
        with torch.random.fork_rng(devices=[]):
            if scores:
                torch.default_generator.manual_seed(SEED)
                options["num_labels"] = 1
            with quiet(scores):
                model, info = kind.from_pretrained(folder, output_loading_info=True, trust_remote_code=False, **options)
    except Exception as error:
        raise unfit(folder, config, error) from error
    if config.adapter.name == "full" and getattr(model, "is_quantized", False):
        raise SetupError(f"{folder} holds quantized weights, which take no gradient; expected adapter=lora")
    keep_trainable(model)
    settings = model.config.get_text_config()
    if hasattr(config.algo, "max_new_tokens") and getattr(settings, "output_router_logits", False):
        settings.output_router_logits = False  # they break drawing (see experts.py); TRL asks for them call by call
    if absent := sorted(name for name in info["missing_keys"] if not (scores and name in HEADS)):
        raise SetupError(f"{folder} lacks {len(absent)} weights (first: {absent[0]}); expected a whole language model")
    places = model.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > places:
        raise SetupError(
            f"the tokenizer in {folder} has {len(tokenizer)} tokens, the model {places}; "
            "expected one made for the other"
        )
    model.config.pad_token_id = tokenizer.pad_token_id
    if getattr(model, "generation_config", None) is not None:
        model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model
