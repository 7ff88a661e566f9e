"""Policies of the gate and of the watch, by name, by path or as a mapping: plain YAML, read without Hydra."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import yaml

from canary_mlflow.errors import UsageError
from canary_mlflow.files.documents import parse_yaml
from canary_mlflow.files.source import read_bytes
from canary_mlflow.gates import Policy, PolicyError, parse_policy, policy_to_dict
from canary_mlflow.gates.model.fields import overlaid
from canary_mlflow.gates.model.metrics import METRICS
from canary_mlflow.gates.watch import OnCritical, WatchPolicy, parse_watch

_MAX_BASES = 10
Parsed = TypeVar("Parsed")

PRIORS_FILE = "canary-priors.yaml"
"""In the working folder, beside the embedded store: what `canary calibrate` measured here."""


class _OnceEach(yaml.SafeLoader):
    """A YAML loader that refuses a key given twice: the second would silently replace the first."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """The mapping of a node. Raises YAMLError."""
        keys = [key.value for key, _ in node.value]
        if twice := next((key for at, key in enumerate(keys) if key in keys[:at]), None):
            line = node.start_mark.line + 1
            raise yaml.YAMLError(
                f"found {twice!r} twice in the mapping of line {line}; expected each key once; join them"
            )
        return super().construct_mapping(node, deep)


def conf_dir() -> Path:
    """The folder that holds `gate/*.yaml` and `watch/*.yaml`; in a checkout a link to its `conf/`."""
    return Path(__file__).resolve().parent / "conf"


def policy_names(kind: str = "gate") -> list[str]:
    """The names of the shipped policies of a kind: gate or watch."""
    return option_names(kind)


def option_names(group: str) -> list[str]:
    """The options of a group of the configuration, such as `tier`."""
    return sorted(path.stem for path in (conf_dir() / group).glob("*.yaml"))


def load_policy(source: str | Path | Mapping[str, Any]) -> Policy:
    """Read a policy: a shipped name (smoke), the path of a YAML file, or a mapping with the same keys.

    A key `base: <name or path>` overlays the rest, key by key, on that policy; a relative path counts from
    the file that names it. Raises UsageError, one line, for names, keys, metrics or values that are not
    known. Spreads that `canary calibrate` left in the working folder are added to the policy's own.
    """
    body, label = _merged(source, "gate")
    return _parsed(with_spreads_here(body), parse_policy, label)


def load_watch(source: str | Path | Mapping[str, Any] = "default") -> WatchPolicy:
    """Read a watch policy, found and overlaid as `load_policy` does it. Raises UsageError, one line."""
    body, label = _merged(source, "watch")
    return _parsed(body, parse_watch, label)


def watch_of_canary(keys: Mapping[str, Any]) -> dict[str, Any]:
    """A watch policy's keys with `on_critical` settled for a canary's run: a run that is lost is already evidence, and
    its remaining steps would add nothing."""
    auto = keys.get("on_critical") == OnCritical.AUTO
    return {**keys, "on_critical": OnCritical.STOP.value} if auto else dict(keys)


def timed_metrics(policy: Policy) -> list[str]:
    """The metrics of a policy's rules that follow a clock, and that parallel runs on one device would spoil."""
    judged = {rule.metric for rule in policy.rules}
    return sorted(name for name in judged if name in METRICS and METRICS[name].unit in ("s", "tokens/s", "kernels"))


def shipped_tiers() -> list[str]:
    """The tiers with a policy of the same name. Only these may be named by a tag, which must never name a file."""
    return [name for name in option_names("tier") if name in policy_names()]


def content_of(source: str | Path) -> dict[str, Any]:
    """Every key of a policy, with its bases merged in and without spreads measured in the working folder: what the
    ledger keeps. `source`: a shipped name or the path of a YAML file. Raises UsageError."""
    return checked_content(read_policy(source), str(source))


def checked_content(body: Mapping[str, Any], label: str = "policy") -> dict[str, Any]:
    """The same for a mapping that has every key. Opens no file: a `base` is refused. Raises UsageError."""
    return policy_to_dict(_parsed(body, parse_policy, label))


def policy_from(content: Mapping[str, Any]) -> Policy:
    """The policy of such a content, with the spreads measured in the working folder. Opens no file that it names."""
    again = "; if an earlier version set it, set it again with `canary policy set`"
    return _parsed(with_spreads_here(content), parse_policy, str(content.get("name")), again)


def with_spreads_here(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """The keys of a policy, with the spreads measured in the working folder added to its own."""
    measured = Path.cwd() / PRIORS_FILE
    return overlaid({"priors": read_priors(measured)}, body) if measured.is_file() else body


def _merged(source: str | Path | Mapping[str, Any], kind: str) -> tuple[Mapping[str, Any], str]:
    """The keys of a policy, with its bases merged in, and what messages call it."""
    if not isinstance(source, Mapping):
        return read_policy(source, kind), str(source)
    body = _with_bases(source, Path.cwd(), kind)
    return body, str(body.get("name", "policy"))


def _parsed(
    body: Mapping[str, Any], parse: Callable[[Mapping[str, Any]], Parsed], label: str, hint: str = ""
) -> Parsed:
    try:
        return parse(body)
    except PolicyError as error:
        raise UsageError(f"policy '{label}': {error}{hint}") from error


def read_policy(source: str | Path, kind: str = "gate") -> dict[str, Any]:
    """The keys of a policy, with its bases merged in. `source`: a shipped name or the path of a YAML file.

    A file that has a base but no name of its own is named after the file. Raises UsageError.
    """
    path = _locate(str(source), Path.cwd(), kind)
    body = _read(path)
    found = _with_bases(body, path.parent, kind)
    # With its base's name, reports and servers would take it for the base itself.
    return {**found, "name": path.stem} if "base" in body and "name" not in body else found


def read_priors(path: Path) -> dict[str, Any]:
    """The entries of a file that `canary calibrate` wrote, in its order. Raises UsageError, one line, for another."""
    body = _read(path, key="priors")
    others = [str(key) for key in body if key != "priors"]
    if others:
        raise UsageError(f"policy file {path}: unknown key '{others[0]}'; valid: priors; remove it, or fix its name")
    priors = body.get("priors", {})
    if not isinstance(priors, Mapping):
        raise UsageError(
            f"policy file {path}: priors: found {priors!r:.40}; expected a mapping of names to spreads; fix it, or "
            "remove the file"
        )
    return dict(priors)


def _with_bases(body: Mapping[str, Any], folder: Path, kind: str) -> dict[str, Any]:
    """The mapping merged over its base, and that over its own base, down to one that has none."""
    layers: list[Mapping[str, Any]] = [body]
    while "base" in layers[-1]:
        if len(layers) > _MAX_BASES:
            raise UsageError(f"policy: found a chain of more than {_MAX_BASES} bases; expected one that ends")
        base = layers[-1]["base"]
        if not isinstance(base, str):
            raise UsageError(
                f"policy: base: found {base!r}; expected a name ({', '.join(policy_names(kind))}) or a path"
            )
        path = _locate(base, folder, kind)
        folder = path.parent
        layers.append(_read(path))
    merged: dict[str, Any] = {}
    for layer in reversed(layers):
        if merged:
            _check_removals(layer, merged)
        merged = overlaid(merged, {key: value for key, value in layer.items() if key != "base"})
    return merged


def _check_removals(layer: Mapping[str, Any], below: Mapping[str, Any]) -> None:
    """Raise UsageError for an overlay that is to be removed but does not exist: a typo would change nothing."""
    overlays, there = layer.get("overlays"), below.get("overlays")
    for name, body in overlays.items() if isinstance(overlays, Mapping) else ():
        if body is None and isinstance(there, Mapping) and name not in there:
            raise UsageError(
                f"policy: overlays.{name}: null takes an overlay of the base away; it has {', '.join(there)}"
            )


def _locate(source: str, folder: Path, kind: str) -> Path:
    shipped = conf_dir() / kind / f"{source}.yaml"
    if source in policy_names(kind):
        return shipped
    path = folder / Path(source).expanduser()
    if path.exists() and not path.is_dir():  # its reader reports if it is no policy
        return path
    raise UsageError(f"policy '{source}' not found; valid: {', '.join(policy_names(kind))}, or the path of a YAML file")


@lru_cache(maxsize=16)
def _body_of(text: str) -> Any:
    """YAML as values, which nobody may change. Cached, as a verdict asks for the same few files again and again. Raises
    YAMLError and ValueError."""
    return parse_yaml(text, _OnceEach)


def _read(path: Path, key: str = "rules") -> Mapping[str, Any]:
    try:
        body = _body_of(read_bytes(path).decode("utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:  # ValueError: not UTF-8, or a number too long
        raise UsageError(f"policy file {path}: cannot be read as YAML ({' '.join(str(error).split())})") from error
    if not isinstance(body, Mapping):
        found = "nothing" if body is None else type(body).__name__
        raise UsageError(
            f"policy file {path}: found {found}; expected keys such as '{key}'; write them, or name another"
        )
    if body.get("defaults") and path.parent.parent == conf_dir():  # Hydra's own word for a base
        return {"base": body["defaults"][0], **{key: value for key, value in body.items() if key != "defaults"}}
    return body


def rules_for(policy: str | Path | Mapping[str, Any] | None, tier: str, subject: str) -> Policy:
    """The policy that was asked for, else the shipped policy of `tier`. The tier comes from a tag, which must not name
    a file to open."""
    if not policy and tier not in policy_names():
        raise UsageError(
            f"{subject}: its runs carry no tier; expected a policy to choose the rules; add --policy smoke"
        )
    return load_policy(policy or tier)
