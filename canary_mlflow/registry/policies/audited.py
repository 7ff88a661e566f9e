"""Was every verdict reached by the policy that was in force at its row, and was every override made by as many people
as that policy required? Needs only the rows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from canary_mlflow.ledger.chain import Damage, Kind, Row, digest
from canary_mlflow.policies import content_of, policy_names
from canary_mlflow.registry.acts.act import JUDGED, blocked_by
from canary_mlflow.registry.policies.in_force import USED, Source, in_force_row, said_by, tier_in

BEGINS = f'"{USED}":{{"digest":"'  # no text in a row can contain this, as quotes are escaped
NAMED = re.compile(rf'"{USED}":(\{{"digest":"[^{{}}]*\}})')


def policy_damages(rows: Sequence[Row]) -> Iterator[Damage]:
    """Everything that is wrong, in the order of the rows. Verdicts from before rows named their policy are skipped."""
    policies: dict[str, list[Row]] = {}
    tiers: dict[tuple[str, str], str] = {}
    for place, row in enumerate(rows):
        if row.kind == Kind.POLICY:
            facts = said_by(row)
            if facts.get("policy_digest") != digest(facts.get("content") or {}):
                yield Damage(seq=row.seq, what="the policy that it sets does not match the digest stored with it")
            else:
                policies.setdefault(row.workspace, []).append(row)
            continue
        about = row.workspace, row.model
        if about not in tiers and (tier := tier_of(row)) is not None:
            tiers[about] = tier
        if row.kind not in (*JUDGED, Kind.OVERRIDE):
            continue
        governing = in_force_row(policies.get(row.workspace, ()), row.model)
        if row.kind == Kind.OVERRIDE:
            found = (
                by_one_person(row, rows[:place], governing)
                if governing is not None and people_of(governing) > 1
                else ()
            )
        else:
            found = other_policy(row, governing, tiers.get(about, ""))
        yield from (Damage(seq=row.seq, what=f"version {row.version} of {row.model!r}: {what}") for what in found)


def tier_of(row: Row) -> str | None:
    """The tier that a row gives its model; '' for a seal from before seals had one, None for a row that gives none."""
    tier = tier_in(row.facts)
    return "" if tier is None and row.kind == Kind.SEAL else tier


def other_policy(row: Row, governing: Row | None, tier: str) -> Iterator[str]:
    """What is wrong with the policy that a verdict names. `tier`: the model's, '' if the ledger does not tell."""
    said = named_in(row)
    if said is None:
        return
    named = f"policy {said.get('name')}, digest {str(said.get('digest'))[:12]}"
    if governing is not None:
        due = said_by(governing)
        if (said.get("row"), said.get("digest")) != (governing.seq, due["policy_digest"]):
            yield (
                f"judged by {named}, while row {governing.seq} was in force: policy {due['policy']}, digest "
                f"{due['policy_digest'][:12]}"
            )
    elif said.get("source") == Source.ROW:
        yield f"judged by {named}, of row {said.get('row')}, which was not in force"
    elif said.get("server") and (said.get("source") != Source.SHIPPED or (tier and said.get("name") != tier)):
        yield f"judged by {named}, while no policy was set and the model's tier is {tier or 'unknown'}"
    elif said.get("server") and not is_shipped(said) and same_software(row):
        yield f"judged by {named}, which is not that of canary-mlflow {version('canary-mlflow')}"


def named_in(row: Row) -> dict[str, Any] | None:
    """The policy that a verdict names; None for a verdict from before they did. Parses only that part of a row, most of
    which is checks, as an audit looks at every row."""
    start = row.body.find(BEGINS)
    if start < 0:
        return None
    found = NAMED.match(row.body, start)
    said = json.loads(found[1]) if found else row.facts.get(USED)
    return said if isinstance(said, dict) else None


def is_shipped(said: Mapping[str, Any]) -> bool:
    """Whether the shipped files here contain exactly this policy."""
    return bool(said.get("digest") == digest_here(str(said.get("name"))))


@lru_cache(maxsize=16)
def digest_here(name: str) -> str:
    """The digest of a shipped policy; '' for another name."""
    return digest(content_of(name)) if name in policy_names() else ""


def same_software(row: Row) -> bool:
    """Whether a verdict was reached with the installed version of canary-mlflow."""
    try:
        return bool(dict(row.facts.get("software") or {}).get("canary-mlflow") == version("canary-mlflow"))
    except PackageNotFoundError:
        return False


def people_of(governing: Row) -> int:
    """How many people the policy of a row requires for an override of a BLOCK."""
    return int(said_by(governing)["content"].get("override", {}).get("operators", 1))


def by_one_person(row: Row, before: Sequence[Row], governing: Row) -> Iterator[str]:
    """What is wrong with an override of a BLOCK that no second person had asked for."""
    facts = row.facts
    about = row.version, row.version_created
    mine = [one for one in before if (one.workspace, one.model) == (row.workspace, row.model)]
    blocked = blocked_by(mine, about)
    if blocked is None:
        return
    request = next((one for one in mine if one.seq == facts.get("request_row") and one.kind == Kind.REQUEST), None)
    asked = request.facts if request is not None else {}
    due = {"wanted_alias": row.alias, "verdict_row": blocked.seq}
    meant = request is not None and (request.version, request.version_created) == about
    same = all(asked.get(key) == value for key, value in due.items())
    held = dict(asked.get("against") or {}).get(row.alias) == [facts.get("baseline_version"), facts.get("baseline_row")]
    if not (meant and same and held and asked.get("actor") not in (None, facts.get("actor"))):
        yield (
            f"the BLOCK of row {blocked.seq} was overridden by {facts.get('actor')} alone; the policy of row "
            f"{governing.seq} asks for two people"
        )
