"""The policy that is in force: rows that set one for the models that match a pattern, the one that led to a verdict as
the ledger's row records it, and what changed since."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from canary_mlflow import tags
from canary_mlflow.errors import NoSuchRun, UsageError
from canary_mlflow.gates import Policy, policy_to_dict
from canary_mlflow.gates.model.rules import Scale
from canary_mlflow.gates.model.wording import listed
from canary_mlflow.gates.notes import OTHER_POLICY
from canary_mlflow.ledger.chain import Kind, Record, Row, digest, faults
from canary_mlflow.ledger.install import Guarded
from canary_mlflow.ledger.keys import PublicKeys
from canary_mlflow.policies import content_of, load_policy, policy_from, policy_names
from canary_mlflow.tracking.stores.session import get_run

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from canary_mlflow.gates.model.verdict import Verdict
    from canary_mlflow.ledger.chain import Row


@dataclass(frozen=True, kw_only=True)
class InForce:
    """A policy with all its keys. `row`: the ledger's row that set it for `pattern`; None for a shipped policy."""

    content: Mapping[str, Any]
    row: int | None = None
    pattern: str = ""

    @property
    def name(self) -> str:
        """The name that it gives itself."""
        return str(self.content["name"])

    @property
    def digest(self) -> str:
        """sha256 over its keys."""
        return digest(self.content)

    @property
    def policy(self) -> Policy:
        """The policy to judge by, with the spreads measured in this place."""
        return policy_from(self.content)

    def __str__(self) -> str:
        return f"policy {self.name} ({f'row {self.row} of the ledger' if self.row else 'shipped'})"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "policy": self.name,
            "policy_digest": self.digest,
            "row": self.row,
            "pattern": self.pattern,
            "content": dict(self.content),
        }


def from_row(row: Row, model: str, keys: PublicKeys) -> InForce:
    """The policy that a row sets. Raises UsageError for a row that does not hold."""
    refuse_broken(row, f"the policy of {model!r}", keys)
    facts = row.facts
    return InForce(content=facts["content"], row=row.seq, pattern=str(facts["pattern"]))


def refuse_broken(row: Row, what: str, keys: PublicKeys) -> None:
    """Raise UsageError for a row that no trusted key signed, or that was changed."""
    for fault in faults(row, None, keys):
        raise UsageError(
            f"{what}: row {row.seq} of the ledger does not hold ({fault}); expected one that does; see: canary audit "
            "verify"
        )


def tier_in(facts: Mapping[str, Any]) -> str | None:
    """The tier that a row records; None if it records none, as with rows of acts."""
    if "tier" in facts:
        return str(facts["tier"])
    name = dict(dict(facts.get("verdict") or {}).get("policy") or {}).get("name")
    return str(name) if name in policy_names() else None


def tier_of_run(client: MlflowClient, run_id: str | None) -> str:
    """The tier, or the shipped policy, that a run names; empty for any other text."""
    try:
        tier = get_run(client, run_id).data.tags.get(tags.TIER, "") if run_id else ""
    except NoSuchRun:
        return ""
    return tier if tier in policy_names() else ""


USED = "policy"  # key in a verdict's row; older rows do not have it
FIRST_KEYS = ("margin", "role")  # keys of a rule that decide most, so they are named first
IN_PARTS = ("hard", "validity", "looks", "override")
SPENT = ("alpha_block", "alpha_pass")  # a look spends a share of them, so they differ from look to look
TRIED = ("alpha_pass",)  # a later try of the same code may spend less of it


class Source(StrEnum):
    """Where a policy came from."""

    ROW = "row"  # the ledger set it
    SHIPPED = "shipped"  # a file of conf/gate, in a checkout also the project's own
    FILE = "file"  # any other file
    SETTINGS = "settings"  # from a session or a caller


@dataclass(frozen=True, kw_only=True)
class Used:
    """A policy by name and digest. `file`: where it is. `server`: a server chose it, and nobody else could."""

    name: str
    digest: str
    source: Source
    row: int | None = None
    file: str = ""
    server: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**asdict(self), "source": str(self.source)}


def used(policy: Policy, governing: InForce | None, file: str, *, server: bool) -> Used:
    """How a verdict's row names its policy. `governing`: the policy that the ledger sets, if it was the one used."""
    if governing is not None:
        return Used(name=governing.name, digest=governing.digest, source=Source.ROW, row=governing.row, server=server)
    name = str(policy.name)
    if name in policy_names() and load_policy(name) == policy:
        file = f"conf/gate/{name}.yaml"
        return Used(name=name, digest=digest(content_of(name)), source=Source.SHIPPED, file=file, server=server)
    if file:
        return Used(name=name, digest=digest(content_of(file)), source=Source.FILE, file=file, server=server)
    return Used(name=name, digest=digest(policy_to_dict(policy)), source=Source.SETTINGS, server=server)


def overruled(policy: Policy, governing: InForce | None, where: str = "") -> str:
    """What to note if the ledger or a server judges by another policy than the session asked for; '' if by the same."""
    if governing is None:
        return ""
    found = list(differences(policy_to_dict(policy), policy_to_dict(governing.policy)))
    return f"judged by {governing}{where}, not by the {policy.name} that was given: {listed(found)}" if found else ""


def changed_since(rows: Sequence[Row], now: Verdict, by: Used, *, look: bool) -> str:
    """`policy changed since version 3 was judged: margin of step_cost 10 % → 50 %`; '' if nothing changed, or the
    champion was not judged. `rows`: those about the model, oldest first. `look`: the verdict is a look of a plan."""
    verdict = verdict_of_champion(rows)
    if verdict is None:
        return ""
    facts, then = verdict.facts, verdict.facts["verdict"]
    if USED not in facts or facts[USED]["digest"] == by.digest:
        return ""
    tried = max(now.attempt, then.get("attempt", 1)) > 1
    left_out = SPENT if look or then.get("look") else TRIED if tried else ()
    left, right = (
        {key: value for key, value in side.items() if key not in left_out} for side in (then["policy"], now.policy)
    )
    # Without a baseline, other overlays apply, which change roles.
    bootstrap = then.get("baseline_version") is None
    found = [what for what in differences(left, right) if not (bootstrap and what.startswith("role of "))]
    return f"{OTHER_POLICY} version {verdict.version} was judged: {listed(found)}" if found else ""


def verdict_of_champion(rows: Sequence[Row]) -> Row | None:
    """The verdict that made the current champion; None for a champion made by hand, or if the verdict cannot be
    read."""
    moves = [row for row in rows if row.moves and row.alias == "champion"]
    if not moves:
        return None
    try:
        number = moves[-1].facts.get("verdict_row", moves[-1].seq)
        row = next(row for row in rows if row.seq == number)
        return row if isinstance(row.facts["verdict"]["policy"], dict) else None
    except (StopIteration, KeyError, TypeError, ValueError):
        return None


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """The differences between two policies, in a few words each, margins first."""
    left, right = (dict(side.get("rules") or {}) for side in (then, now))
    both = [name for name in left if name in right]
    keys = dict.fromkeys((*FIRST_KEYS, *(key for name in both for key in left[name])))
    for key in keys:
        for name in both:
            before, after = left[name].get(key), right[name].get(key)
            if before != after:
                log = left[name].get("scale") == right[name].get("scale") == Scale.LOG
                percent = key == "margin" and log
                yield f"{key} of {name} {spoken(before, percent)} → {spoken(after, percent)}"
    yield from (f"rule {name} is gone" for name in left if name not in right)
    yield from (f"rule {name} is new" for name in right if name not in left)
    yield from other_keys(then, now)


def other_keys(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """The same for everything except the rules. Keys that one side does not have are no differences."""
    for key in (key for key in then if key in now and key not in ("rules", "overlays", "priors")):
        if key not in IN_PARTS:
            yield from [f"{key} {spoken(then[key])} → {spoken(now[key])}"] if then[key] != now[key] else ()
            continue
        for part in (part for part in then[key] if part in now[key] and then[key][part] != now[key][part]):
            yield f"{key}.{part} {spoken(then[key][part])} → {spoken(now[key][part])}"
    if (then.get("overlays"), then.get("priors")) != (now.get("overlays"), now.get("priors")):
        yield "its overlays or measured spreads"


def spoken(value: Any, percent: bool = False) -> str:
    """A value as in a policy's file; a margin that is a fraction is shown in percent."""
    if percent and isinstance(value, int | float):
        return f"{100 * value:g} %"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


def policy_record(pattern: str, content: Mapping[str, Any], reason: str, actor: str) -> Record:
    """The record of such a row. Its model column is empty, as a model may have the pattern's name."""
    facts = {
        "pattern": pattern,
        "policy": str(content["name"]),
        "policy_digest": digest(content),
        "content": content,
        "reason": reason,
        "actor": actor,
    }
    return Record(kind=Kind.POLICY, word="policy", facts=facts)


@lru_cache(maxsize=256)
def said_by(row: Row) -> Mapping[str, Any]:
    """What the row says; empty if its text cannot be read. Cached, as an audit asks the same few rows at every
    verdict."""
    try:
        found = row.facts
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def pattern_of(row: Row) -> str:
    """The pattern of the models that the row is about; empty if its text has none."""
    return str(said_by(row).get("pattern", ""))


def matches(pattern: str, model: str) -> bool:
    """Whether a pattern matches a model's name: `*` is any text, `?` one character; case counts."""
    return Guarded(alias="", models=pattern).pattern.fullmatch(model) is not None


def in_force_row(rows: Iterable[Row], model: str) -> Row | None:
    """The row by which a model is judged: one with its exact name, else the pattern with the most characters that are
    neither `*` nor `?`; among equals the newest. None if no pattern matches."""
    matching = [row for row in rows if row.kind == Kind.POLICY and matches(pattern_of(row), model)]
    return max(matching, key=lambda row: (*specificity(pattern_of(row)), row.seq), default=None)


def specificity(pattern: str) -> tuple[bool, int]:
    """How specific a pattern is: whether it is a whole name, and how many characters of a name it has."""
    letters = sum(sign not in "*?" for sign in pattern)
    return letters == len(pattern), letters
