"""What a run says of itself that nobody filters by: many values in a few tags, as JSON. Loads no torch.

A tag and no artifact: whoever reads a run has its tags already, a list asks for none of these, and the digest of a run
is over what they hold.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterator, Mapping
from typing import Any

from canary_mlflow.tags import FACTS, IN_FULL, MORE, OURS, TOLD, TOLD_OF
from canary_mlflow.tracking.describing.schema import CONFIG_PREFIX

LONGEST_TAG = 7900  # characters; MLflow refuses more than 8000, or cuts them, and what is left is not JSON

_BEGINNINGS = (*TOLD_OF, CONFIG_PREFIX)


def compact(place: str, found: Mapping[str, str]) -> dict[str, str]:
    """These tags and params, as they are stored: those to filter by as they are, the others together in the tag
    `canary.more.<place>`, which replaces what was there; what does not fit goes on in `<place>.2` and so on."""
    parts: list[dict[str, Any]] = [{}]
    length = 2
    for name, value in sorted(found.items()):
        if is_filtered(name):
            continue
        key, content = name.removeprefix(OURS), _nested(name, value)
        size = len(json.dumps({key: content}))
        if parts[-1] and length + size > LONGEST_TAG:
            parts.append({})
            length = 2
        parts[-1][key] = content
        length += size
    stored = {name: value for name, value in found.items() if is_filtered(name)}
    packed = {f"{MORE}{place}{'' if at == 1 else f'.{at}'}": json.dumps(part) for at, part in enumerate(parts, 1)}
    return stored | packed if parts[0] else stored


def expanded(tags: Mapping[str, str]) -> dict[str, str]:
    """The inverse: all of a run's tags, with params in full as `cfg/…`. What a run recorded together counts, whatever
    single tag of that name stands beside it. Runs of before have single tags alone, and stay as they are."""
    found = dict(tags)
    # The later place counts, and of one place the first part: a rest of a longer one may still be there.
    names = sorted((name for name in tags if name.startswith(MORE)), key=_order)
    for name in names:
        found |= dict(_said(tags[name]))
    return found


def params_in(tags: Mapping[str, str], wanted: Container[str] | None = None) -> dict[str, str]:
    """The params among a run's expanded tags; `wanted`: only these."""
    return {
        key: value for key, value in tags.items() if key.startswith(CONFIG_PREFIX) and (wanted is None or key in wanted)
    }


def is_filtered(name: str) -> bool:
    """Whether a tag of this name is stored by itself."""
    return name in IN_FULL or not _told(name)


def _told(name: str) -> bool:
    """Whether a tag may say this together with others. Of names that people set themselves none may."""
    return name.startswith(_BEGINNINGS) or name in TOLD


def _order(name: str) -> tuple[str, int]:
    place, _, part = name.removeprefix(MORE).partition(".")
    return place, -int(part) if part.isascii() and part.isdigit() else -1


def _nested(name: str, value: str) -> Any:
    """The value; a group of facts as the object that it is, as JSON within JSON is twice as long."""
    return json.loads(value) if name.startswith(FACTS) else value


def _said(text: str) -> Iterator[tuple[str, str]]:
    """What a tag holds that it may say; nothing for one that is not a JSON object."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return
    for key, value in content.items() if isinstance(content, dict) else ():
        name = key if key.startswith(CONFIG_PREFIX) else f"{OURS}{key}"
        if _told(name):
            yield name, value if isinstance(value, str) else json.dumps(value)
