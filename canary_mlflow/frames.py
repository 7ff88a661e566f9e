"""The runs of a session as a pandas frame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from canary_mlflow.errors import plainly

if TYPE_CHECKING:
    from canary_mlflow.registry.sessions.own import Session


@plainly
def frame(session: Session | str, *, rows: bool = False, tracking_uri: str | None = None) -> Any:
    """A pandas frame with one row for each run, by its id: seed, whether it completed, its failure, its last step, and
    the last value of each series. With `rows` one row for each logged step of each run: `run`, `seed`, `step`, and a
    column per series, NaN where a step has no value; without those of the machine, which have steps of their own.

    `session`: what `session` or `register` deals with, or a text as for `compare`: the id of a session or a run,
    "MODEL/VERSION" or "MODEL@champion". Units are those of `canary_mlflow.gates.model.metrics`: seconds, MiB, nats.
    Raises NoSuchRun, NoSuchModel, NoSuchVersion, StoreError.
    """
    import pandas

    from canary_mlflow.resolve import find_evidence
    from canary_mlflow.tracking.stores.store import reading_store

    name, store = (session, tracking_uri) if isinstance(session, str) else (session.session_id, session.store)
    runs = find_evidence(reading_store(store), name).evidence.runs
    if not rows:
        columns = ("seed", "completed", "failure", "last_step")
        last = [{key: one.values[-1] for key, one in run.series.items() if len(one.values)} for run in runs]
        said = [{**{key: getattr(run, key) for key in columns}, **more} for run, more in zip(runs, last, strict=True)]
        return pandas.DataFrame(said, index=pandas.Index([run.run_id for run in runs], name="run"))
    found = {
        (run.run_id, run.seed): pandas.DataFrame(
            {
                key: pandas.Series(one.values, one.steps)
                for key, one in run.series.items()
                if not key.startswith("system/")
            }
        )
        for run in runs
    }
    names = ["run", "seed", "step"]
    return pandas.concat(found, names=names).reset_index() if found else pandas.DataFrame(columns=names)
