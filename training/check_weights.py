"""`python -m training.check_weights`: the process that `canary register` starts, which loads torch. Can what was saved
be loaded: weights as the configuration says, all of them, and a tokenizer?"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from canary_mlflow.shown import visible
from training.errors import first_line


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what is wrong as one JSON string, '' for nothing."""
    parser = ArgumentParser(prog="python -m training.check_weights", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokens", type=int, default=0, help="the tokenizer's size in training; 0: there was none")
    asked = parser.parse_args(arguments)
    said = fault_of_model(asked.folder) or (fault_of_tokenizer(asked.folder, asked.tokens) if asked.tokens else "")
    sys.stdout.write(json.dumps(visible(said)) + "\n")
    return 0


def fault_of_model(folder: Path) -> str:
    """What keeps a model of Transformers' own from being loaded, by names and shapes; '' if nothing does, or if it is
    another's: with code of its own, an adapter, or quantized."""
    import transformers

    try:
        settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        kind = getattr(transformers, (settings.get("architectures") or ["?"])[0], None)
        if kind is None or settings.keys() & {"auto_map", "quantization_config"}:
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


if __name__ == "__main__":
    sys.exit(main())
