"""Compares a folder of weights with what a session's runs ended with."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from canary_mlflow.errors import UsageError
from canary_mlflow.module_runner import module_command
from canary_mlflow.registry.guard.binding import digest_of_all, file_digests, files_at
from canary_mlflow.registry.guard.seal import trained_in
from canary_mlflow.registry.guard.trained import Record, compare
from canary_mlflow.shown import visible
from canary_mlflow.tracking.describing.compact import expanded
from canary_mlflow.tracking.describing.fact_tags import facts_in
from canary_mlflow.tracking.reading.facts import count
from canary_mlflow.tracking.stores.session import child_runs

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

    from canary_mlflow.registry.backends.registry import Registry


def check_weights(folder: Path, session_id: str) -> None:
    """Raise UsageError unless this is a folder that contains weights."""
    wanted = "expected the folder that trainer.save_model() wrote, with *.safetensors in it"
    kept = f"the session is kept: canary register {session_id} --weights FOLDER"
    if not folder.is_dir():
        found = "a file" if folder.exists() else "not there"
        raise UsageError(f"weights {folder.absolute()}: {found}; {wanted}; {kept}")
    if not any(file.stat().st_size for file in folder.rglob("*.safetensors")):
        found = ", ".join(sorted(file.name for file in folder.iterdir())[:5]) or "nothing"
        raise UsageError(f"weights {folder.absolute()}: found {found}; {wanted}; {kept}")


def evaluate(registry: Registry, session_id: str, folder: Path) -> tuple[Mapping[str, Any] | None, str]:
    """Compare a folder with what the runs of its session ended with: (by how much its model's answer differs, "") if
    it could be asked, else (None, why not). Raises UsageError for another's weights, and for those that cannot be
    loaded."""
    records = trained_in(registry, session_id, session_id)
    compared = compare(folder, records)
    told = {compared.run: records[compared.run]} if compared.run else records
    said = {"fault": compared.fault} if compared.fault else asked(folder, told, tokens_of(registry.client, session_id))
    if fault := said.get("fault"):
        fault += f"; {compared.unknown}" if compared.unknown else ""
        raise UsageError(
            f"weights {folder.absolute()}: {fault}; expected the folder that trainer.save_model() wrote; the session "
            f"is kept: canary register {session_id} --weights FOLDER"
        )
    if "difference" not in said:
        return None, compared.unknown or str(said.get("unknown", ""))
    of, files = {"answer": said["difference"]}, digest_of_all(file_digests(folder))
    return {
        "recorded": {"answer": 0.0}, "repeated": of, "different": [], "tolerance": said["tolerance"],
        "artifact": files,
    }, ""  # fmt: skip


def checked_now(registry: Registry, found: ModelVersion) -> str:
    """Compare the folder of a version that was registered where this could not be done; why it cannot be here either,
    or ''. Raises UsageError as `evaluate` does."""
    session_id, client = str(found.run_id), registry.client
    address = client.get_model_version_download_uri(found.name, found.version)
    with files_at(address, store=client.tracking_uri) as place:
        evaluation, why = evaluate(registry, session_id, place)
    return "" if evaluation else why


def asked(folder: Path, records: Mapping[str, Record], tokens: int) -> Mapping[str, Any]:
    """What Transformers finds of the folder: `fault`, `unknown`, or `difference` and `tolerance` of the model's answer.
    Found in a separate process, which loads torch. `tokens`: the size of the tokenizer to expect, 0 for none."""
    config = folder / "config.json"
    if not records and not tokens and not (config.is_file() and b'"architectures"' in config.read_bytes()):
        return {}
    with tempfile.TemporaryDirectory(prefix="canary-records-") as place:
        file = Path(place) / "records.json"
        file.write_text(json.dumps(records), encoding="utf-8")
        words = [*module_command("canary_mlflow.training.check_weights"), str(folder), "--tokens", str(tokens)]
        words += ["--records", str(file)] if records else []
        offline = {**os.environ, "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(words, env=offline, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return {"unknown": f"it cannot be loaded here ({visible(said)})"}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def tokens_of(client: MlflowClient, session_id: str) -> int:
    """The size of the tokenizer that the session's runs recorded; 0 if they had none, or do not agree on one."""
    sizes = {facts_in(expanded(run.data.tags)).get("tokenizer.size", "") for run in child_runs(client, session_id)}
    return count(sizes.pop()) if len(sizes) == 1 else 0
