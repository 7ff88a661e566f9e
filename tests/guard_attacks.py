"""Every way that MLflow offers to move, remove or fake a champion, as one list."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import yaml
from guard_attack import DETECTED, EVERYWHERE, NOTHING, OPEN, REFUSED, SERVERS, Attack
from guard_doors import Refused, asked, command, request
from guard_evals import evals_attacks
from guard_scene import ASIDE, BARE, BLOCKED, CHAMPION, Scene
from guard_sql import sql_attacks
from mlflow.entities import Metric
from tiny_weights import safetensors

from canary_mlflow.errors import CanaryError
from canary_mlflow.policies import content_of
from canary_mlflow.registry.acts.by_hand import override
from canary_mlflow.registry.guard.seal import seal_version
from canary_mlflow.registry.pruning.needed import Terms
from canary_mlflow.registry.pruning.pruning import prune
from canary_mlflow.registry.sessions.registering import register_version
from canary_mlflow.registry.sessions.rows import Word, record_runs
from canary_mlflow.registry.sessions.rows import write as told
from canary_mlflow.tags import MODEL_SOURCE, SESSION_ID


def through(door: str, at: Callable[[Scene], Any], *, stock: bool = False) -> Iterator[Attack]:
    """What can be asked at the doors of the registry; a stock store knows no tags but the verdict's own."""
    where = SERVERS if door in ("REST 2.0", "ajax") else EVERYWHERE

    def attack(way: str, act: Callable[[Any], Any], worst: str = REFUSED) -> Attack:
        return Attack(door, way, lambda scene: act(at(scene)), worst, where)

    yield attack("move champion to a version without a verdict", lambda it: it.alias("m", "champion", BARE))
    yield attack("move champion to a version with a BLOCK", lambda it: it.alias("m", "champion", BLOCKED))
    yield attack("the same alias in capitals", lambda it: it.alias("m", "CHAMPION", BARE))
    yield attack("an alias that looks the same (Cyrillic, accent)", look_alikes)
    yield attack("move the anchor", lambda it: it.alias("m", "anchor", BARE))
    yield attack("champion of a model that was only sealed", lambda it: it.alias("swapped", "champion", "1"))
    yield attack("remove the alias", lambda it: it.unalias("m", "champion"))
    yield attack("rename the model", lambda it: it.rename("m", "m-renamed"))
    yield attack("rename an unguarded model to a guarded name", lambda it: it.rename("lab", "prod-lab"))
    yield attack("delete the model", lambda it: it.delete_model("m"))
    yield attack("delete the champion's version", lambda it: it.delete_version("m", CHAMPION))
    yield attack("delete it as version 01", lambda it: it.delete_version("m", "01"))
    yield attack("stage Production", lambda it: it.stage("m", BARE, "Production"))
    yield attack("tag a version canary.verdict=PASS", lambda it: it.tag("m", BARE, "canary.verdict", "PASS"))
    yield attack("the same tag in other letters", lambda it: it.tag("m", BARE, "Canary.Verdict", "PASS"))
    yield attack(
        "a tag that looks like canary.verdict (Cyrillic)", lambda it: it.tag("m", BARE, "can\u0430ry.verdict", "PASS"),
        NOTHING if stock else REFUSED,
    )  # fmt: skip
    yield attack(
        "take the tag of a BLOCK away", lambda it: it.untag("m", BLOCKED, "canary.verdict"),
        DETECTED if stock else REFUSED,
    )  # fmt: skip
    yield attack("a new model under a judged one's name", lambda it: it.create_model("gone", {}))
    yield Attack(
        door, "create a version with canary.verdict=PASS", where=where,
        act=lambda scene: at(scene).create_version("m", *source(scene, scene.runs[0]), {"canary.verdict": "PASS"}),
    )  # fmt: skip
    yield Attack(
        door, "other files with the evidence of a good session", where=where,
        act=lambda scene: scene.verdict("m", posing(scene, at(scene))),
    )  # fmt: skip
    yield Attack(
        door, "a good session's evidence, a good run's id, files from elsewhere", where=where,
        act=lambda scene: scene.verdict("m", elsewhere(scene, at(scene), scene.good_run)),
    )  # fmt: skip
    yield Attack(
        door, "a good session's evidence, no run, files from elsewhere", where=where,
        act=lambda scene: scene.verdict("m", elsewhere(scene, at(scene), "")),
    )  # fmt: skip
    if not stock:
        yield attack("tag the model canary.verdict=PASS", lambda it: it.tag_model("m", "canary.verdict", "PASS"))
        yield attack("create a model with the tag", lambda it: it.create_model("tagged", {"canary.verdict": "PASS"}))


def look_alikes(door: Any) -> Any:
    """One that Unicode takes for other letters, and one that it takes for an accent. Raises Refused for both."""
    for alias in ("ch\u0430mpion", "\u0109hampion"):
        try:
            return door.alias("m", alias, BARE)
        except Refused as error:
            refused = error
    raise refused


def source(scene: Scene, run_id: str) -> tuple[str, str]:
    """What a version of a run's files is made of."""
    return f"{scene.recorded.client.get_run(run_id).info.artifact_uri}/model", run_id


def posing(scene: Scene, door: Any) -> str:
    """A version of a bad run's files that names a good session as its evidence."""
    bad = scene.recorded.session(slower=2.0, runs=1)
    run_id = scene.recorded.children(bad)[0]
    made = door.create_version("m", *source(scene, run_id), {"canary.session_id": scene.good_session})
    return str(made["model_version"]["version"] if isinstance(made, dict) else made.version)


def elsewhere(scene: Scene, door: Any, run_id: str) -> str:
    """A version of files that no run has logged."""
    made = door.create_version("m", "s3://eve/weights", run_id, {"canary.session_id": scene.good_session})
    return str(made["model_version"]["version"] if isinstance(made, dict) else made.version)


def copied(scene: Scene) -> Any:
    made = scene.python.copy("m", CHAMPION, "prod-copy")
    return scene.python.alias("prod-copy", "champion", made.version)


def ghost(scene: Scene) -> Any:
    """A good session, whose run has lost all its files before it is registered."""
    recorded = scene.recorded
    session_id = recorded.session(runs=2)
    run_id = recorded.children(session_id)[0]
    scene.python.create_model("ghost", {})
    made = scene.python.create_version("ghost", *source(scene, run_id), {"canary.session_id": session_id})
    return scene.verdict("ghost", made.version)


def with_code(scene: Scene) -> Any:
    """A module beside good weights, where the policy refuses it."""
    recorded = replace(scene.recorded, model="coded", seed=160)
    session = recorded.session(runs=2)
    run_id = recorded.children(session)[0]
    recorded.weights(run_id, b"import os", "modeling_x.py")
    version = recorded.register(session)
    scene.verdict("coded", version)
    return scene.python.alias("coded", "champion", version)


def large_header(scene: Scene) -> Any:
    """Of 2 MB, for weights of a few bytes."""
    names = {f"{number}{'x' * 200}": np.zeros(1, np.float32) for number in range(8000)}
    recorded = replace(scene.recorded, model="headed", seed=170)
    return scene.verdict("headed", recorded.version_of(safetensors(**names)))


def swapped(scene: Scene) -> Any:
    found = scene.recorded.client.get_model_version("swapped", "1")
    scene.recorded.weights(found.run_id, safetensors(weight=np.ones(4, np.float32)))
    return scene.verdict("swapped", "1")


def own_policy(scene: Scene) -> Any:
    """A policy that lets everything pass, logged with a good run; its path is the tier of a bad one."""
    body = content_of("smoke")
    for rule in body["rules"].values():
        rule["margin"] = 2.0 if rule["worse"] == "higher" else 0.95
    scene.recorded.client.log_text(scene.good_run, yaml.safe_dump(body), "lax.yaml")
    place = scene.mode.folder / ("artifacts" if scene.mode.is_server else "mlruns")
    file = next(place.rglob("lax.yaml"))
    version = scene.recorded.version(slower=2.0, tags={"canary.tier": str(file)})
    return blocked(scene.verdict("m", version))


def own_tier(scene: Scene) -> Any:
    """A bad run that names the tier with the widest margins."""
    version = scene.recorded.version(slower=1.3, tags={"canary.tier": "files"})
    return blocked(scene.verdict("m", version))


def blocked(word: str) -> str:
    """A BLOCK is a refusal too. Raises Refused."""
    if word == "BLOCK":
        raise Refused(None, "BLOCK, by the policy in force")
    return word


def alone(scene: Scene) -> Any:
    """One person asks for an override, and carries it out."""
    for _ in range(2):
        if scene.mode.is_server:
            body = {"model": "two", "version": "2", "reason": "nobody need know"}
            request(f"{scene.mode.front}/api/2.0/canary/overrides", "POST", body)
            continue
        try:
            override(scene.recorded.client, "two", "2", "nobody need know", actor="eve")
        except CanaryError as error:
            raise Refused(None, str(error)) from error
    return scene.recorded.client.get_model_version_by_alias("two", "champion").version


def linked(scene: Scene) -> Any:
    """By somebody who may write the folder in which artifacts are kept."""
    recorded = scene.recorded
    session_id = recorded.session(runs=2)
    run_id = recorded.children(session_id)[0]
    recorded.weights(run_id)
    file = Path(scene.mode.artifacts) / Path(scene.file_of(run_id)).with_name("model.safetensors")
    elsewhere = scene.mode.folder / "elsewhere.safetensors"
    file.rename(elsewhere)
    file.symlink_to(elsewhere)
    scene.python.create_model("linked", {})
    made = scene.python.create_version("linked", *source(scene, run_id), {"canary.session_id": session_id})
    try:
        seal_version(recorded.client, "linked", made.version)
    except CanaryError as error:
        raise Refused(None, str(error)) from error
    return scene.verdict("linked", made.version)


def linked_folder(scene: Scene) -> Any:
    """The same with the whole folder."""
    recorded = scene.recorded
    session_id = recorded.session(runs=2)
    run_id = recorded.children(session_id)[0]
    recorded.weights(run_id)
    folder = (Path(scene.mode.artifacts) / scene.file_of(run_id)).parent
    elsewhere = scene.mode.folder / f"elsewhere-{folder.parent.parent.name}"  # each attacker has a run of its own
    folder.rename(elsewhere)
    folder.symlink_to(elsewhere)
    scene.python.create_model("linked-folder", {})
    made = scene.python.create_version("linked-folder", *source(scene, run_id), {"canary.session_id": session_id})
    try:
        seal_version(recorded.client, "linked-folder", made.version)
    except CanaryError as error:
        raise Refused(None, str(error)) from error
    return scene.verdict("linked-folder", made.version)


def late_files(scene: Scene) -> Any:
    """Files in another run of a good session, which had none when that ended."""
    run_id = next(one for one in scene.recorded.children(scene.good_session) if one != scene.good_run)
    scene.recorded.weights(run_id, safetensors(weight=np.full(4, 7, np.float32)))
    return judged_with(scene, source(scene, run_id)[0], run_id)


def untrained(scene: Scene, recorded: bool) -> Any:
    """A folder of other weights for a good session, whose runs recorded what they trained, or did not."""
    runs, client = scene.recorded, scene.recorded.client
    session_id = runs.session()
    values = {"count": 4, "dtype": "float32", "values": [1.0] * 4, "norm": 2.0}
    for run_id in runs.children(session_id) if recorded else ():
        client.log_text(run_id, json.dumps({"tensors": {"weight": values}}), "trained.json")
    runs.weights(session_id, safetensors(weight=np.full(4, 7, np.float32)))
    claim = {"recorded": {}, "repeated": {"answer": 0.0}, "different": []}  # which nobody can look up
    try:
        version = register_version(client, "m", session_id, session_id, evaluation=claim if recorded else None)
    except CanaryError as error:
        raise Refused(None, str(error)) from error
    if (word := scene.verdict("m", version)) != "PASS":
        raise Refused(None, f"{word}: its weights were not compared")
    return word


def named_by_an_editor(scene: Scene) -> Any:
    """Slow runs in the champion's session, so that the next one looks better, and the row that would name them."""
    client = scene.recorded.client
    session = client.get_model_version("tried", CHAMPION).tags["canary.session_id"]
    slow = scene.recorded.run(session, 9, slower=1.8, tags={}, nan_at=None, without=())
    try:
        if scene.mode.is_server:
            body = {"model": "tried", "session": session, "word": "ended"}
            request(f"{scene.mode.front}/api/2.0/canary/sessions", "POST", body)
        else:
            told(client, session, "tried", Word.ENDED)
    except CanaryError as error:
        raise Refused(None, str(error)) from error
    finally:
        client.delete_tag(slow, "mlflow.parentRunId")
    return scene.verdict("tried", scene.tried["next"])


def prompt(scene: Scene) -> Any:
    asked(lambda: mlflow.genai.register_prompt("prod-prompt", "Say {{word}}"))
    return asked(lambda: mlflow.genai.set_prompt_alias("prod-prompt", alias="champion", version=1))


def registered(scene: Scene) -> Any:
    place, _ = source(scene, scene.runs[0])
    return asked(lambda: mlflow.register_model(place, "m", tags={"canary.verdict": "PASS"}))


def stale(scene: Scene) -> Any:
    found = scene.recorded.client.get_model_version("m", ASIDE)
    run_id = scene.recorded.children(found.tags["canary.session_id"])[0]
    scene.recorded.client.log_batch(run_id, metrics=[Metric("perf/step_time", 0.001, 1_900_000_000_000, 40)])
    return scene.python.alias("m", "champion", ASIDE)


def resumed(scene: Scene) -> Any:
    if scene.recorded.client.get_run(scene.runs[1]).info.lifecycle_stage == "deleted":  # by another attack
        scene.recorded.client.restore_run(scene.runs[1])
    with mlflow.start_run(run_id=scene.runs[1]):
        mlflow.log_metric("quality/eval_loss", 0.001, step=40)


def overwritten(scene: Scene) -> Any:
    place = scene.file_of(scene.runs[0])
    if scene.mode.is_server:
        return request(f"{scene.mode.front}/api/2.0/mlflow-artifacts/artifacts/{place}", "PUT", b"evil weights")
    return Path(place).write_text("evil weights")


def overwritten_by_command(scene: Scene) -> str:
    file = scene.mode.folder / "weights"
    file.write_text("other evil weights")
    return command("artifacts", "log-artifact", "--run-id", scene.runs[0], "--local-file", str(file), "-a", "model")


def evidence(scene: Scene, what: str) -> tuple[str, str, list[str]]:
    """A version that was blocked, its session, and the runs that it was blocked for."""
    version, client = scene.tried[what], scene.recorded.client
    session = client.get_model_version("tried", version).tags["canary.session_id"]
    runs = scene.recorded.children(session)
    return version, session, [one for one in runs if client.get_run(one).data.tags["canary.failure"]]


def deleted_runs(scene: Scene) -> Any:
    version, _, bad = evidence(scene, "deleted")
    for run_id in bad:
        scene.recorded.client.delete_run(run_id)
    return scene.verdict("tried", version)


def moved_runs(scene: Scene) -> Any:
    version, _, bad = evidence(scene, "moved")
    for run_id in bad:
        scene.recorded.client.set_tag(run_id, "mlflow.parentRunId", evidence(scene, "deleted")[1])
    return scene.verdict("tried", version)


def overwritten_runs(scene: Scene) -> Any:
    version, _, bad = evidence(scene, "overwritten")
    good = {"canary.failure": "", "canary.completed": "true", "canary.nan_steps": "0"}
    for run_id in bad:
        for key, value in good.items():
            scene.recorded.client.set_tag(run_id, key, value)
        numbers = [Metric(key, value, 1_900_000_000_000, step) for step in range(1, 41)
                   for key, value in (("stability/loss", 0.7 - step / 200), ("stability/nonfinite", 0.0))]  # fmt: skip
        scene.recorded.client.log_batch(run_id, metrics=numbers)
    return scene.verdict("tried", version)


def adopted_runs(scene: Scene) -> Any:
    """A good run of another session into the one of a version that was blocked."""
    session = scene.recorded.client.get_model_version("m", BLOCKED).tags["canary.session_id"]
    scene.recorded.client.set_tag(scene.runs[2], "mlflow.parentRunId", session)
    return scene.verdict("m", BLOCKED)


def made_beside(scene: Scene) -> Any:
    """Runs of no known role, as slow as the blocked version, named as the champion's beside it."""
    session = scene.recorded.client.get_model_version("m", BLOCKED).tags["canary.session_id"]
    beside = {"canary.role": "note", "canary.baseline_of": CHAMPION}
    for seed in range(3):
        scene.recorded.run(session, seed, slower=2.0, tags=beside, nan_at=None, without=())
    if (word := scene.verdict("m", BLOCKED)) != "PASS":
        raise Refused(None, f"{word}, by the runs that rows name")


def explained_later(scene: Scene) -> Any:
    """A parameter after the end: a setting of any name may explain another first loss."""
    session = scene.recorded.session()
    version = scene.recorded.register(session)
    scene.recorded.client.log_param(scene.recorded.children(session)[0], "why_not", "1")
    return scene.verdict("m", version)


def no_worst_run(scene: Scene) -> Any:
    """The run that would show it has no evaluation."""
    recorded = scene.recorded
    session = recorded.session(runs=2)
    recorded.run(session, 2, slower=1.0, tags={}, nan_at=None, without=("quality/eval_loss",))
    if (word := scene.verdict("m", recorded.register(session))) != "PASS":
        raise Refused(None, f"{word}, by what the run leaves out")
    return word


def sealed_early(scene: Scene) -> Any:
    """Other weights, sealed before the run saves its own, and put back after its session's end."""
    recorded, other = scene.recorded, safetensors(weight=np.full(4, 7, np.float32))
    session = recorded.session()
    run_id = recorded.children(session)[0]
    recorded.weights(run_id, other)
    place, tags = f"{recorded.client.get_run(run_id).info.artifact_uri}/model", {"canary.session_id": session}
    version = str(recorded.client.create_model_version("m", place, run_id, tags=tags).version)
    seal_version(recorded.client, "m", version)
    recorded.weights(run_id)
    told(recorded.client, session, "m", Word.ENDED)
    recorded.weights(run_id, other)
    return scene.verdict("m", version)


def added_to_champion(scene: Scene) -> Any:
    """Bad runs of the champion's code, so that the next one looks better."""
    client = scene.recorded.client
    session = client.get_model_version("tried", CHAMPION).tags["canary.session_id"]
    for seed in (7, 8):
        scene.recorded.run(session, seed, slower=4.0, tags={}, nan_at=None, without=())
    return scene.verdict("tried", scene.tried["next"])


def pruned(scene: Scene) -> Any:
    """The champion's files, given up by the one command that removes files."""
    if scene.mode.is_server:
        body = {"model": "m", "version": CHAMPION}
        return request(f"{scene.mode.front}/api/2.0/canary/prunings", "POST", body)
    try:
        return prune(scene.recorded.client, "m", Terms(), version=CHAMPION)
    except CanaryError as error:
        raise Refused(None, str(error)) from error


def judged_with(scene: Scene, place: str, run_id: str) -> Any:
    """A version of these files with the evidence of `m`'s champion, sealed and judged."""
    tags = {"canary.session_id": scene.good_session}
    own = {"model_id": place.removeprefix("models:/")} if place.startswith("models:/m-") else {}
    made = asked(lambda: scene.recorded.client.create_model_version("m", place, run_id, tags=tags, **own))
    try:
        seal_version(scene.recorded.client, "m", str(made.version))
    except CanaryError as error:
        raise Refused(None, str(error)) from error
    return scene.verdict("m", str(made.version))


def vouched_later(scene: Scene) -> Any:
    """A bad run's files, which a good run's tag calls its own after its session has ended."""
    client = scene.recorded.client
    run_id = scene.recorded.children(scene.recorded.session(slower=2.0, runs=1))[0]
    scene.recorded.weights(run_id, safetensors(weight=np.full(4, 7, np.float32)))
    place = f"{client.get_run(run_id).info.artifact_uri}/model"
    client.set_tag(scene.good_run, MODEL_SOURCE, place)
    try:
        return judged_with(scene, place, scene.good_run)
    finally:
        client.delete_tag(scene.good_run, MODEL_SOURCE)


def own_baseline(scene: Scene) -> Any:
    """Slow code, trained three times more in its own session, with the tags of a run of the champion's code."""
    recorded = scene.recorded
    session = recorded.session(slower=3.0)
    first = recorded.children(session)[0]
    beside = {"canary.role": "baseline", "canary.baseline_of": str(recorded.champion())}
    for seed in range(3):
        recorded.run(session, seed, slower=3.0, tags=beside, nan_at=None, without=())
    recorded.weights(first)
    if (word := scene.verdict("m", register_version(recorded.client, "m", session, first))) != "PASS":
        raise Refused(None, f"{word}: no row ordered them")


def ordered_unnamed(scene: Scene) -> Any:
    """A run that has not begun, which the server is asked to call one of the champion's code."""
    client, session = scene.recorded.client, scene.recorded.session(runs=1, slower=3.0)
    tags = {"mlflow.parentRunId": session, "canary.role": "baseline"}
    run_id = client.create_run(scene.recorded.experiment, tags=tags).info.run_id
    body = {"model": "m", "session": session, "word": "ordered", "run": run_id}
    try:
        return request(f"{scene.mode.front}/api/2.0/canary/sessions", "POST", body)
    finally:
        client.set_terminated(run_id)


def swapped_in_place(scene: Scene) -> Any:
    """Other weights in the place that a run's tag names, between the end of its session and the seal."""
    recorded, other = scene.recorded, safetensors(weight=np.full(4, 7, np.float32))
    session = recorded.session()
    run_id, aside = recorded.children(session)[0], recorded.create({}, "FINISHED")
    recorded.weights(aside)
    place = f"{recorded.client.get_run(aside).info.artifact_uri}/model"
    recorded.client.set_tag(run_id, MODEL_SOURCE, place)
    record_runs(recorded.client, session, "m")
    recorded.weights(aside, other)
    tags = {SESSION_ID: session}
    version = asked(lambda: recorded.client.create_model_version("m", place, run_id=run_id, tags=tags)).version
    try:
        seal_version(recorded.client, "m", str(version))
    except CanaryError as error:
        raise Refused(None, str(error)) from error
    return scene.verdict("m", str(version))


def logged_later(scene: Scene) -> Any:
    """Other files as a logged model, which names a good run as its source after its session has ended."""
    client, folder = scene.recorded.client, scene.mode.folder / "logged"
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").write_bytes(safetensors(weight=np.full(4, 7, np.float32)))
    made = client.create_logged_model(scene.recorded.experiment, name="posing", source_run_id=scene.good_run)
    client.log_model_artifacts(made.model_id, str(folder))
    client.finalize_logged_model(made.model_id, "READY")
    return judged_with(scene, f"models:/{made.model_id}", scene.good_run)


def graphql(scene: Scene) -> Any:
    query = (
        'mutation { mlflowSetRegisteredModelAlias(input: {name: "m", alias: "champion", version: "3"}) '
        "{ apiError { message } } }"
    )
    answer = request(f"{scene.mode.front}/graphql", "POST", {"query": query, "operationName": None})
    if answer.get("errors"):
        raise Refused(200, str(answer["errors"][0]))
    return answer


def mutations(scene: Scene) -> Any:
    """All that GraphQL lets anybody change: an echo."""
    query = "{ __schema { mutationType { fields { name } } } }"
    answer = request(f"{scene.mode.front}/graphql", "POST", {"query": query, "operationName": None})
    return [one["name"] for one in answer["data"]["__schema"]["mutationType"]["fields"]]


def other_attacks() -> Iterator[Attack]:
    """By the doors that have ways of their own."""
    yield Attack("Python client", "copy the champion, alias the copy", copied)
    yield Attack("Python client", "a metric after the PASS, before the promotion", stale)
    yield Attack(
        "Python client",
        "write PASS into a description",
        lambda scene: asked(lambda: scene.recorded.client.update_model_version("m", BARE, "PASS").description),
        OPEN,
    )
    yield Attack("Python client", "a version whose files were removed before it was registered", ghost)
    yield Attack("Python client", "another file of weights after the seal", swapped)
    yield Attack("artifact store", "a link to elsewhere among the files of a new version", linked)
    yield Attack("artifact store", "the folder of a new version is a link to elsewhere", linked_folder)
    yield Attack("training script", "no evaluation of the run that would show it", no_worst_run, told=True)
    yield Attack("training script", "weights that hold a NaN", lambda scene: scene.verdict("with-nan", "1"))
    yield Attack("training script", "weights that are cut off", lambda scene: scene.verdict("cut-off", "1"))
    yield Attack("training script", "weights with a header of 2 MB", large_header, told=True)
    yield Attack("training script", "code beside good weights, where the policy refuses it", with_code, told=True)
    yield Attack("training script", "a policy as an artifact, its path as the tag canary.tier", own_policy, told=True)
    yield Attack("training script", "a policy without times, its name as the tag canary.tier", own_tier, told=True)
    yield Attack("CLI and REST", "override a BLOCK alone, where the policy asks for two people", alone, told=True)
    yield Attack("CLI and REST", "prune the champion", pruned)
    yield Attack("fluent", "register_model with canary.verdict=PASS", registered)
    yield Attack(
        "fluent",
        "set_model_version_tag canary.verdict=PASS",
        lambda scene: asked(lambda: mlflow.set_model_version_tag("m", BARE, "canary.verdict", "PASS")),
    )
    yield Attack("fluent", "genai.set_prompt_alias champion", prompt)
    yield Attack("fluent", "a metric into a finished run of the champion", resumed, DETECTED)
    yield Attack(
        "REST 2.0",
        "take the model for a prompt: mlflow.prompt.is_prompt",
        lambda scene: scene.rest.tag_model("m", "mlflow.prompt.is_prompt", "true"),
        where=SERVERS,
    )
    yield Attack(
        "REST 2.0",
        "take the champion's version for a prompt",
        lambda scene: scene.rest.tag("m", CHAMPION, "mlflow.prompt.is_prompt", "true"),
        where=SERVERS,
    )
    yield Attack("REST 2.0", "overwrite the champion's files", overwritten, DETECTED)
    yield Attack(
        "REST 2.0",
        "a fact of a champion's run: canary.learned=false",
        lambda scene: asked(lambda: scene.recorded.client.set_tag(scene.runs[2], "canary.learned", "false")),
        DETECTED,
    )
    yield Attack(
        "REST 2.0",
        "another host for a champion's run: canary.env.host",
        lambda scene: asked(lambda: scene.recorded.client.set_tag(scene.runs[0], "canary.env.host", "elsewhere")),
        DETECTED,
    )
    yield Attack("CLI", "artifacts log-artifact over the champion's files", overwritten_by_command, DETECTED)
    yield Attack(
        "CLI",
        "runs delete: the champion's evidence",
        lambda scene: command("runs", "delete", "--run-id", scene.runs[1]),
        DETECTED,
    )
    yield Attack("Python client", "delete the runs that a BLOCK was for, judge again", deleted_runs)
    yield Attack("Python client", "move them to another session, judge again", moved_runs)
    yield Attack("Python client", "overwrite their metrics and tags, judge again", overwritten_runs)
    yield Attack("Python client", "made-up runs as the champion's beside a blocked version", made_beside, told=True)
    yield Attack("Python client", "a parameter of a run after the end, judge", explained_later, told=True)
    yield Attack("Python client", "other weights, sealed while a run trains", sealed_early, told=True)
    yield Attack("Python client", "a good session's run into a blocked one, judge again", adopted_runs)
    yield Attack("Python client", "slow runs into the champion's session, judge the next", added_to_champion)
    yield Attack(
        "Python client", "slow runs into the champion's session, with a row that names them", named_by_an_editor
    )
    yield Attack("Python client", "other files in a run of a good session that had none when it ended", late_files)
    yield Attack("Python client", "slow runs in its own session, tagged as the champion's", own_baseline, told=True)
    yield Attack("REST 2.0", "order a run of the champion's code, nobody known", ordered_unnamed, where=("server",))
    yield Attack("Python client", "other files where a run's tag says, before the seal", swapped_in_place, told=True)
    yield Attack("Python client", "a bad run's files, which a good run's tag calls its own later", vouched_later)
    yield Attack(
        "Python client", "a logged model of other files that names a good run as its source", logged_later, told=True
    )
    yield Attack(
        "Python client", "another folder than a session trained", lambda scene: untrained(scene, recorded=True),
        told=True,
    )  # fmt: skip
    yield Attack(
        "Python client", "a folder for a session that recorded nothing of what it trained",
        lambda scene: untrained(scene, recorded=False), told=True,
    )  # fmt: skip
    yield Attack("GraphQL", "a mutation that sets the alias", graphql, where=SERVERS)
    yield Attack("GraphQL", "every mutation there is", mutations, NOTHING, SERVERS)
    yield Attack(
        "training script",
        "report better numbers than were measured",
        lambda scene: scene.verdict("m", scene.recorded.version()),
        OPEN,
    )


ATTACKS = (
    *through("REST 2.0", lambda scene: scene.rest),
    *through("ajax", lambda scene: scene.ajax),
    *through("Python client", lambda scene: scene.python),
    *through("stock store, same database", lambda scene: scene.stock, stock=True),
    *other_attacks(),
    *evals_attacks(),
    *sql_attacks(),
)  # fmt: skip
