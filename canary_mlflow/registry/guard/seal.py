"""The seal of a version: the digest of every file, and what its run found on loading them again, in one signed row.

It is written once, when the version is registered; without it, or with other files, no version becomes champion.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from canary_mlflow.errors import UsageError
from canary_mlflow.files.documents import read_json
from canary_mlflow.ledger.chain import Kind, Row
from canary_mlflow.registry.actors import current_actor
from canary_mlflow.registry.backends import registry_of
from canary_mlflow.registry.guard import weights as weight_files
from canary_mlflow.registry.guard.binding import Sealed, digest_of_all, file_digests, files_at
from canary_mlflow.registry.guard.order import Binding, Order, software
from canary_mlflow.registry.guard.origin import is_within
from canary_mlflow.registry.guard.trained import Compared, Record, compare, records_of
from canary_mlflow.registry.policies.in_force import tier_of_run
from canary_mlflow.registry.versions import Weights, find_version, is_evidence_only, seal_of, session_of
from canary_mlflow.tags import SEAL, WEIGHTS, WEIGHTS_CHECKED
from canary_mlflow.tracking.stores.session import child_runs

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

    from canary_mlflow.registry.backends.registry import Registry


LOADING, RESUMING = "loading", "resuming"  # keys of a seal's row
# A loader unpickles these if it is given the folder (from_pretrained where safetensors are not preferred, MLflow's
# python_function), or finds a module among them by its name.
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib", ".dill")
MODULES = (".py", ".pyc", ".so")
CONFIG = "config.json"  # also tokenizer_config.json, preprocessor_config.json, adapter_config.json …
NAMING = ("auto_map", "custom_pipelines")  # keys of it that name code of the folder or of any repository of a hub
# Every save of a Trainer, of Accelerate and of DeepSpeed has some of these; nothing but a resumed training reads them.
RESUMED = re.compile(
    r"training_args\.bin|(optimizer|scheduler|scaler|sampler)(_\d+)?\.(pt|bin)|rng_state(_\d+)?\.pth"
    r"|random_states_\d+\.pkl|\w+_(optim|model)_states\.pt"
)


def code_in(place: Path, names: Iterable[str]) -> dict[str, list[str]]:
    """What among a version's files is code, or names some: what loading can run, and what only resuming reads."""
    found: dict[str, list[str]] = {LOADING: [], RESUMING: []}
    for name in sorted(names):
        if said := _said(place / name, name):
            found[RESUMING if RESUMED.fullmatch(name.lower().rpartition("/")[2]) else LOADING].append(said)
    return found


def _said(file: Path, name: str) -> str:
    plain = name.lower()
    if plain.endswith(PICKLES):
        return f"{name} (pickle)"
    if plain.endswith(MODULES):
        return name
    if not plain.endswith(CONFIG):
        return ""
    try:
        body = read_json(file)
    except (OSError, ValueError):
        return f"{name} (cannot be read)"
    keys = [key for key in NAMING if isinstance(body, dict) and body.get(key)]
    return f"{name} ({', '.join(keys)})" if keys else ""


UNCHECKED = "not checked: "
NO_CHECK = "it was registered before folders were compared with what their session trained"
TRAINED = "expected the weights that a run of the session ended with"
REGISTER = "register the weights as a new version (canary register SESSION MODEL --weights PATH)"


@dataclass(frozen=True, kw_only=True)
class Files:
    """A version's files as they are now. `fault`: what keeps their weights from being loaded, in words, or "".
    `code`: what loading them, or resuming from them, can run. `trained`: what they are beside what the runs ended with
    that could have made them."""

    digests: Mapping[str, str]
    fault: str
    code: Mapping[str, Sequence[str]] = field(default_factory=dict)
    trained: Compared = field(default_factory=Compared)

    @property
    def artifact(self) -> str:
        """One digest of all files."""
        return digest_of_all(self.digests)


def seal_version(
    client: MlflowClient,
    model: str,
    version: str,
    *,
    weights: Weights = Weights.FILES,
    evaluation: Mapping[str, Any] | None = None,
    actor: str | None = None,
) -> None:
    """Record what a new version consists of. Files that nobody could load are recorded as such.

    `evaluation`: what the run found when it evaluated its saved weights (`recorded`, `repeated`, `different`, or
    `failure`). Raises UsageError for a version that is already sealed, or whose files its session did not train;
    StoreError if its files cannot be read.
    """
    registry = registry_of(client)
    body = {"model": model, "version": version, "weights": str(weights), "evaluation": evaluation}
    registry.do(
        "seals",
        {key: value for key, value in body.items() if value is not None},
        here=lambda: seal_here(registry, model, version, weights, evaluation, actor or current_actor()),
        there=lambda _: None,
    )


def seal_here(
    registry: Registry, model: str, version: str, weights: Weights, evaluation: Mapping[str, Any] | None, actor: str
) -> None:
    """The same by this process, which reads the files and signs."""
    client = registry.client
    found = find_version(client, model, version)
    if row := seal_of(registry.rows(model, version=int(found.version)), found):
        raise UsageError(
            f"version {found.version} of {model!r}: sealed already, in row {row.seq} of the ledger; expected a version "
            "without a seal; register the files as a new version"
        )
    files = read_files(registry, found)
    refuse_untrained(found, files, weights)
    if evaluation and evaluation.get("artifact", files.artifact) != files.artifact:
        raise UsageError(
            f"version {found.version} of {found.name!r}: its files are {files.artifact}, those whose model was asked "
            f"were {evaluation['artifact']}; expected the same; {REGISTER}"
        )
    refuse_other_weights(registry, found, files)
    tags = {WEIGHTS: str(weights), SEAL: files.artifact}
    if weights is Weights.FILES and is_given(client, found):
        tags[WEIGHTS_CHECKED] = checked_by(files.trained, evaluation)
    tier = tier_of_run(client, found.run_id)
    registry.record(order_of(found, files, weights, evaluation, tags, actor, tier))


def is_given(client: MlflowClient, found: ModelVersion) -> bool:
    """Whether a version's files are its session's own: a folder that somebody gave, and no run's."""
    return bool(found.run_id) and session_of(found) == found.run_id and bool(child_runs(client, str(found.run_id)))


def refuse_untrained(found: ModelVersion, files: Files, weights: Weights) -> None:
    """Raise UsageError for weights that no run of the version's session ended with, a run's own too."""
    if weights is Weights.FILES and files.trained.fault:
        raise UsageError(f"version {found.version} of {found.name!r}: {files.trained.fault}; {TRAINED}; {REGISTER}")


def trained_in(registry: Registry, session_id: str, run_id: str) -> dict[str, Record]:
    """Run id → what it ended with, as the ledger knows it: of a run, or if that is the session, of all its runs."""
    runs = [run for run in child_runs(registry.client, session_id) if run_id in (session_id, run.info.run_id)]
    return records_of(runs, registry.client.tracking_uri, registry.session_rows(session_id))


def checked_by(trained: Compared, evaluation: Mapping[str, Any] | None) -> str:
    """By what a folder is known to be what its session trained: its tensors, which whoever seals it compares, or the
    model's answer, by the word of who registers it."""
    if trained.exact:
        return f"the tensors of run {trained.run}"
    nearly = f"its files are not to the letter what run {trained.run} saves"
    return "the model's answer" if evaluation else f"{UNCHECKED}{trained.unknown or nearly}"


def unchecked(registry: Registry, found: ModelVersion) -> str:
    """Why nobody knows that the folder given for a version is what its session trained; '' if somebody does."""
    if is_evidence_only(found) or not is_given(registry.client, found):
        return ""
    said = str((registry.seal(found) or {}).get("checked", ""))
    return "" if said and not said.startswith(UNCHECKED) else said.removeprefix(UNCHECKED) or NO_CHECK


def refuse_other_weights(registry: Registry, found: ModelVersion, files: Files) -> None:
    """Raise UsageError if the files are not those that the version's run had when its session ended. Files of the
    session itself, which no run made, rest on its script's word: the first ones sealed count for all versions."""
    session_id = session_of(found)
    if session_id is None:
        return
    life = registry.session_rows(session_id)
    refuse_changed_weights(found, files, life)
    if session_id == found.run_id and files.digests:
        refuse_second_weights(registry, found, files, life)


def refuse_changed_weights(found: ModelVersion, files: Files, life: Iterable[Row]) -> None:
    """Raise UsageError for files that differ from a row of the session. Checked again before an alias moves, as a
    version may be sealed while its run still trains."""
    subject = f"version {found.version} of {found.name!r}"
    for row in life:
        then, of = in_place(row, found) or ((row.facts.get("weights") or {}).get(found.run_id), "")
        if then is not None and then != files.artifact:
            raise UsageError(
                f"{subject}: its files are {files.artifact}; row {row.seq} of the "
                f"ledger says that session {row.alias} ended with {then}{of}; expected those; train it again"
            )
        if then is None and files.digests and turned_up(row, found):
            raise UsageError(
                f"{subject}: its files are {files.artifact}; row {row.seq} of the ledger says that run {found.run_id} "
                "had none there; expected those that a run of the session had when it ended; train it again"
            )


def in_place(row: Row, found: ModelVersion) -> tuple[str, str] | None:
    """The digest of what was at the version's source when the row was written, if that is in the place which its run
    vouched for, and where it was; None elsewhere, and for older rows, which have only the place."""
    place = str((row.facts.get("places") or {}).get(found.run_id, ""))
    if "there" not in row.facts or not is_within(str(found.source), place):
        return None
    folder = posixpath.relpath(*(posixpath.normpath(one.removeprefix("file://")) for one in (str(found.source), place)))
    there = row.facts["there"].get(found.run_id)
    return (there or {}).get(folder, "none"), f" at {place}" if there else f" at {place}, which could not be read"


def turned_up(row: Row, found: ModelVersion) -> bool:
    """Whether a row of the session names the version's run without its files or their place, so that the files turned
    up later. Older rows, which do not name places, cannot tell."""
    if found.run_id not in (row.facts.get("runs") or {}) or "places" not in row.facts:
        return False
    return not is_within(str(found.source), str(row.facts["places"].get(found.run_id, "")))


def refuse_second_weights(registry: Registry, found: ModelVersion, files: Files, life: Sequence[Row]) -> None:
    """Raise UsageError for files of the session itself if its runs save their own, or if other files were sealed."""
    session_id, subject = str(found.run_id), f"version {found.version} of {found.name!r}"
    for row in life:
        if row.facts.get("seeds"):
            raise UsageError(
                f"{subject}: its files are those of session {session_id} itself, whose runs save their own (row "
                f"{row.seq} of the ledger); expected files of one of these; register that run's"
            )
    for row in registry.rows(kind=Kind.SEAL, naming=session_id):
        if row.facts.get("session") == session_id and row.facts.get("artifact") != files.artifact:
            raise UsageError(
                f"{subject}: its files are {files.artifact}; row {row.seq} of the ledger sealed "
                f"{row.facts.get('artifact')} as those of session {session_id}; expected the same; other weights need "
                "a new session"
            )


def order_of(
    found: ModelVersion,
    files: Files,
    weights: Weights,
    evaluation: Mapping[str, Any] | None,
    tags: Mapping[str, str],
    actor: str,
    tier: str,
) -> Order:
    """The order for the row to write; it concerns no alias and moves none. `tier`: the run's, empty unless it is a
    shipped one; in the first row about a model it chooses the policy that judges all later versions."""
    binding = Binding(
        version_created=int(found.creation_timestamp), source=str(found.source), artifact=files.artifact, runs={}
    )
    return Order(
        kind=Kind.SEAL,
        model=str(found.name),
        version=str(found.version),
        word="sealed",
        binding=binding,
        actor=actor,
        reason=files.fault if weights is Weights.FILES and files.fault else f"{len(files.digests)} files",
        facts={
            "weights": str(weights),
            "files": dict(files.digests),
            "fault": files.fault,
            "code": dict(files.code),
            "evaluation": None if evaluation is None else dict(evaluation),
            "checked": tags.get(WEIGHTS_CHECKED, ""),
            "session": session_of(found),
            "run": found.run_id,
            "tier": tier,
            "software": dict(software()),
        },
        tags=tags,
    )


def require_seal(registry: Registry, found: ModelVersion) -> Sealed:
    """The seal of a version that is to become champion. Raises UsageError, naming the file, if the seal is missing or
    does not hold, if the weights cannot be loaded, or if their evaluation differed from the one in their run."""
    subject = f"version {found.version} of {found.name!r}"
    files = read_files(registry, found)
    facts = registry.seal(found)
    if facts is None:
        raise UsageError(f"{subject}: {files.fault or 'it has no seal'}; expected files that were sealed; {REGISTER}")
    if facts["artifact"] != files.artifact:
        changed = changed_files(facts.get("files", files.digests), files.digests) or ["its files changed"]
        raise UsageError(f"{subject}: {changed[0]} since it was sealed; expected the sealed files; {REGISTER}")
    if (session_id := session_of(found)) is not None:
        refuse_changed_weights(found, files, registry.session_rows(session_id))
    weights = Weights(facts["weights"])
    refuse_untrained(found, files, weights)  # again: it may have been sealed while its run still trained
    held = any(name.endswith(".safetensors") for name in files.digests)
    if files.fault and (held or weights is Weights.FILES):
        raise UsageError(f"{subject}: {files.fault}; expected weights that can be loaded, all finite; {REGISTER}")
    if said := disagreement(facts.get("evaluation")):
        raise UsageError(f"{subject}: {said}; expected equal numbers; train it again")
    return Sealed(artifact=files.artifact, row=facts.get("seq"))


def read_files(registry: Registry, found: ModelVersion) -> Files:
    """Every file of a version, read whole, and compared with what its run ended with, or any of its session's if they
    are the session's own. Weights are read only once, so that the digest is of the bytes that were checked, even if
    somebody writes meanwhile. Raises StoreError."""
    session_id, client = session_of(found), registry.client
    records = {} if session_id is None else trained_in(registry, session_id, str(found.run_id))
    address = client.get_model_version_download_uri(found.name, found.version)
    with files_at(address, store=client.tracking_uri) as place:
        checked: dict[str, str] = {}
        fault = weight_files.fault_of(place, checked)
        digests = file_digests(place, checked)
        code = code_in(place, digests)
        trained = compare(place, records)
    late = sorted(name for name in digests if weight_files.is_weights(name) and name not in checked)
    fault = fault or (f"{late[0]}: it came while others were read" if late else "")
    return Files(digests=digests, fault=fault, code=code, trained=trained)


def changed_files(then: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """What happened to the files that a seal names, in a few words for each."""
    return [
        *(f"{name} is gone" for name in sorted(then.keys() - now.keys())),
        *(f"{name} was added" for name in sorted(now.keys() - then.keys())),
        *(f"{name} changed" for name in sorted(then.keys() & now.keys()) if then[name] != now[name]),
    ]


def disagreement(evaluation: Mapping[str, Any] | None) -> str:
    """What the run's own evaluation of its saved weights found wrong with them, in words; '' if nothing."""
    if not evaluation:
        return ""
    if failure := evaluation.get("failure"):
        return f"its run could not evaluate what it had saved ({failure})"
    for name in evaluation.get("different") or ():
        recorded, repeated = (dict(evaluation.get(side) or {}).get(name) for side in ("recorded", "repeated"))
        return f"its saved weights give {name} {repeated}, its run measured {recorded}"
    return ""
