"""`python -m training.check_weights`: the process that `canary register` starts, which loads torch. Can what was saved
be loaded: weights as the configuration says, all of them, and a tokenizer? And does the model answer a fixed batch as
it did at the end of its training?"""

from __future__ import annotations

import json
import math
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from canary_mlflow.shown import visible
from canary_mlflow.tracking.probes.trained import answer_of
from canary_mlflow.training.errors import first_line

ERRORS = {
    "float32": 1e-4, "fp32": 1e-4, "tf32": 2.0**-10, "float16": 2.0**-10, "fp16": 2.0**-10, "bfloat16": 2.0**-8,
    "bf16": 2.0**-8, "quantized": 2.0**-5,
}  # fmt: skip
"""The error of one operation; float32's allows for another device."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one JSON object: `fault`, what is wrong; `difference`, by how much its answer differs from that of `run`;
    or `unknown`, why it cannot be asked."""
    parser = ArgumentParser(prog="python -m training.check_weights", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokens", type=int, default=0, help="the tokenizer's size in training; 0: there was none")
    parser.add_argument("--records", type=Path, help="JSON: run id to what it ended with")
    asked = parser.parse_args(arguments)
    said = fault_of_model(asked.folder) or (fault_of_tokenizer(asked.folder, asked.tokens) if asked.tokens else "")
    found = {"fault": visible(said)} if said or not asked.records else answered(asked.folder, asked.records)
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


def fault_of_model(folder: Path) -> str:
    """What keeps a model of Transformers' own from being loaded, by names and shapes; '' if nothing does, or if it is
    another's: with code of its own, an adapter, or quantized."""
    try:
        kind = class_of(folder)
        if kind is None:
            return ""
        info = _loading_info(kind, folder)
    except FileNotFoundError:
        return ""
    except Exception as error:  # noqa: BLE001 - a library may raise anything over files that it cannot use
        return f"it cannot be loaded ({first_line(error)})"
    for name, *shapes in sorted(info.get("mismatched_keys", ()), key=str):
        found, expected = (list(shape) for shape in shapes)
        return f"{name} has the shape {found}, its configuration asks for {expected}"
    missing = sorted(map(str, info.get("missing_keys", ())))
    more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    return f"there are no weights for {missing[0]}{more}" if missing else ""


def class_of(folder: Path) -> Any:
    """The class of Transformers' own that a folder's configuration names; None for another's."""
    import transformers

    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    kind = getattr(transformers, (settings.get("architectures") or ["?"])[0], None)
    return None if settings.get("auto_map") or settings.get("quantization_config") else kind


def _loading_info(kind: Any, folder: Path) -> dict[str, Any]:
    """What loading finds. On the device `meta`, which reads no weights; by a release that cannot, in full."""
    given = {"ignore_mismatched_sizes": True, "output_loading_info": True, "trust_remote_code": False}
    try:
        return dict(kind.from_pretrained(folder, device_map="meta", **given)[1])
    except Exception:  # noqa: BLE001 - raised again, if it is the files' fault
        return dict(kind.from_pretrained(folder, **given)[1])


def fault_of_tokenizer(folder: Path, tokens: int) -> str:
    """What is wrong with the tokenizer beside the weights."""
    from transformers import AutoTokenizer

    try:
        found = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # noqa: BLE001 - as above
        return f"no tokenizer can be loaded ({first_line(error)})"
    return "" if len(found) == tokens else f"its tokenizer knows {len(found)} tokens, that of its runs {tokens}"


def answered(folder: Path, records: Path) -> dict[str, Any]:
    """What the folder's model answers, beside what the runs recorded: the nearest of them decides."""
    told = json.loads(records.read_text(encoding="utf-8"))
    known = [(run_id, one) for run_id, one in told.items() if "answer" in one]
    if not known:
        why = [one.get("unanswered") or one.get("unknown") or "" for one in told.values()]
        return {"unknown": visible(f"its runs recorded no answer of their model: {why[0]}")}
    _, first = known[0]
    try:
        model, missing = loaded(folder, first)
        if model is None:
            return {"unknown": visible(missing)}
        now = answer_of(model, first["answer"]["ids"])
    except Exception as error:  # noqa: BLE001 - a library may raise anything over files that it cannot use
        return {"fault": visible(f"it cannot be loaded and asked ({first_line(error)})")}
    found = [{"run": run_id, **beside(now, one, tolerance(model, one))} for run_id, one in known]
    return min(found, key=lambda one: ("fault" in one, one["difference"]))


def loaded(folder: Path, record: dict[str, Any]) -> tuple[Any, str]:
    """The folder's model as its class says; or None, and what is missing here to load it."""
    import transformers

    release = tuple(int(part) for part in transformers.__version__.split(".")[:2])
    dtype = "dtype" if release >= (4, 56) else "torch_dtype"
    if not (folder / "adapter_config.json").is_file():
        kind = class_of(folder) if (folder / "config.json").is_file() else None
        if kind is None:
            return None, "its model is quantized, or of no class of Transformers' own"
        return kind.from_pretrained(folder, trust_remote_code=False, **{dtype: "auto"}), ""
    from peft import PeftModel

    place = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8")).get("base_model_name_or_path")
    try:
        kind = getattr(transformers, record["class"])
        base = kind.from_pretrained(place, trust_remote_code=False, **{dtype: record["dtype"]})
    except Exception as error:  # noqa: BLE001 - a base that is not here, or only in another precision
        return None, f"its base model {place} cannot be loaded here ({first_line(error)})"
    return PeftModel.from_pretrained(base, folder), ""


def beside(now: dict[str, Any], record: dict[str, Any], allowed: float) -> dict[str, Any]:
    """By how much an answer differs from a recorded one, in standard deviations of its logits, and what is wrong if
    that is more than rounding explains."""
    then = record["answer"]
    if now["width"] != then["width"]:
        said = f"its model has {now['width']} outputs, that of its run {then['width']}"
        return {"difference": math.inf, "fault": said}
    before, after = np.array(then["logits"]), np.array(now["logits"])
    apart = np.nan_to_num(np.abs(after - before), nan=math.inf) / (before.std() or 1.0)
    row, column = np.unravel_index(apart.argmax(), apart.shape)
    found = {"difference": float(apart.max()), "tolerance": allowed}
    if found["difference"] > allowed:
        where = f"entry {then['columns'][column]} behind token {len(then['ids']) - len(before) + int(row) + 1}"
        said = f"its model answers {after[row, column]:.6g}, that of its run {before[row, column]:.6g} ({where}"
        return {**found, "fault": f"{said}: {apart.max():.2g} standard deviations, rounding allows {allowed:.2g})"}
    other = [at for at, pair in enumerate(zip(now["next"], then["next"], strict=False)) if pair[0] != pair[1]]
    if other and then["gaps"][other[0]] > 2 * allowed * before.std():
        return {**found, "fault": f"its model goes on with the tokens {now['next']}, that of its run {then['next']}"}
    return found


def tolerance(model: Any, record: dict[str, Any]) -> float:
    """What rounding explains, in standard deviations of the logits: errors of one operation in the coarsest precision,
    which grow as the root of the number of layers."""
    held = {str(one.dtype).removeprefix("torch.") for one in model.parameters() if one.is_floating_point()}
    words = [*held, record["dtype"], record["answer"]["precision"], "quantized" if record["quantized"] else "fp32"]
    layers = int(getattr(model.config, "num_hidden_layers", 0) or 12)
    return 4 * max(ERRORS.get(word, 0.0) for word in words) * math.sqrt(layers + 1)


if __name__ == "__main__":
    sys.exit(main())
