"""The second line of defence: what the database itself refuses, whoever asks and with whatever program.

A guarded alias may only name the version that the newest ledger row about it names, and nothing may move it in another
way; no ledger row may be changed or removed. Signatures are not checked here: `canary audit verify` does that. For a
model whose first row another process wrote since the store was opened, the trigger of the alias is the first line: the
store learns of the row by its refusal.
"""

from __future__ import annotations

from collections.abc import Iterator

from canary_mlflow import tags

PREFIX = "canary_"
RETURNED = {"DELETE": "OLD", "TRUNCATE": "NULL"}

# {n}: the row as it will be (NEW) or was (OLD). LIKE ignores case on some SQLite connections, which guards more. No
# pattern: every name that the ledger has a row about.
COVERED = r"""({n}.name LIKE g.models_like ESCAPE '\' OR (g.models = '' AND EXISTS (
    SELECT 1 FROM canary_ledger w WHERE w.workspace = {n}.workspace AND w.model = {n}.name)))"""
GUARDED_MODEL = f"EXISTS (SELECT 1 FROM canary_guarded g WHERE {COVERED})"
GUARDED_ALIAS = f"EXISTS (SELECT 1 FROM canary_guarded g WHERE g.alias = lower({{n}}.alias) AND {COVERED})"
AS_THE_LEDGER_SAYS = """EXISTS (
    SELECT 1 FROM canary_ledger l JOIN model_versions v
    ON v.workspace = l.workspace AND v.name = l.model AND v.version = l.version AND v.creation_time = l.version_created
    WHERE l.workspace = NEW.workspace AND l.model = NEW.name AND l.alias = NEW.alias AND l.version = NEW.version
    AND l.grants = 1 AND l.seq = (
        SELECT max(m.seq) FROM canary_ledger m
        WHERE m.workspace = NEW.workspace AND m.model = NEW.name AND m.alias = NEW.alias AND m.moves = 1))"""
# Replaced by what each kind of database has for it.
OUTSIDE_ASCII = "{outside ASCII}"
SPELLED = {"sqlite": "NEW.alias GLOB '*[^ -~]*'", "postgresql": "NEW.alias ~ '[^ -~]'"}
# The aliases of a model or of one version that are guarded.
MODEL_HOLDS = f"""EXISTS (
    SELECT 1 FROM registered_model_aliases a JOIN canary_guarded g ON g.alias = lower(a.alias)
    WHERE a.workspace = {{n}}.workspace AND a.name = {{n}}.name AND {COVERED})"""
VERSION_HOLDS = f"{MODEL_HOLDS[:-1]} AND a.version = {{n}}.version)"
# Of versions: the name of a model may be in the ledger before the model is made.
WAS_GUARDED = """EXISTS (
    SELECT 1 FROM canary_ledger l WHERE l.workspace = NEW.workspace AND l.model = NEW.name AND l.version > 0)"""
IS_THERE = "EXISTS (SELECT 1 FROM registered_models r WHERE r.workspace = NEW.workspace AND r.name = NEW.name)"
WORD_OF_LEDGER = """coalesce((
    SELECT l.word FROM canary_ledger l JOIN model_versions v
    ON v.workspace = l.workspace AND v.name = l.model AND v.version = l.version AND v.creation_time = l.version_created
    WHERE l.workspace = NEW.workspace AND l.model = NEW.name AND l.version = NEW.version AND l.alias <> ''
    ORDER BY l.seq DESC LIMIT 1), '')"""

NOT_SO = "canary guard: the ledger does not name this version for a guarded alias; run canary gate MODEL VERSION"
STAYS = "canary guard: a guarded alias is not removed; canary rollback or canary override moves it"
LOOKS = "canary guard: an alias of a guarded model has no signs outside ASCII; spell it in plain letters"
HELD = "canary guard: this holds a guarded alias; move that first with canary rollback or canary override"
AGAIN = "canary guard: the ledger holds rows about a model of this name; choose another name"
FIXED = "canary guard: rows of the ledger are only ever added"
STAGES = "canary guard: stages are not used for guarded models; use canary gate MODEL VERSION"
TAGS = f"canary guard: {tags.VERDICT} is what the ledger says; run canary gate MODEL VERSION"
EMPTIED = "canary guard: a table with guarded rows is not emptied at once; delete the rows that may go"
SETTINGS = "canary guard: what is guarded is changed by canary db install"

# name, event, table, condition, message
RULES: tuple[tuple[str, str, str, str, str], ...] = (
    ("alias_insert", "INSERT", "registered_model_aliases",
     f"{GUARDED_ALIAS.format(n='NEW')} AND NOT {AS_THE_LEDGER_SAYS}", NOT_SO),
    *((f"alias_{event.lower()}_plain", event, "registered_model_aliases",
       f"{OUTSIDE_ASCII} AND {GUARDED_MODEL.format(n='NEW')}", LOOKS) for event in ("INSERT", "UPDATE")),
    ("alias_update", "UPDATE", "registered_model_aliases",
     f"({GUARDED_ALIAS.format(n='NEW')} AND NOT {AS_THE_LEDGER_SAYS}) OR ({GUARDED_ALIAS.format(n='OLD')} AND "
     "(OLD.alias <> NEW.alias OR OLD.name <> NEW.name OR OLD.workspace <> NEW.workspace))", NOT_SO),
    ("alias_delete", "DELETE", "registered_model_aliases", GUARDED_ALIAS.format(n="OLD"), STAYS),
    ("model_rename", "UPDATE OF name, workspace", "registered_models",
     f"(NEW.name <> OLD.name OR NEW.workspace <> OLD.workspace) AND ({MODEL_HOLDS.format(n='OLD')} OR "
     f"{MODEL_HOLDS.format(n='NEW')} OR {WAS_GUARDED})", HELD),
    ("model_delete", "DELETE", "registered_models", MODEL_HOLDS.format(n="OLD"), HELD),
    # For an existing model, the database itself refuses, in the way that MLflow understands.
    ("model_insert", "INSERT", "registered_models", f"{WAS_GUARDED} AND NOT {IS_THERE}", AGAIN),
    ("version_change",
     "UPDATE OF workspace, name, version, creation_time, source, storage_location, run_id, current_stage",
     "model_versions", f"{VERSION_HOLDS.format(n='OLD')} OR ((NEW.workspace <> OLD.workspace OR NEW.name <> OLD.name "
     f"OR NEW.version <> OLD.version) AND {VERSION_HOLDS.format(n='NEW')})", HELD),
    ("version_insert", "INSERT", "model_versions", VERSION_HOLDS.format(n="NEW"), HELD),
    ("version_delete", "DELETE", "model_versions", VERSION_HOLDS.format(n="OLD"), HELD),
    ("version_stage", "UPDATE OF current_stage", "model_versions",
     f"{GUARDED_MODEL.format(n='NEW')} AND NEW.current_stage <> OLD.current_stage AND "
     f"NEW.current_stage IN ('Production', 'Staging', 'Archived') AND NOT {VERSION_HOLDS.format(n='OLD')}", STAGES),
    ("version_stage_insert", "INSERT", "model_versions",
     f"NEW.current_stage <> 'None' AND {GUARDED_MODEL.format(n='NEW')}", STAGES),
    ("tag_insert", "INSERT", "model_version_tags",
     f"lower(NEW.key) = '{tags.VERDICT}' AND NEW.value <> {WORD_OF_LEDGER}", TAGS),
    ("tag_update", "UPDATE", "model_version_tags",
     f"lower(NEW.key) = '{tags.VERDICT}' AND NEW.value <> {WORD_OF_LEDGER}", TAGS),
    # Here and above: SQLite's OR REPLACE removes the row that is in the way without asking a DELETE trigger.
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
    ("ledger_truncate", "TRUNCATE", "canary_ledger", "", FIXED),
    ("guarded_truncate", "TRUNCATE", "canary_guarded", "", SETTINGS),
    ("operators_truncate", "TRUNCATE", "canary_operators", "", SETTINGS),
    ("alias_truncate", "TRUNCATE", "registered_model_aliases", "", EMPTIED),
    ("model_truncate", "TRUNCATE", "registered_models", "", EMPTIED),
    ("version_truncate", "TRUNCATE", "model_versions", "", EMPTIED),
)  # fmt: skip


# How PostgreSQL's catalogue spells when a trigger fires (pg_trigger.tgtype, from catalog/pg_trigger.h): 1 for each row,
# 2 before, then the event.
EVENTS = {"INSERT": 4, "DELETE": 8, "UPDATE": 16, "TRUNCATE": 32}
# With all that decides whether a trigger does what it says. `A`: it fires in every session, also in one that applies
# changes from elsewhere (session_replication_role); `O`, which is usual, does not there, and `R` does only there.
THERE = {
    "sqlite": "SELECT name, sql FROM sqlite_master WHERE type IN ('trigger', 'view')",
    "postgresql": """
        SELECT t.tgname, concat_ws(' ', c.relname, t.tgtype,
            (SELECT string_agg(a.attname, ',' ORDER BY a.attname) FROM pg_attribute a
             WHERE a.attrelid = c.oid AND a.attnum = ANY (t.tgattr::int2[])),
            t.tgenabled, CASE WHEN t.tgqual IS NOT NULL THEN 'sometimes' END,
            CASE WHEN p.prosecdef THEN 'as owner' END, l.lanname,
            CASE WHEN p.proconfig IS DISTINCT FROM
                ARRAY['search_path=pg_catalog, ' || quote_ident(n.nspname) || ', pg_temp'] THEN 'elsewhere' END,
            p.prosrc)
        FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace
            JOIN pg_proc p ON p.oid = t.tgfoid JOIN pg_language l ON l.oid = p.prolang
        WHERE NOT t.tgisinternal AND n.nspname = current_schema()""",
}


# Alembic rebuilds a table of SQLite by way of a copy of this name. A view that has it already ends that before it has
# begun: it would take our triggers along, or end half-way. `canary db upgrade` takes them away first.
REBUILT = ("registered_models", "registered_model_aliases", "model_versions", "model_version_tags")
UPGRADE = "canary guard: migrate this database with canary db upgrade"


def rules(dialect: str) -> list[tuple[str, str, str, str, str]]:
    """The rules for a kind of database; SQLite has no TRUNCATE."""
    return [
        (name, event, table, condition.replace(OUTSIDE_ASCII, SPELLED[dialect]), message)
        for name, event, table, condition, message in RULES
        if dialect != "sqlite" or event != "TRUNCATE"
    ]


def create(dialect: str, schema: str = "public") -> Iterator[str]:
    """The statements that put every trigger in place. `schema`: PostgreSQL's, where the tables are."""
    if dialect == "sqlite":
        yield from stops().values()
    for name, event, table, condition, message in rules(dialect):
        if dialect == "sqlite":
            yield _trigger(name, event, table, condition, message)
        else:
            each = "STATEMENT" if event == "TRUNCATE" else "ROW"
            yield _function(name, event, condition, message, schema)
            yield (
                f"CREATE TRIGGER {PREFIX}{name} BEFORE {event} ON {table} FOR EACH {each} "
                f"EXECUTE FUNCTION {PREFIX}{name}()"
            )
            yield f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER {PREFIX}{name}"


def drop(dialect: str) -> Iterator[str]:
    """The statements that remove every trigger."""
    if dialect == "sqlite":
        yield from (f"DROP VIEW IF EXISTS {name}" for name in stops())
    for name, _event, table, _condition, _message in rules(dialect):
        yield f"DROP TRIGGER IF EXISTS {PREFIX}{name}" + ("" if dialect == "sqlite" else f" ON {table}")
    if dialect != "sqlite":
        yield from (f"DROP FUNCTION IF EXISTS {PREFIX}{rule[0]}()" for rule in rules(dialect))


def sources(dialect: str) -> dict[str, str]:
    """Trigger → what the query THERE returns for it."""
    if dialect == "sqlite":
        return {**stops(), **{f"{PREFIX}{rule[0]}": _trigger(*rule) for rule in rules(dialect)}}
    return {f"{PREFIX}{rule[0]}": _told(*rule) for rule in rules(dialect)}


def stops() -> dict[str, str]:
    """View → the statement that makes it."""
    names = [f"_alembic_tmp_{table}" for table in REBUILT]
    return {name: f"CREATE VIEW {name} AS SELECT '{UPGRADE}' AS canary_guard" for name in names}


def _told(name: str, event: str, table: str, condition: str, message: str) -> str:
    verb, _, columns = event.partition(" OF ")
    parts = [table, str(EVENTS[verb] + 2 + (verb != "TRUNCATE")), ",".join(sorted(columns.split(", "))), "A"]
    return " ".join([*filter(None, parts), "as owner plpgsql", _body(event, condition, message)])


def _trigger(name: str, event: str, table: str, condition: str, message: str) -> str:
    when = f" WHEN {condition}" if condition else ""
    return (
        f"CREATE TRIGGER {PREFIX}{name} BEFORE {event} ON {table} FOR EACH ROW{when} "
        f"BEGIN SELECT RAISE(ABORT, '{message}'); END"
    )


def _body(event: str, condition: str, message: str) -> str:
    then = f"RAISE EXCEPTION '{message}' USING ERRCODE = 'insufficient_privilege';"
    check = f"IF {condition} THEN {then} END IF;" if condition else then
    return f" BEGIN {check} RETURN {RETURNED.get(event, 'NEW')}; END "


def _function(name: str, event: str, condition: str, message: str, schema: str) -> str:
    """A trigger's function. It runs as its owner, on the owner's tables only, so that those who may write an alias need
    not be able to read the ledger."""
    return (
        f"CREATE FUNCTION {PREFIX}{name}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER "
        f'SET search_path = pg_catalog, "{schema}", pg_temp AS $canary${_body(event, condition, message)}$canary$'
    )
