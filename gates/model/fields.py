"""What the keys of a policy accept: a reader for each, which returns the value or refuses it in one line."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import is_dataclass
from enum import StrEnum
from functools import cache, partial
from types import MappingProxyType
from typing import Annotated, Any, get_origin, get_type_hints

Reader = Callable[[str, Any], Any]
_HUGE = 1e15  # larger than any number in a policy; an integer beyond 1e308 does not fit a float


class PolicyError(ValueError):
    """The policy cannot be applied as written."""


def plain(value: Any) -> Any:
    """The value as JSON values; NaN and infinity become None."""
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if is_dataclass(value):
        value = vars(value)
    return {str(key): plain(item) for key, item in value.items()} if isinstance(value, Mapping) else value


@cache
def readers(kind: Any) -> dict[str, Reader]:
    """The keys of a policy's class: the fields that are annotated with a reader."""
    found = get_type_hints(kind, include_extras=True)
    return {name: hint.__metadata__[0] for name, hint in found.items() if get_origin(hint) is Annotated}


def section(kind: Any, **words: str) -> Reader:
    """A reader of a mapping with every key of the class; gives the class. `words`: as of `fields`."""
    return lambda path, value: kind(**fields(path, value, readers(kind), **words))


def fields(
    path: str, body: Any, readers: Mapping[str, Reader], instead: str = "begin the policy file with 'base: smoke'"
) -> dict[str, Any]:
    """The value of every key in `readers`, read. `instead`: what else than writing the missing keys a user can do."""
    found = some_fields(path, body, readers)
    missing = [key for key in readers if key not in found]
    if missing:
        raise PolicyError(
            f"{path}: {', '.join(missing)} missing; expected all of {', '.join(readers)}; write them, or {instead}"
        )
    return found


def some_fields(path: str, body: Any, readers: Mapping[str, Reader]) -> dict[str, Any]:
    inside = "" if path == "policy" else f"{path}."
    found = {}
    for key, value in mapping(path, body).items():
        if key not in readers:
            raise unknown(path, "key", key, readers)
        found[str(key)] = readers[key](f"{inside}{key}", value)
    return found


def unknown(path: str, kind: str, found: Any, valid: Iterable[str]) -> PolicyError:
    return PolicyError(f"{path}: unknown {kind} '{found}'; valid: {', '.join(sorted(valid))}")


def mapping(path: str, value: Any) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise PolicyError(f"{path}: found {value!r}; expected a mapping of keys to values")
    return value


def words(path: str, value: Any) -> tuple[str, ...]:
    values = value if isinstance(value, list | tuple) else [value]
    if not values or not all(isinstance(item, str) for item in values):
        raise PolicyError(f"{path}: found {value!r}; expected a word or a list of words")
    return tuple(values)


def text(path: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise PolicyError(f"{path}: found {value!r}; expected a name")
    return value


def flag(path: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise PolicyError(f"{path}: found {value!r}; expected true or false")
    return value


def choice(options: type[StrEnum], *, kept_for: Mapping[StrEnum, str] = MappingProxyType({})) -> Reader:
    """A reader of one of the options. `kept_for`: options that cannot be written here, and why."""
    valid = [option for option in options if option not in kept_for]

    def read(path: str, value: Any) -> StrEnum:
        if value in valid:
            return options(value)
        why = "".join(f"{reason}; " for option, reason in kept_for.items() if option == value)
        raise PolicyError(f"{path}: found {value!r}; {why}valid: {', '.join(valid)}")

    return read


def one_of(table: Mapping[str, object], kind: str) -> Reader:
    def read(path: str, value: Any) -> str:
        if not isinstance(value, str) or value not in table:
            raise unknown(path, kind, value, table)
        return value

    return read


def number(low: float, high: float = math.inf, *, above: bool = False, whole: bool = False) -> Reader:
    """A reader of a number in [low, high], or in (low, high] with `above`; gives an int if it is `whole`."""
    kind, wanted = (int, "a whole number") if whole else (float, "a number")
    wanted += f" {'above' if above else 'of at least'} {low:g}" + (f", at most {high:g}" if high < math.inf else "")

    def read(path: str, value: Any) -> float:
        is_number = isinstance(value, int | kind) and not isinstance(value, bool)
        if is_number and low <= value <= high and abs(value) < _HUGE and not (above and value == low):
            return kind(value)
        hint = f", below {_HUGE:g}" if isinstance(value, int | float) and value >= _HUGE else ""
        if isinstance(value, str) and "e" in value.lower():
            hint = " (write 1.0e-3, not 1e-3)"  # YAML reads 1e-3 (no dot) as a string
        raise PolicyError(f"{path}: found {value!r:.40}; expected {wanted}{hint}")

    return read


count = partial(number, whole=True)
"""A reader of a whole number: see `number`."""


def optional(reader: Reader) -> Reader:
    return lambda path, value: None if value is None else reader(path, value)


def listed(reader: Reader) -> Reader:
    """A reader of a list of at least one value, each read by `reader`; gives a tuple."""

    def read(path: str, value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple) or not value:
            raise PolicyError(f"{path}: found {value!r}; expected a list of at least one value")
        return tuple(reader(f"{path}[{place}]", item) for place, item in enumerate(value))

    return read


def overlaid(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """The mapping `below` with the values in `above` put over it, mapping by mapping."""
    found = dict(below)
    for key, value in above.items():
        old = found.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        found[key] = overlaid(old, value) if both else value  # type: ignore[arg-type]
    return found
