"""Making a version champion by hand: an explicit act, with a name and a reason that stay on the version."""

from __future__ import annotations

import getpass
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from canary_mlflow.errors import UsageError
from canary_mlflow.registry.locks import registry_lock
from canary_mlflow.registry.records import DESCRIPTION_LIMIT, REASON_LIMIT
from canary_mlflow.registry.versions import CHAMPION, champion_number, find_version
from canary_mlflow.reports import markdown

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion


@dataclass(frozen=True, kw_only=True)
class Blessing:
    """Who made which version champion, why, and over which verdict."""

    model: str
    version: str
    reason: str
    who: str
    when: str  # ISO 8601, UTC
    champion_before: str | None
    verdict_before: str  # the version's own verdict until now, or "none"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"decision": "blessed", **asdict(self)}


def bless(client: MlflowClient, model: str, version: str, reason: str, *, despite_block: bool = False) -> Blessing:
    """Make a version champion without a PASS.

    Raises UsageError without a reason, for a version that is the champion already, and for one that the gate has
    blocked, unless `despite_block` says that this is known.
    """
    reason = " ".join(reason.split())
    if not reason:
        raise UsageError(
            "--reason: found an empty text; expected why this version may be champion; it is kept on the version"
        )
    with registry_lock(client):
        found = find_version(client, model, version)
        blessing = Blessing(
            model=model,
            version=str(found.version),
            reason=reason[:REASON_LIMIT],
            who=user(),
            when=datetime.now(UTC).isoformat(timespec="seconds"),
            champion_before=champion_number(client, model),
            verdict_before=(found.tags or {}).get("canary.verdict", "none"),
        )
        refuse(blessing, found, despite_block)
        write(client, blessing, found)
        client.set_registered_model_alias(model, CHAMPION, blessing.version)
    return blessing


def refuse(blessing: Blessing, found: ModelVersion, despite_block: bool) -> None:
    """Raise UsageError for what a blessing is not for."""
    subject = f"version {blessing.version} of {blessing.model!r}"
    if blessing.champion_before == blessing.version:
        raise UsageError(f"{subject}: it is the champion already; expected another version; nothing to do")
    if blessing.verdict_before == "BLOCK" and not despite_block:
        why = (found.tags or {}).get("canary.verdict_reason", "no reason recorded").rstrip(".")
        raise UsageError(
            f"{subject}: the gate blocked it ({why}); expected a version without a BLOCK; mend it and run again, or "
            "add --despite-block when the change is meant"
        )


def write(client: MlflowClient, blessing: Blessing, found: ModelVersion) -> None:
    """The act as tags, and as first paragraph of the description above the report that was there."""
    tags = {
        "canary.verdict": "blessed",
        "canary.verdict_reason": blessing.reason,
        "canary.bless_reason": blessing.reason,
        "canary.blessed_by": blessing.who,
        "canary.blessed_at": blessing.when,
        "canary.blessed_over": blessing.verdict_before,
        "canary.baseline_version": blessing.champion_before or "none",
    }
    for key, value in tags.items():
        client.set_model_version_tag(blessing.model, blessing.version, key, value)
    text = f"{as_markdown(blessing)}\n\n{found.description or ''}"
    short = markdown.fit(text, DESCRIPTION_LIMIT, "report.md of the version's session")
    client.update_model_version(blessing.model, blessing.version, short)


def as_markdown(blessing: Blessing) -> str:
    """One paragraph."""
    before = f"version {blessing.champion_before}" if blessing.champion_before else "none"
    return (
        f"**BLESSED** by {markdown.plain(blessing.who)} at {blessing.when}: {markdown.plain(blessing.reason)} "
        f"(gate's verdict until then: {blessing.verdict_before}; champion until then: {before})"
    )


def user() -> str:
    """The account's name; containers may run under an id that has none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return "unknown"
