"""`canary import`: turns finished trainings of any stack into MLflow runs that the gate can judge."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from canary_mlflow import tags
from canary_mlflow.commands.shared import key_values, store_option
from canary_mlflow.errors import UsageError
from canary_mlflow.shown import echo_lines, json_text, shown

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from canary_mlflow.tracking.reading.imports import Imported

IMPORT_CODES = """\b
Exit codes:
  0  every file is in the store, now or already
  2  a file could not be read, or wrong use; nothing was written
  4  the store failed; files that were written before stay
"""


@click.command("import", epilog=IMPORT_CODES)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--experiment", default="canary", show_default=True, help="MLflow experiment; made if missing.")
@click.option("--session", metavar="NAME", help="A parent run over the files: one side of a comparison.")
@click.option("--algo", default="", help="The algorithm: sft, dpo, ppo, grpo, … Unknown if not given.")
@click.option("--seed", type=int, help="The run's seed, for one FILE. Unknown if not given.")
@click.option("--workload", multiple=True, metavar="KEY=VALUE", help="A fact that comparable runs share; repeatable.")
@click.option("--hardware", multiple=True, metavar="KEY=VALUE", help="The same for the hardware; repeatable.")
@click.option("--json", "as_json", is_flag=True, help="JSON alone on stdout: a list with one object per file.")
@store_option
def import_(
    files: tuple[str, ...],
    experiment: str,
    session: str | None,
    algo: str,
    seed: int | None,
    workload: tuple[str, ...],
    hardware: tuple[str, ...],
    as_json: bool,
    tracking_uri: str | None,
) -> None:
    """Put finished trainings into MLflow.

    FILE is as for `canary judge`. A file whose content is already there is not written again, unless it is for another
    session.

    Runs of unknown workload or hardware are comparable with none. State them with --workload model=… --workload data=…
    --hardware gpu=…, in the same words for the same things, or put a JSON next to each file.
    """
    from canary_mlflow.files.events import runs_below
    from canary_mlflow.tracking.reading.imports import Stated, read_import

    paths = runs_below(map(Path, files))
    if seed is not None and len(paths) > 1:
        raise UsageError(f"--seed {seed} with {len(paths)} files; expected one file; import them one by one")
    stated = Stated(
        algo=algo,
        seed=seed,
        workload=key_values("--workload", workload, "model=pythia-70m"),
        hardware=key_values("--hardware", hardware, "gpu=H100"),
    )
    items = [read_import(path, stated) for path in paths]  # all of them, before anything is written
    results = write_all(items, experiment, session, tracking_uri)
    if as_json:
        click.echo(json_text(results))
    for item, result in zip(items, results, strict=True):
        if not as_json:
            echo_lines(text(shown(item), shown(result)))


def write_all(
    items: list[Imported], experiment: str, session: str | None, tracking_uri: str | None
) -> list[dict[str, Any]]:
    """Write what is not there yet; one plain object per file."""
    from canary_mlflow.tracking.reading.imports import find_import, write_import
    from canary_mlflow.tracking.stores.session import find_experiment, start_run
    from canary_mlflow.tracking.stores.store import prepare_store

    client = prepare_store(tracking_uri)
    home = find_experiment(client, experiment)
    before = {item.digest: find_import(client, item.digest, session) for item in items}
    parent = ""
    if session and not all(before.values()):
        parent = start_run(client, home, {tags.ROLE: "session", tags.RUN_NAME: session})
    results = []
    try:
        for item in items:
            known = before[item.digest]
            run_id = known or write_import(client, home, item, parent)
            before[item.digest] = run_id  # the same file twice on one command line
            results.append(imported_to_dict(item, run_id, bool(known), parent))
    finally:
        if parent:
            end_session(client, parent, all(item.run.completed for item in items) and len(results) == len(items))
    return results


def end_session(client: MlflowClient, parent: str, well: bool) -> None:
    """End the session: FINISHED if all its runs are whole (`well`), else FAILED."""
    client.set_terminated(parent, "FINISHED" if well else "FAILED")


def imported_to_dict(item: Imported, run_id: str, known: bool, session: str) -> dict[str, Any]:
    """What became of one file, for machines."""
    run = item.run
    return {
        "file": str(item.path),
        "kind": item.kind,
        "run_id": run_id,
        "session_id": session or None,
        "imported_before": known,
        "status": "FINISHED" if run.completed else "FAILED",
        "failure": run.failure or None,
        "reason": run.failure_reason or None,
        "last_step": run.last_step,
        "series": len(run.series),
        "algo": item.algo or None,
        "seed": run.seed,
        "comparable": "imported" not in {*run.workload, *run.hardware},
        "notes": list(item.notes),
    }


def text(item: Imported, result: dict[str, Any]) -> str:
    """What became of one file, for people."""
    if result["imported_before"]:
        return (
            f"{item.path}: imported before as run {result['run_id']}; nothing written "
            f"(to import it anew: mlflow runs delete --run-id {result['run_id']})"
        )
    how = f"FAILED ({item.run.failure}: {item.run.failure_reason})" if item.run.failure else "FINISHED"
    lines = [
        f"{item.path}: {item.kind}, {len(item.run.series)} series to step {item.run.last_step}, {how}; "
        f"run {result['run_id']}" + (f" of session {result['session_id']}" if result["session_id"] else "")
    ]
    lines += [f"  note: {note}" for note in item.notes]
    if not result["comparable"]:
        lines.append("  note: workload or hardware not stated: comparable with no other run (--workload, --hardware)")
    return "\n".join(lines)
