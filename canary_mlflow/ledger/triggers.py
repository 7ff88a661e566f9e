"""The second line: what the database itself refuses, whoever asks and with whatever program.

An alias that is guarded may only name the version that the newest ledger row about it names; nothing may move it by
other ways; no ledger row changes or goes. The signatures are not checked here: `canary audit verify` does that.
"""

from __future__ import annotations

from collections.abc import Iterator

PREFIX = "canary_"

# {n}: the row as it will be (NEW) or was (OLD). LIKE ignores case on some SQLite connections, which guards more.
GUARDED_MODEL = r"EXISTS (SELECT 1 FROM canary_guarded g WHERE {n}.name LIKE g.models_like ESCAPE '\')"
GUARDED_ALIAS = (
    r"EXISTS (SELECT 1 FROM canary_guarded g WHERE g.alias = lower({n}.alias) "
    r"AND {n}.name LIKE g.models_like ESCAPE '\')"
)
AS_THE_LEDGER_SAYS = """EXISTS (
    SELECT 1 FROM canary_ledger l JOIN model_versions v
    ON v.workspace = l.workspace AND v.name = l.model AND v.version = l.version AND v.creation_time = l.version_created
    WHERE l.workspace = NEW.workspace AND l.model = NEW.name AND l.alias = NEW.alias AND l.version = NEW.version
    AND l.grants = 1 AND l.seq = (
        SELECT max(m.seq) FROM canary_ledger m
        WHERE m.workspace = NEW.workspace AND m.model = NEW.name AND m.alias = NEW.alias AND m.moves = 1))"""
# The aliases of a model or of one version that are guarded.
HOLDS_ALIAS = r"""EXISTS (
    SELECT 1 FROM registered_model_aliases a JOIN canary_guarded g
    ON g.alias = lower(a.alias) AND a.name LIKE g.models_like ESCAPE '\'
    WHERE a.workspace = OLD.workspace AND a.name = OLD.name{of_version})"""
MODEL_HOLDS = HOLDS_ALIAS.format(of_version="")
VERSION_HOLDS = HOLDS_ALIAS.format(of_version=" AND a.version = OLD.version")
WAS_GUARDED = "EXISTS (SELECT 1 FROM canary_ledger l WHERE l.workspace = NEW.workspace AND l.model = NEW.name)"
IS_THERE = "EXISTS (SELECT 1 FROM registered_models r WHERE r.workspace = NEW.workspace AND r.name = NEW.name)"
WORD_OF_LEDGER = """coalesce((
    SELECT l.word FROM canary_ledger l JOIN model_versions v
    ON v.workspace = l.workspace AND v.name = l.model AND v.version = l.version AND v.creation_time = l.version_created
    WHERE l.workspace = NEW.workspace AND l.model = NEW.name AND l.version = NEW.version AND l.kind <> 'seal'
    ORDER BY l.seq DESC LIMIT 1), '')"""

NOT_SO = "canary guard: the ledger does not name this version for a guarded alias; run canary gate MODEL VERSION"
STAYS = "canary guard: a guarded alias is not removed; canary rollback or canary override moves it"
HELD = "canary guard: this holds a guarded alias; move that first with canary rollback or canary override"
AGAIN = "canary guard: the ledger holds rows about a model of this name; choose another name"
FIXED = "canary guard: rows of the ledger are only ever added"
STAGES = "canary guard: stages are not used for guarded models; use canary gate MODEL VERSION"
TAGS = "canary guard: canary.verdict is what the ledger says; run canary gate MODEL VERSION"
SETTINGS = "canary guard: what is guarded is changed by canary db install"

# name, event, table, condition, message
RULES: tuple[tuple[str, str, str, str, str], ...] = (
    ("alias_insert", "INSERT", "registered_model_aliases",
     f"{GUARDED_ALIAS.format(n='NEW')} AND NOT {AS_THE_LEDGER_SAYS}", NOT_SO),
    ("alias_update", "UPDATE", "registered_model_aliases",
     f"({GUARDED_ALIAS.format(n='NEW')} AND NOT {AS_THE_LEDGER_SAYS}) OR ({GUARDED_ALIAS.format(n='OLD')} AND "
     "(OLD.alias <> NEW.alias OR OLD.name <> NEW.name OR OLD.workspace <> NEW.workspace))", NOT_SO),
    ("alias_delete", "DELETE", "registered_model_aliases", GUARDED_ALIAS.format(n="OLD"), STAYS),
    ("model_rename", "UPDATE OF name, workspace", "registered_models",
     f"(NEW.name <> OLD.name OR NEW.workspace <> OLD.workspace) AND ({MODEL_HOLDS} OR {WAS_GUARDED})", HELD),
    ("model_delete", "DELETE", "registered_models", MODEL_HOLDS, HELD),
    # Of a model that is there, the database itself says so, in the way that MLflow understands.
    ("model_insert", "INSERT", "registered_models", f"{WAS_GUARDED} AND NOT {IS_THERE}", AGAIN),
    ("version_change",
     "UPDATE OF workspace, name, version, creation_time, source, storage_location, run_id, current_stage",
     "model_versions", VERSION_HOLDS, HELD),
    ("version_delete", "DELETE", "model_versions", VERSION_HOLDS, HELD),
    ("version_stage", "UPDATE OF current_stage", "model_versions",
     f"{GUARDED_MODEL.format(n='NEW')} AND NEW.current_stage <> OLD.current_stage AND "
     f"NEW.current_stage IN ('Production', 'Staging', 'Archived') AND NOT {VERSION_HOLDS}", STAGES),
    ("version_stage_insert", "INSERT", "model_versions",
     f"NEW.current_stage <> 'None' AND {GUARDED_MODEL.format(n='NEW')}", STAGES),
    ("tag_insert", "INSERT", "model_version_tags",
     f"lower(NEW.key) = 'canary.verdict' AND {GUARDED_MODEL.format(n='NEW')} AND NEW.value <> {WORD_OF_LEDGER}", TAGS),
    ("tag_update", "UPDATE", "model_version_tags",
     f"lower(NEW.key) = 'canary.verdict' AND {GUARDED_MODEL.format(n='NEW')} AND NEW.value <> {WORD_OF_LEDGER}", TAGS),
    # INSERT OR REPLACE removes rows without asking a DELETE trigger: only the next number may be added.
    ("ledger_insert", "INSERT", "canary_ledger",
     "NEW.seq <> coalesce((SELECT max(l.seq) FROM canary_ledger l), 0) + 1", FIXED),
    ("ledger_update", "UPDATE", "canary_ledger", "", FIXED),
    ("ledger_delete", "DELETE", "canary_ledger", "", FIXED),
    ("guarded_insert", "INSERT", "canary_guarded", "", SETTINGS),
    ("guarded_update", "UPDATE", "canary_guarded", "", SETTINGS),
    ("guarded_delete", "DELETE", "canary_guarded", "", SETTINGS),
    ("operators_insert", "INSERT", "canary_operators", "", SETTINGS),
    ("operators_update", "UPDATE", "canary_operators", "", SETTINGS),
    ("operators_delete", "DELETE", "canary_operators", "", SETTINGS),
)  # fmt: skip
LEDGER_TABLES = ("canary_ledger", "canary_guarded", "canary_operators")


def create(dialect: str, schema: str = "public") -> Iterator[str]:
    """The statements that put every trigger in place. `schema`: PostgreSQL's, where the tables are."""
    for name, event, table, condition, message in RULES:
        if dialect == "sqlite":
            yield _trigger(name, event, table, condition, message)
        else:
            yield _function(name, event, condition, message, schema)
            yield (
                f"CREATE TRIGGER {PREFIX}{name} BEFORE {event} ON {table} FOR EACH ROW "
                f"EXECUTE FUNCTION {PREFIX}{name}()"
            )
    if dialect != "sqlite":
        for table in LEDGER_TABLES:
            yield (
                f"CREATE TRIGGER {table}_truncate BEFORE TRUNCATE ON {table} FOR EACH STATEMENT "
                f"EXECUTE FUNCTION {PREFIX}ledger_delete()"
            )


def drop(dialect: str) -> Iterator[str]:
    """The statements that take every trigger away."""
    if dialect != "sqlite":
        for table in LEDGER_TABLES:
            yield f"DROP TRIGGER IF EXISTS {table}_truncate ON {table}"
    for name, _event, table, _condition, _message in RULES:
        if dialect == "sqlite":
            yield f"DROP TRIGGER IF EXISTS {PREFIX}{name}"
        else:
            yield f"DROP TRIGGER IF EXISTS {PREFIX}{name} ON {table}"
            yield f"DROP FUNCTION IF EXISTS {PREFIX}{name}()"


def sources(dialect: str) -> dict[str, str]:
    """Trigger → its text, as the database keeps it."""
    if dialect == "sqlite":
        return {f"{PREFIX}{rule[0]}": _trigger(*rule) for rule in RULES}
    return {f"{PREFIX}{rule[0]}": _body(rule[1], rule[3], rule[4]) for rule in RULES}


def _trigger(name: str, event: str, table: str, condition: str, message: str) -> str:
    when = f" WHEN {condition}" if condition else ""
    return (
        f"CREATE TRIGGER {PREFIX}{name} BEFORE {event} ON {table} FOR EACH ROW{when} "
        f"BEGIN SELECT RAISE(ABORT, '{message}'); END"
    )


def _body(event: str, condition: str, message: str) -> str:
    then = f"RAISE EXCEPTION '{message}' USING ERRCODE = 'insufficient_privilege';"
    check = f"IF {condition} THEN {then} END IF;" if condition else then
    return f" BEGIN {check} RETURN {'OLD' if event == 'DELETE' else 'NEW'}; END "


def _function(name: str, event: str, condition: str, message: str, schema: str) -> str:
    """Runs as its owner, on the owner's tables only: who may write an alias need not be able to read the ledger."""
    return (
        f"CREATE FUNCTION {PREFIX}{name}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER "
        f'SET search_path = pg_catalog, "{schema}", pg_temp AS $canary${_body(event, condition, message)}$canary$'
    )
