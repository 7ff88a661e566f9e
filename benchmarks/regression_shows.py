"""How a script without this project tells each regression of regression_rows.py from what it saw on both sides."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

Seen = Mapping[str, Any]


def loss(seen: Seen, at: int = 0) -> float:
    return float(seen["rows"][at]["loss"])


def loss_times(low: float, high: float) -> Callable[[Seen, Seen], bool]:
    """The first loss of the bad side is so many times the good one's."""
    return lambda good, bad: "rows" in bad and low <= abs(loss(bad) / loss(good)) <= high


def gradient_times(low: float, high: float) -> Callable[[Seen, Seen], bool]:
    """The first gradient norm of the bad side is so many times the good one's, of the same loss."""

    def shows(good: Seen, bad: Seen) -> bool:
        first, other = good["rows"][0], bad["rows"][0]
        return bool(first["loss"] == other["loss"] and low <= other["grad_norm"] / first["grad_norm"] <= high)

    return shows


def crashes(kind: str) -> Callable[[Seen, Seen], bool]:
    """The bad side ends with such an exception."""
    return lambda good, bad: "rows" in good and kind in str(bad.get("ended", ""))


def trains_less(good: Seen, bad: Seen) -> bool:
    """Fewer parameters train at the end than at the beginning, on the bad side alone; none at all ends the training."""
    if "ended" in bad:
        return "rows" in good and "does not require grad" in str(bad["ended"])
    return bad["trainable"][1] < bad["trainable"][0] and good["trainable"][1] == good["trainable"][0]


def other_data(good: Seen, bad: Seen) -> bool:
    return bool(good["data"] != bad["data"])


def gradient_apart(by: float) -> Callable[[Seen, Seen], bool]:
    """The first gradient norm differs by more than a factor, either way."""

    def shows(good: Seen, bad: Seen) -> bool:
        factor = bad["rows"][0]["grad_norm"] / good["rows"][0]["grad_norm"]
        return bool(max(factor, 1 / factor) > by)

    return shows


def loss_apart(by: float) -> Callable[[Seen, Seen], bool]:
    """The first loss differs by more than a factor, either way."""
    return lambda good, bad: max(loss(bad) / loss(good), loss(good) / loss(bad)) > by


def first_loss_otherwise(good: Seen, bad: Seen) -> bool:
    """The first loss differs by more than a thousandth, or is no number."""
    return not math.isclose(loss(good), loss(bad), rel_tol=1e-3)


def other_course(good: Seen, bad: Seen) -> bool:
    """Some logged loss or gradient norm differs by more than a thousandth."""
    return any(
        not math.isclose(row.get(key, 0.0), other.get(key, 0.0), rel_tol=1e-3, abs_tol=1e-4)
        for row, other in zip(good["rows"], bad["rows"], strict=False) for key in ("loss", "grad_norm")
    )  # fmt: skip


def later_loss(good: Seen, bad: Seen) -> bool:
    """The first step is the same, a later one is not."""
    return bool(good["rows"][0] == bad["rows"][0] and good["rows"][1:] != bad["rows"][1:])


def logged_apart(key: str, by: float) -> Callable[[Seen, Seen], bool]:
    """The last value of what was logged under a name differs by more than a factor, either way."""

    def shows(good: Seen, bad: Seen) -> bool:
        first, other = ([row[key] for row in one["logged"] if key in row][-1] for one in (good, bad))
        return bool(max(first / other, other / first) > by)

    return shows


def other_logged(key: str) -> Callable[[Seen, Seen], bool]:
    """What was first logged under a name differs."""
    return lambda good, bad: (
        next(row[key] for row in good["logged"] if key in row) != next(row[key] for row in bad["logged"] if key in row)
    )


def saves_no_template(good: Seen, bad: Seen) -> bool:
    """The tokenizer's configuration no longer holds the chat template."""
    return bool(good["template"] and not bad["template"])


def same_start(good: Seen, bad: Seen) -> bool:
    """The first four steps are the same, a later one is not."""
    return bool(good["rows"][:4] == bad["rows"][:4] and good["rows"][4:] != bad["rows"][4:])


def resumes_otherwise(good: Seen, bad: Seen) -> bool:
    """The training without a pause is the same, the one that was taken up again is not."""
    return bool(good["rows"] == bad["rows"] and good["resumed"] != bad["resumed"])


def costs(what: str, by: float) -> Callable[[Seen, Seen], bool]:
    """CPU time before the training, or of its median step, is more than so many times the good side's."""
    return lambda good, bad: bool(bad[what] > by * good[what])


def takes_memory(by: float) -> Callable[[Seen, Seen], bool]:
    """The peak grows by so many times as much during the training."""
    return lambda good, bad: bool(bad["memory"][1] - bad["memory"][0] > by * (good["memory"][1] - good["memory"][0]))


def saves_otherwise(good: Seen, bad: Seen) -> bool:
    """The files hold other tensors, by their names."""
    return {path: sorted(names) for path, names in good["saved"].items()} != {
        path: sorted(names) for path, names in bad["saved"].items()
    }


def starves_a_worker(good: Seen, bad: Seen) -> bool:
    """Fewer of the workers get rows."""
    return len(bad["workers"]) < len(good["workers"])


def ends_or_differs(good: Seen, bad: Seen) -> bool:
    """The bad side ends with an exception, or begins with another loss."""
    return "rows" in good and ("ended" in bad or first_loss_otherwise(good, bad))


def forgets_the_beginning(good: Seen, bad: Seen) -> bool:
    """What is saved no longer says which token begins a text."""
    return good["begins"] is not None and bad["begins"] is None


def trains_fewer(good: Seen, bad: Seen) -> bool:
    """Fewer parameters train from the beginning on."""
    return bool(bad["trainable"][0] < good["trainable"][0])


def other_weights(good: Seen, bad: Seen) -> bool:
    """The weights are of another type."""
    return bool(good["weights"] != bad["weights"])


def other_argument(*names: str) -> Callable[[Seen, Seen], bool]:
    """An argument that the script does not set resolves otherwise."""
    return lambda good, bad: any(good["arguments"][name] != bad["arguments"][name] for name in names)
