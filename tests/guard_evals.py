"""Attacks on evaluations: every way to have a worse model look no worse, or its champion look no better."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from guard_attack import SERVERS, Attack
from guard_doors import Refused, request
from guard_scene import EXAMINED, Scene

from canary_mlflow import api
from canary_mlflow.errors import CanaryError

UNKNOWN = "2"  # a version that trained as well as the champion, and that nobody has evaluated


def rows(wrong: int, *, left_out: int = 0) -> list[dict[str, Any]]:
    """400 items of which the first are wrong, and of these the first were left out."""
    found = ({"id": at, "score": float(at >= wrong), "input": str(at), "output": f"{at >= wrong} {wrong}"}
             for at in range(left_out, 400))  # fmt: skip
    return list(found)


def added(scene: Scene, version: str, found: Iterable[dict[str, Any]], **more: Any) -> str:
    """The run of an evaluation that was added by the usual command. Raises Refused."""
    path = scene.mode.folder / f"{version}-{len(list(scene.mode.folder.glob('*.jsonl')))}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in found))
    return added_file(scene, version, path, **more)


def added_file(scene: Scene, version: str, path: Path, **more: Any) -> str:
    try:
        return api.add_evals(f"{EXAMINED}/{version}", path, tracking_uri=scene.mode.front, **more)
    except CanaryError as error:
        raise Refused(None, str(error)) from error


def candidate(scene: Scene, seed: int) -> str:
    """Another one, to be evaluated."""
    return str(replace(scene.recorded, model=EXAMINED, seed=seed).version())


def judged(scene: Scene, version: str) -> str:
    """The verdict, if it is a PASS. Raises Refused."""
    if (word := scene.verdict(EXAMINED, version)) != "PASS":
        raise Refused(None, f"{word}, by the items")
    return str(word)


def edited(scene: Scene) -> Any:
    version = candidate(scene, 300)
    run = added(scene, version, rows(200))
    file = Path(scene.recorded.client.download_artifacts(run, "evals.json", str(scene.mode.folder)))
    scene.recorded.client.log_text(run, file.read_text().replace("[0.0]", "[1.0]"), "evals.json")
    return judged(scene, version)


def better_metric(scene: Scene) -> Any:
    version = candidate(scene, 310)
    scene.recorded.client.log_metric(added(scene, version, rows(200)), "eval/evaluation", 0.9)
    return judged(scene, version)


def champions_file(scene: Scene) -> Any:
    added_file(scene, UNKNOWN, scene.mode.folder / "champion.jsonl")
    return judged(scene, UNKNOWN)


def picked(scene: Scene) -> Any:
    version = candidate(scene, 330)
    added(scene, version, rows(200))
    added(scene, version, rows(78))
    return judged(scene, version)


def left_out(scene: Scene) -> Any:
    version = candidate(scene, 340)
    added(scene, version, rows(200, left_out=120))
    return judged(scene, version)


def other_weights(scene: Scene) -> Any:
    folder = scene.mode.folder / "better"
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").write_bytes(b"other weights")
    added(scene, UNKNOWN, rows(78), weights=folder)
    return judged(scene, UNKNOWN)


def lowered(scene: Scene) -> Any:
    added(scene, "1", rows(380))
    added(scene, UNKNOWN, rows(200))
    return judged(scene, UNKNOWN)


def claimed(scene: Scene) -> Any:
    body = {"model": EXAMINED, "version": UNKNOWN, "run": scene.good_run, "score": 1.0}
    return request(f"{scene.mode.front}/api/2.0/canary/evals", "POST", body)


def of_another(scene: Scene) -> Any:
    """The run of the champion's evaluation, named for the candidate."""
    runs = scene.recorded.client.get_model_version(EXAMINED, "1").tags["canary.evals"]
    body = {"model": EXAMINED, "version": UNKNOWN, "run": runs}
    return request(f"{scene.mode.front}/api/2.0/canary/evals", "POST", body)


def evals_attacks() -> Iterator[Attack]:
    """On a model whose policy judges a benchmark, each by a candidate that fails it, or has no evaluation."""
    yield Attack("Python client", "another table in the run of an evaluation, judge", edited, told=True)
    yield Attack("Python client", "a better score as a metric of its run, judge", better_metric, told=True)
    yield Attack("CLI", "the champion's results as the candidate's", champions_file, told=True)
    yield Attack("CLI", "a second run of a benchmark, to pick the better one", picked, told=True)
    yield Attack("CLI", "results without the items that fail", left_out, told=True)
    yield Attack("CLI", "results of other weights", other_weights, told=True)
    yield Attack("CLI", "worse results for the champion, judge the next", lowered, told=True)
    yield Attack("REST 2.0", "evals with a score", claimed, where=SERVERS, told=True)
    yield Attack("REST 2.0", "evals with the run of another version's", of_another, where=SERVERS, told=True)
