"""Is this a usable reward model? Checked on pairs of answers, before anything is trained with it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

CHANCE = 0.5
ALPHA = 0.05
LENGTH_ONLY = 0.9  # rank correlation of score and length above which nothing else is left to score
BATCH = 32

Score = Callable[[Sequence[str]], list[float]]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was checked. `fine`: None if it is only reported and decides nothing."""

    name: str
    fine: bool | None
    said: str


@dataclass(frozen=True, kw_only=True)
class RewardCheck:
    """What was found; `usable`: whether every finding that decides is fine."""

    path: str
    pairs: int
    accuracy: float
    low: float
    high: float
    findings: tuple[Finding, ...]

    @property
    def usable(self) -> bool:
        """Whether a policy can be trained with it."""
        return all(one.fine is not False for one in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**asdict(self), "usable": self.usable}


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A sequence classifier as a scorer of texts, and what its files tell."""

    score: Score
    findings: tuple[Finding, ...]


def load(path: str, folder: Path) -> Loaded:
    """Load the model, with findings on its head, its weights and its padding. Raises SetupError."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    from training.errors import SetupError, first_line

    try:
        model, info = AutoModelForSequenceClassification.from_pretrained(
            folder, trust_remote_code=False, output_loading_info=True
        )
        reader = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except (OSError, ValueError, RuntimeError) as error:
        raise SetupError(f"{path}: cannot be loaded ({first_line(error)}); expected a sequence classifier") from error
    model.eval().to("cuda" if torch.cuda.is_available() else "cpu")
    missing = sorted(map(str, info["missing_keys"]))
    labels, pad = int(model.config.num_labels), model.config.pad_token_id
    pads = reader.pad_token_id is not None and (pad is not None)
    finite = all(bool(torch.isfinite(one).all()) for one in model.parameters())
    random = f"no weights for {', '.join(missing[:3])}, which are random"
    findings = (
        Finding(name="labels", fine=labels == 1, said=f"{labels} labels; expected 1, the score"),
        Finding(name="head", fine=not missing, said=random if missing else "all weights are in its files"),
        Finding(name="finite", fine=finite, said="weights are finite" if finite else "weights hold NaN or infinities"),
        Finding(name="padding", fine=pads, said=f"pad token {pad}" if pads else "no pad token, so padding is read"),
    )

    @torch.no_grad()
    def score(texts: Sequence[str]) -> list[float]:
        inputs = reader(list(texts), return_tensors="pt", padding=pads, truncation=True).to(model.device)
        inputs.pop("token_type_ids", None)
        return [float(value) for value in model(**inputs).logits[:, 0].float()]

    return Loaded(score=score, findings=findings)


def check(path: str, loaded: Loaded, chosen: Sequence[str], rejected: Sequence[str]) -> RewardCheck:
    """All findings on these pairs of whole texts (prompt and answer); without pairs, only those on its files."""
    from scipy.stats import binomtest, spearmanr

    if not chosen:
        none = {"accuracy": math.nan, "low": math.nan, "high": math.nan}
        return RewardCheck(path=path, pairs=0, **none, findings=loaded.findings)

    one_by_one = not next(one for one in loaded.findings if one.name == "padding").fine
    better, worse = (_scored(loaded.score, texts, 1 if one_by_one else BATCH) for texts in (chosen, rejected))
    scores = np.array([*better, *worse])
    wins = int(np.sum(better > worse))
    decided = int(np.sum(better != worse))
    found = binomtest(wins, decided, CHANCE) if decided else None
    interval = found.proportion_ci(1 - ALPHA) if found else None
    accuracy = wins / decided if decided else math.nan
    low, high = (interval.low, interval.high) if interval else (math.nan, math.nan)
    lengths = np.array([len(text) for text in (*chosen, *rejected)])
    constant = not decided or float(np.ptp(scores)) <= 1e-6 * max(1.0, float(np.abs(scores).max()))
    with_length = 0.0 if constant else float(spearmanr(scores, lengths).statistic)
    alone = _scored(loaded.score, chosen[:4], 1)
    same = bool(np.allclose(alone, better[:4], rtol=1e-4, atol=1e-4))
    findings = (
        *loaded.findings,
        _accuracy(accuracy, low, high, len(chosen), constant=constant),
        Finding(name="length", fine=abs(with_length) < LENGTH_ONLY,
                said=f"rank correlation of score and length {with_length:+.2f}"
                + ("" if abs(with_length) < LENGTH_ONLY else ": it scores the length and nothing else")),
        Finding(name="batch", fine=same, said="the same score alone and in a batch" if same
                else "a different score alone than in a batch: padding is read"),
        Finding(name="scale", fine=None, said=f"scores {scores.mean():.3g} ± {scores.std():.3g}"),
    )  # fmt: skip
    return RewardCheck(path=path, pairs=len(chosen), accuracy=accuracy, low=low, high=high, findings=findings)


def _accuracy(accuracy: float, low: float, high: float, pairs: int, *, constant: bool) -> Finding:
    if constant:
        return Finding(name="accuracy", fine=False, said="every text has the same score")
    said = f"{100 * accuracy:.0f} % of {pairs} pairs ranked correctly [{100 * low:.0f}, {100 * high:.0f}]"
    if low > CHANCE:
        return Finding(name="accuracy", fine=True, said=said)
    what = "worse than chance, as if the preferences were reversed" if high < CHANCE else "no better than chance"
    return Finding(name="accuracy", fine=False, said=f"{said}: {what}")


def _scored(score: Score, texts: Sequence[str], size: int) -> np.ndarray:
    found: list[float] = []
    for at in range(0, len(texts), size):
        found += score(texts[at : at + size])
    return np.array(found)
