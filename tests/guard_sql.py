"""What somebody who is connected to the database can try: the file's owner, or the role that a server serves as."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

from guard_attack import DETECTED, EVERYWHERE, OPEN, REFUSED, Attack
from guard_scene import Scene, tables
from sqlalchemy import Engine

from canary_mlflow.ledger import table, triggers
from canary_mlflow.ledger.chain import Kind, Record, signed, stamp
from canary_mlflow.ledger.keys import Signer, handover_text, key_folder, load_signer, publish
from canary_mlflow.ledger.succession import REVOKED, ROTATED, TRUSTED, key_record
from canary_mlflow.policies import content_of
from canary_mlflow.registry.policies.in_force import policy_record

POSTGRESQL = ("PostgreSQL", "split")
SQLITE = ("embedded", "SQLite")
MOVE = "UPDATE registered_model_aliases SET version = 3 WHERE name = 'm' AND alias = 'champion'"
TAG = (
    "INSERT INTO model_version_tags (workspace, name, version, key, value) "
    "VALUES ('default', 'm', 3, 'canary.verdict', 'PASS')"
)
METRIC = (
    "UPDATE metrics SET value = value + 1 WHERE key = 'perf/peak_memory' AND step = 40 "
    "AND run_uuid IN (SELECT run_uuid FROM tags WHERE key = 'canary.seed' AND value = '2')"
)
BACK = MOVE.replace("version = 3", "version = 1")
EVIL = (
    "INSERT OR REPLACE INTO model_versions (workspace, name, version, creation_time, current_stage, source) SELECT "
    "workspace, name, version, creation_time, current_stage, '/evil' FROM model_versions "
    "WHERE name = 'm' AND version = 1"
)
ONTO = "UPDATE OR REPLACE model_versions SET version = 1 WHERE name = 'm' AND version = 3"
JUNK = (
    "INSERT INTO canary_ledger SELECT seq + 1, 'verdict', 'default', 'm', 3, 0, 'champion', 'PASS', 1, 1, 'junk', "
    "digest, key_id, signature FROM canary_ledger ORDER BY seq DESC LIMIT 1"
)
QUIET = [
    f"ALTER TABLE registered_model_aliases ENABLE REPLICA TRIGGER canary_alias_{event}"
    for event in ("insert", "update")
]
CUT = "DELETE FROM canary_ledger WHERE seq = (SELECT max(seq) FROM canary_ledger)"


def forged(scene: Scene, *, with_key: bool = False, signer: Signer | None = None) -> str:
    """A row that lets the bare version be champion, by whoever can write the database."""
    signer = signer or load_signer(key_folder() if with_key else scene.mode.folder / "forger")
    engine = scene.mode.engine(scene.mode.inside)
    bare = next(one for one in tables(scene.mode)["model_versions"] if (one["name"], one["version"]) == ("m", 3))
    with engine.begin() as connection:
        last = table.last(connection)
        before = table.latest_move(connection, "default", "m", "champion")
        assert before is not None
        facts = {key: before.facts[key] for key in ("verdict", "software", "time", "baseline_row")}
        facts |= {"source": bare["source"], "artifact": "0 files, sha256:0", "runs": {}, "actor": "eve", "reason": "…"}
        if with_key:
            facts["artifact"] = scene.mode.guard().binding_now(0, "", bare["source"], []).artifact
        record = Record(
            kind=Kind.VERDICT, model="m", version=3, version_created=bare["creation_time"], alias="champion",
            word="PASS", grants=True, moves=True, facts={**facts, "baseline_version": before.version},
        )  # fmt: skip
        columns = asdict(signed(record, last, signer))
        connection.execute(table.LEDGER.insert(), columns)
    scene.sql.run(MOVE, TAG)
    return "champion is version 3"


def forged_policy(scene: Scene) -> str:
    """A row that lets everything pass, by whoever can add rows, and then a bad version."""
    content = content_of("smoke")
    for rule in content["rules"].values():
        rule["margin"] = 2.0 if rule["worse"] == "higher" else 0.95
    record = policy_record("m", {**content, "name": "lax"}, "…", "eve")
    record = replace(record, facts={**record.facts, "time": "2026-01-01T00:00:00"})
    with scene.mode.engine(scene.mode.inside).begin() as connection:
        row = signed(record, table.last(connection), load_signer(scene.mode.folder / "forger"))
        connection.execute(table.LEDGER.insert(), asdict(row))
    return str(scene.verdict("m", scene.recorded.version(slower=2.0)))


def forged_pruning(scene: Scene) -> str:
    """A row that gives up the files of a champion, by whoever can add rows: their absence is no damage then."""
    with scene.mode.engine(scene.mode.inside).begin() as connection:
        made = table.latest_move(connection, "default", "soft", "champion")
        assert made is not None
        facts = {"files": {"weights": "0" * 64}, "runs": made.facts["runs"], "actor": "eve", "reason": "…"}
        record = Record(
            kind=Kind.PRUNE, model="soft", version=made.version, version_created=made.version_created, alias="",
            word="pruned", grants=False, moves=False, facts={**facts, "time": made.facts["time"]},
        )  # fmt: skip
        row = signed(record, table.last(connection), load_signer(scene.mode.folder / "forger"))
        connection.execute(table.LEDGER.insert(), asdict(row))
    return "the files are given up"


def stolen(scene: Scene) -> Signer:
    """A key below the account's own, in a row of the ledger, and then in a thief's hands: its file is still among the
    trusted ones, as the rows that it has signed must hold."""
    thief = load_signer(scene.mode.folder / "stolen")
    publish(thief.key.public_key(), key_folder())
    own = load_signer(key_folder())
    about(scene.mode.engine(), own, TRUSTED, thief.key_id, public=thief.public)
    return thief


def about(engine: Engine, signer: Signer, word: str, subject: str, **facts: Any) -> None:
    """A row about a key, by whoever can write the database."""
    with engine.begin() as connection:
        last = table.last(connection)
        record = key_record(word, subject, "eve", "…", stamp(last), **facts)
        connection.execute(table.LEDGER.insert(), asdict(signed(record, last, signer)))


def ended(scene: Scene) -> str:
    """A row by a key that has ended, and the champion after it."""
    thief = stolen(scene)
    about(scene.mode.engine(), load_signer(key_folder()), REVOKED, thief.key_id, from_row=rows_of(scene) + 1)
    return forged(scene, signer=thief)


def revoking(scene: Scene) -> str:
    """With a stolen key: the one that let it in is said to have ended."""
    thief = stolen(scene)
    own = load_signer(key_folder())
    about(scene.mode.engine(scene.mode.inside), thief, REVOKED, own.key_id, from_row=1)
    return "said"


def outliving(scene: Scene) -> str:
    """With a stolen key: it hands over to another of the thief's, which goes on when it has ended."""
    thief, other = stolen(scene), load_signer(scene.mode.folder / "outliving")
    passed = {"from": thief.key_id, "to": other.key_id, "public": other.public}
    passed["signature"] = thief.sign(handover_text(thief.key_id, other.key_id))
    about(scene.mode.engine(scene.mode.inside), other, ROTATED, thief.key_id, handovers=[passed])
    return "said"


def rows_of(scene: Scene) -> int:
    return len(tables(scene.mode)[table.LEDGER.name])


def anew(scene: Scene) -> str:
    """The last row, a BLOCK, written anew as a PASS by somebody who has the key and owns the tables."""
    engine, signer = scene.mode.engine(scene.mode.inside), load_signer(key_folder())
    with engine.connect() as connection:
        last = table.last(connection)
        assert last is not None
        before = table.row_at(connection, last.seq - 1)
    columns = {name: getattr(last, name) for name in ("model", "version", "version_created", "alias", "workspace")}
    record = Record(kind=Kind(last.kind), word="PASS", grants=True, moves=False, facts=last.facts, **columns)
    row = signed(record, before, signer)
    again = ", ".join(f"{name} = '{getattr(row, name)}'" for name in ("body", "digest", "signature", "word"))
    return untriggered(scene, f"UPDATE canary_ledger SET {again}, grants = 1 WHERE seq = {row.seq}".replace(":", r"\:"))


def older(scene: Scene) -> str:
    """The whole ledger as it was some rows ago, as from a backup."""
    return untriggered(scene, f"DELETE FROM canary_ledger WHERE seq > {rows_of(scene) - 3}")


def untriggered(scene: Scene, *statements: str) -> str:
    """Triggers off, the statements, triggers on again: as if nothing had been."""
    if scene.sql.engine.dialect.name == "sqlite":
        off = list(triggers.drop("sqlite"))
        on = list(triggers.create("sqlite"))
    else:
        names = ("registered_model_aliases", "canary_ledger", "model_version_tags")
        off = [f"ALTER TABLE {name} DISABLE TRIGGER USER" for name in names]
        on = [
            f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER canary_{name}"
            for name, _, table, _, _ in triggers.RULES
            if table in names
        ]
    scene.sql.run(*off, *statements, *[text.replace(":", r"\:") for text in on])
    return "done"


def sql(way: str, *statements: str, worst: str = REFUSED, where: tuple[str, ...] = EVERYWHERE) -> Attack:
    """Statements in one transaction."""
    return Attack("SQL", way, lambda scene: scene.sql.run(*statements), worst, where)


def sql_attacks() -> Iterator[Attack]:
    """The worst last."""
    yield sql("UPDATE the alias", MOVE)
    yield sql("DELETE the alias", "DELETE FROM registered_model_aliases WHERE name = 'm' AND alias = 'champion'")
    yield sql(
        "UPDATE the champion's source", "UPDATE model_versions SET source = '/evil' WHERE name = 'm' AND version = 1"
    )
    yield sql("INSERT the tag canary.verdict=PASS", TAG)
    yield sql("UPDATE a row of the ledger", "UPDATE canary_ledger SET word = 'PASS', grants = 1 WHERE word = 'BLOCK'")
    yield sql("DELETE a row of the ledger", "DELETE FROM canary_ledger WHERE word = 'BLOCK'")
    yield sql("TRUNCATE the ledger", "TRUNCATE canary_ledger", where=POSTGRESQL)
    yield sql("TRUNCATE the aliases", "TRUNCATE registered_model_aliases", where=POSTGRESQL)
    yield sql("INSERT OR REPLACE the champion with another source", EVIL, where=SQLITE)
    yield sql("UPDATE OR REPLACE another version onto the champion", ONTO, where=SQLITE)
    yield sql("unguard the alias in canary_guarded", "DELETE FROM canary_guarded", MOVE)
    yield sql("name oneself an operator", "INSERT INTO canary_operators VALUES ('eve')")
    replica = "SET LOCAL session_replication_role = replica"
    yield sql("session_replication_role = replica, then move", replica, MOVE, where=POSTGRESQL)
    yield sql("ENABLE REPLICA TRIGGER, for later", *QUIET, worst=DETECTED, where=POSTGRESQL)
    yield sql(
        "DROP the trigger against TRUNCATE, for later", "DROP TRIGGER canary_ledger_truncate ON canary_ledger",
        worst=DETECTED, where=POSTGRESQL,
    )  # fmt: skip
    yield sql("add a row that is junk", JUNK, worst=DETECTED)
    off = "triggers off, move the alias, triggers on"
    yield Attack("SQL", off, lambda scene: untriggered(scene, MOVE), DETECTED)
    undone = "triggers off, move the alias, move it back, triggers on"
    yield Attack("SQL", undone, lambda scene: untriggered(scene, MOVE, BACK), OPEN, undoes=True)
    cut = "triggers off, cut the ledger's last row (a BLOCK)"
    yield Attack("SQL", cut, lambda scene: untriggered(scene, CUT), DETECTED)
    yield sql("DROP the ledger", "DROP TABLE canary_ledger", worst=DETECTED)
    yield Attack("SQL", "triggers off, the ledger of an older copy", older, DETECTED)
    yield Attack("SQL", "triggers off, the last row anew with the account's own key", anew, DETECTED, ("embedded",))
    yield Attack("SQL", "forge a row without the key, then move", forged, DETECTED)
    set_one = "forge a row that sets a lax policy, then ask for a verdict"
    yield Attack("SQL", set_one, forged_policy, DETECTED)
    yield Attack("SQL", "forge a row that gives up the champion's files", forged_pruning, DETECTED)
    yield Attack("SQL", "forge a row with a key that has ended, then move", ended, DETECTED)
    yield Attack("SQL", "with a stolen key, end the one above it", revoking, DETECTED)
    yield Attack("SQL", "with a stolen key, hand over to another", outliving, DETECTED)
    yield sql("change a metric of a judged run", METRIC, worst=DETECTED)
    keyed = "forge a row with the account's own key, then move"
    yield Attack("SQL", keyed, lambda scene: forged(scene, with_key=True), OPEN, ("embedded",))
