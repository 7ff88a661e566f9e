"""What an attack finds: a registry with champions, made by the usual commands, and how to tell what the attack did."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa
from guard_doors import Http, Python, Refused, Sql, request
from guard_modes import Mode, stock_client
from tiny_weights import CUT_OFF, NAN, safetensors

from canary_mlflow.api import add_evals
from canary_mlflow.errors import CanaryError
from canary_mlflow.ledger import triggers
from canary_mlflow.ledger.chain import damages
from canary_mlflow.ledger.install import install
from canary_mlflow.ledger.keys import trusted
from canary_mlflow.ledger.table import LEDGER, METADATA
from canary_mlflow.ledger.writing import Head, against_witness
from canary_mlflow.policies import content_of, load_policy
from canary_mlflow.registry.audit import against_store
from canary_mlflow.registry.backends import registry_of
from canary_mlflow.registry.guard.reader import Reader
from canary_mlflow.registry.judging.assessment import Options, assess
from canary_mlflow.registry.judging.gatekeeper import enact, gate
from canary_mlflow.registry.plugin import guarded_store
from canary_mlflow.registry.policies.asked import policy_for, set_policy
from canary_mlflow.registry.sessions.registering import register_version

CHAMPION, BLOCKED, BARE, ASIDE = "1", "2", "3", "4"  # versions of `m`; ASIDE has a PASS that has moved nothing yet
EXAMINED = "examined"  # a model whose policy judges a benchmark
# Models of which one version is sealed, with what its weights are.
SEALED = {"swapped": safetensors(), "with-nan": NAN, "cut-off": CUT_OFF}
# In the order in which rows may be removed; the ledger stands for itself.
TABLES = (
    "registered_model_aliases", "model_version_tags", "model_versions", "registered_model_tags", "registered_models",
)  # fmt: skip
SHOWN = ("canary.verdict", "canary.blessed_by", "canary.overridden_by", "canary.rolled_back_by")


@dataclass(frozen=True, kw_only=True)
class Scene:
    """The models: `m` with a champion; `soft`, whose champion's runs and files are at hand; `lab`, which nobody guards
    while it is called so; `gone`, judged and then deleted; `two`, whose policy asks for two people to override the
    BLOCK of its version 2; `tried`, with a champion and versions that were blocked; those of SEALED."""

    mode: Mode
    recorded: Any
    runs: list[str]  # of `soft`'s champion
    good_session: str  # of `m`'s champion, with a run of it
    good_run: str
    tried: dict[str, str]  # what is to be attacked → the version of `tried` with a BLOCK
    heads: list[Head]  # of the ledger: what a witness has seen

    @property
    def rest(self) -> Http:
        return Http(f"{self.mode.front}/api/2.0")

    @property
    def ajax(self) -> Http:
        return Http(f"{self.mode.front}/ajax-api/2.0")

    @property
    def python(self) -> Python:
        return Python(self.recorded.client)

    @property
    def stock(self) -> Python:
        return Python(self.mode.stock())

    @property
    def sql(self) -> Sql:
        return Sql(self.mode.engine(self.mode.inside))

    def verdict(self, model: str, version: str) -> Any:
        """Ask for a verdict as a client does. Raises Refused."""
        if self.mode.is_server:
            body = {"model": model, "version": str(version)}
            return request(f"{self.mode.front}/api/2.0/canary/verdicts", "POST", body)["decision"]["decision"]
        try:
            client = self.recorded.client
            return gate(client, model, str(version), policy_for(client, model, str(version), None)).word
        except CanaryError as error:
            raise Refused(None, str(error)) from error

    def file_of(self, run_id: str) -> str:
        """Where the weights of a run are, for HTTP behind the server's artifact route, else in the folder."""
        place = str(self.recorded.client.get_run(run_id).info.artifact_uri)
        return place.removeprefix("mlflow-artifacts:/").removeprefix("file://") + "/model/weights"


def stage(mode: Mode, recorder: Any) -> Scene:
    """The models and versions, recorded and judged through the front door."""
    client = mode.client()
    place = {} if mode.is_server else {"artifact_location": str(mode.folder / "mlruns")}
    experiment = client.create_experiment("attacked", **place)
    recorded = recorder(client=client, uri=mode.owner, experiment=experiment, model="m")  # curves into the tables
    policy = load_policy("smoke")
    good = with_files(recorded)
    gate(client, "m", recorded.register(good), policy)
    gate(client, "m", recorded.version(slower=2.0), policy)
    recorded.version(runs=2)
    judge_aside(mode, client, recorded.version())
    soft = replace(recorded, model="soft", seed=50)
    session = with_files(soft)
    gate(client, "soft", soft.register(session), policy)
    client.create_registered_model("lab")
    client.create_model_version("lab", client.get_run(soft.children(session)[0]).info.artifact_uri + "/model",
                                run_id=soft.children(session)[0])  # fmt: skip
    client.set_registered_model_alias("lab", "shadow", "1")
    for seed, (model, content) in enumerate(SEALED.items(), 60):
        replace(recorded, model=model, seed=seed).version_of(content)
    careful = {**content_of("smoke"), "name": "careful", "override": {"operators": 2}}
    owner = stock_client(mode.owner)
    set_policy(owner, "two", careful, "for the attacks", "ann")
    set_policy(owner, "coded", {**content_of("smoke"), "name": "no-code", "refuse_code": True}, "…", "ann")
    two = replace(recorded, model="two", seed=70)
    gate(client, "two", two.version(), policy)
    gate(client, "two", two.version(slower=2.0), policy)
    gone = replace(recorded, model="gone", seed=80)
    gate(client, "gone", gone.version(nan_at=20), policy)
    client.delete_registered_model("gone")
    examine(mode, replace(recorded, model=EXAMINED, seed=85), owner)
    tried = try_often(replace(recorded, model="tried", seed=90), policy)
    heads = [Head(seq=row.seq, digest=row.digest) for row in mode.guard().rows(everywhere=True)]
    at_front = replace(recorded, uri=mode.front)  # as an attack has it
    return Scene(mode=mode, recorded=at_front, runs=soft.children(session), good_session=good,
                 good_run=recorded.children(good)[0], tried=tried, heads=heads)  # fmt: skip


def examine(mode: Mode, recorded: Any, owner: Any) -> None:
    """A champion with results of a benchmark, which the policy judges: 80 of 400 items are wrong; and a version 2."""
    policy = {**content_of("smoke"), "name": "examined", "evals": {"evaluation": {"margin": 0.05}}}
    set_policy(owner, EXAMINED, policy, "for the attacks", "ann")
    version = recorded.version()
    gate(recorded.client, EXAMINED, version, load_policy(policy))
    path = mode.folder / "champion.jsonl"
    answers = ({"id": at, "score": float(at >= 80), "input": str(at), "output": f"champion {at}"} for at in range(400))
    path.write_text("".join(json.dumps(row) + "\n" for row in answers))
    add_evals(f"{EXAMINED}/{version}", path, tracking_uri=mode.front)
    recorded.version()


TRIED = ("deleted", "moved", "overwritten")


def try_often(recorded: Any, policy: Any) -> dict[str, str]:
    """A champion, and versions of two good runs and two with NaN, each of them blocked."""
    gate(recorded.client, "tried", recorded.version(runs=2), policy)
    found = {}
    for what in TRIED:
        session = recorded.session(runs=2)
        good = recorded.children(session)[0]
        for seed in (2, 3):
            recorded.run(session, seed, slower=1.0, tags={}, nan_at=20, without=())
        recorded.weights(good)
        found[what] = register_version(recorded.client, "tried", session, good)
        gate(recorded.client, "tried", found[what], policy)
    found["next"] = recorded.version(runs=2, slower=1.8)  # nobody has judged it yet
    return found


def with_files(recorded: Any) -> str:
    """A session whose first run has a file to be served as the model."""
    session: str = recorded.session()
    recorded.client.log_text(recorded.children(session)[0], "good weights", "model/weights")
    return session


def judge_aside(mode: Mode, client: Any, version: str) -> None:
    """A PASS in the ledger that has moved nothing yet."""
    if mode.is_server:
        body = {"model": "m", "version": version, "promote": False}
        request(f"{mode.front}/api/2.0/canary/verdicts", "POST", body)
    else:
        judged = assess(client, "m", version, load_policy("smoke"), Options(promote=False))
        enact(registry_of(client), judged)


Snapshot = dict[str, list[tuple[Any, ...]]]


def tables(mode: Mode) -> dict[str, list[dict[str, Any]]]:
    """Everything that an attack could have moved, and that can be put back."""
    with mode.engine().connect() as connection:
        there = sa.inspect(connection).has_table(LEDGER.name)
        found = {
            name: [dict(row._mapping) for row in connection.execute(sa.text(f"SELECT * FROM {name}"))]
            for name in (*TABLES, *((LEDGER.name,) if there else ()))
        }
    return found


def what_counts(found: dict[str, list[dict[str, Any]]], *, rows: bool = True) -> Snapshot:
    """Who is champion, by which row, what is shown of it, and that it is there; without `rows` only the first."""
    counted = all_that_counts(found)
    return counted if rows else {"aliases": counted["aliases"]}


def all_that_counts(found: dict[str, list[dict[str, Any]]]) -> Snapshot:
    return {
        "aliases": sorted((row["name"], row["alias"], row["version"]) for row in found["registered_model_aliases"]),
        "ledger": sorted((row["seq"], row["digest"]) for row in found.get(LEDGER.name, [])),
        "shown": sorted(
            (row["name"], row["version"], row["key"], row["value"])
            for row in found["model_version_tags"]
            if row["key"].lower() in SHOWN
        ),
        "versions": sorted(
            (row["name"], row["version"], row["current_stage"], row["source"], row["description"] or "")
            for row in found["model_versions"]
            if (row["name"], row["version"]) in (("m", 1), ("m", 2), ("m", 3), ("soft", 1))
        ),
        "models": sorted((row["name"],) for row in found["registered_models"] if row["name"] in ("m", "soft", "gone")),
    }


def put_back(mode: Mode, found: dict[str, list[dict[str, Any]]]) -> None:
    """As the owner can: without the triggers, which are made again."""
    engine = mode.engine()
    known = sa.MetaData()
    known.reflect(engine, only=TABLES)
    with engine.begin() as connection:
        METADATA.create_all(connection)
        for statement in triggers.drop(engine.dialect.name):
            connection.execute(sa.text(statement))
        for table in (*(known.tables[name] for name in TABLES), LEDGER):
            connection.execute(table.delete())
        for table in (*(known.tables[name] for name in reversed(TABLES)), LEDGER):
            if found[table.name]:
                connection.execute(table.insert(), found[table.name])
    install(engine)


def findings(scene: Scene) -> set[str]:
    """What `canary audit verify --witness` names, on the server's machine."""
    guarded_store.cache_clear()  # a command opens the store anew
    scene.mode.guard()  # which makes a ledger anew where somebody has dropped it
    reader = Reader(registry=scene.mode.owner, tracking=scene.mode.owner)
    rows, keys = reader.ledger(), reader.keys(trusted())
    held = (*damages(rows, keys), *against_witness(rows, scene.heads))
    return {str(one) for one in (*held, *against_store(reader, rows, scene.mode.artifacts))}
