"""Is this a usable reward model? Checked on pairs of answers, before anything is trained with it.

Whether its head is trained is seen beside heads drawn at random on the same model: whatever the data, that is exact,
because an untrained head knows nothing of them.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from canary_mlflow.errors import UsageError, one_line
from canary_mlflow.files.source import read_bytes
from canary_mlflow.module_runner import module_command
from canary_mlflow.shown import echo
from canary_mlflow.training import datasets
from canary_mlflow.training.config import CanaryConfig
from canary_mlflow.training.datasets import embedded
from canary_mlflow.training.datasets.records import kind_of
from canary_mlflow.training.datasets.rows import shuffled
from canary_mlflow.training.errors import SetupError, ended
from canary_mlflow.training.plain import read_back, to_plain
from canary_mlflow.training.reward_sources import reward_folder

DRAWS = 2000


class Head:
    """The layer that makes a score of a text's state, watched: the linear layer with one output that ran last."""

    def __init__(self, model: Any) -> None:
        from torch import nn

        self._ran: tuple[Any, Any, Any] | None = None
        for layer in model.modules():
            if isinstance(layer, nn.Linear) and layer.out_features == 1:
                layer.register_forward_hook(self._keep)

    def _keep(self, layer: Any, given: tuple[Any, ...], output: Any) -> None:
        self._ran = (layer, given[0].detach(), output.detach())

    def states(self, scores: Any) -> np.ndarray | None:
        """What the head has read of each text (texts by width), for the scores of the last batch; None if there is no
        such layer, or its output is not the score."""
        import torch

        if self._ran is None:
            return None
        _, given, output = self._ran
        if given.ndim == 3:  # at every token; the score is that of one
            at = (output[..., 0] - scores[:, None]).abs().argmin(1)
            rows = torch.arange(len(at), device=at.device)
            given, output = given[rows, at], output[rows, at]
        if given.ndim != 2 or not torch.allclose(output[:, 0].float(), scores.float(), atol=1e-4, rtol=1e-3):
            return None
        return np.asarray(given.float().cpu(), dtype=np.float64)

    @property
    def weights(self) -> np.ndarray:
        """The layer's, once it has run."""
        assert self._ran is not None
        return np.asarray(self._ran[0].weight.detach().float().cpu()[0], dtype=np.float64)


def untrained(weights: np.ndarray, better: np.ndarray, worse: np.ndarray) -> float:
    """The share of random heads that tell these texts apart as well: by the mean difference of their scores relative to
    the head's length, or by how many pairs they order alike, whichever is the rarer, both ways round. A head whose
    training shaped the model, too, stands out in the first, one that was fitted to a finished model in the second.
    `better`, `worse`: pairs by width, what the head reads of them."""
    differences = better - worse
    drawn = np.random.default_rng(0).normal(size=(DRAWS, len(weights)))
    mean = differences.mean(axis=0)

    def apart(heads: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        sides = np.sign(heads @ differences.T).mean(axis=1)
        return np.abs(heads @ mean) / np.linalg.norm(heads, axis=1), np.abs(sides)

    own, others = apart(weights[None, :]), apart(drawn)
    rarer = min(float((other >= one).sum() + 1) / (DRAWS + 1) for one, other in zip(own, others, strict=True))
    return min(1.0, 2 * rarer)


CHANCE = 0.5
ALPHA = 0.05  # also the share of random heads that do as well, from which a head is not known to be trained
BATCH = 32
ACCURACY = "accuracy"


@dataclass(frozen=True, kw_only=True)
class CheckResult:
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
    findings: tuple[CheckResult, ...]

    @property
    def outcome(self) -> str:
        """BLOCK if a finding is bad; INCONCLUSIVE if the pairs do not tell whether it orders them as people did."""
        if any(one.fine is False for one in self.findings):
            return "BLOCK"
        told = all(one.fine is not None for one in self.findings if one.name == ACCURACY)
        return "PASS" if told else "INCONCLUSIVE"

    @property
    def usable(self) -> bool:
        """Whether it is known that a policy can be trained with it."""
        return self.outcome == "PASS"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; None for what no pair tells."""
        told = {key: None if value != value else value for key, value in asdict(self).items()}
        return {**told, "usable": self.usable, "outcome": self.outcome}


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A sequence classifier as a scorer of texts, and what its files tell. `score`: the scores of some texts, and what
    the head reads of them (texts by width), None if that is not known."""

    score: Callable[[Sequence[str]], tuple[np.ndarray, np.ndarray | None]]
    tokens: Callable[[Sequence[str]], list[list[int]]]
    head: Head
    findings: tuple[CheckResult, ...]


def load(path: str, folder: Path) -> Loaded:
    """Load the model, with findings on its head, its weights and its padding. Raises SetupError."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    from canary_mlflow.training.errors import SetupError, first_line

    try:
        model, info = AutoModelForSequenceClassification.from_pretrained(
            folder, trust_remote_code=False, output_loading_info=True
        )
        reader = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except (OSError, ValueError, RuntimeError) as error:
        raise SetupError(f"{path}: cannot be loaded ({first_line(error)}); expected a sequence classifier") from error
    model.eval().to("cuda" if torch.cuda.is_available() else "cpu")
    missing = sorted(map(str, info["missing_keys"]))
    labels, pad, padded = int(model.config.num_labels), model.config.pad_token_id, reader.pad_token_id
    pads = padded is not None and pad == padded
    none = f"pad token {pad}, and the tokenizer's is {padded}, so padding is read"
    finite = all(bool(torch.isfinite(one).all()) for one in model.parameters())
    random = f"no weights for {', '.join(missing[:3])}, which are random"
    findings = (
        CheckResult(
            name="labels",
            fine=labels == 1,
            said="one label, the score" if labels == 1 else f"{labels} labels; expected 1, the score",
        ),
        CheckResult(name="head", fine=not missing, said=random if missing else "all weights are in its files"),
        CheckResult(
            name="finite", fine=finite, said="weights are finite" if finite else "weights hold NaN or infinities"
        ),
        CheckResult(name="padding", fine=pads, said=f"pad token {pad}" if pads else none),
    )

    head = Head(model)

    def score(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray | None]:
        inputs = reader(list(texts), return_tensors="pt", padding=pads, truncation=True).to(model.device)
        inputs.pop("token_type_ids", None)
        with torch.no_grad():
            found = model(**inputs).logits[:, 0].float()
        return np.asarray(found.cpu(), dtype=np.float64), head.states(found)

    def tokens(texts: Sequence[str]) -> list[list[int]]:
        return [list(reader(text, truncation=True)["input_ids"]) for text in texts]

    return Loaded(score=score, tokens=tokens, head=head, findings=findings)


def check(path: str, loaded: Loaded, chosen: Sequence[str], rejected: Sequence[str]) -> RewardCheck:
    """All findings on these pairs of whole texts (prompt and answer), each pair once; without pairs, only those on its
    files."""
    if not chosen:
        return _unranked(path, 0, loaded.findings)
    chosen, rejected = zip(*dict.fromkeys(zip(chosen, rejected, strict=True)), strict=True)
    one_by_one = not next(one for one in loaded.findings if one.name == "padding").fine
    size = 1 if one_by_one else BATCH
    (better, read), (worse, others) = (_scored(loaded, texts, size) for texts in (chosen, rejected))
    scores = np.array([*better, *worse])
    if wrong := int(np.sum(~np.isfinite(scores))):
        said = f"{wrong} of {len(scores)} scores are NaN or infinite"
        return _unranked(path, len(chosen), (*loaded.findings, CheckResult(name=ACCURACY, fine=False, said=said)))
    constant = bool(np.all(better == worse)) or float(np.ptp(scores)) <= 1e-6 * max(1.0, float(np.abs(scores).max()))
    tokens = [loaded.tokens(texts) for texts in (chosen, rejected)]
    apart = better != worse
    count = int(apart.sum())
    accuracy = float(np.mean(better[apart] > worse[apart])) if count else math.nan
    limits = interval(accuracy, count)
    trained = () if constant or read is None or others is None else (_trained(loaded.head.weights, read, others),)
    findings = (
        *loaded.findings,
        _alike(tokens) or _accuracy(accuracy, limits, count, constant=constant, trained=all(o.fine for o in trained)),
        *trained,
    )
    low, high = limits
    return RewardCheck(path=path, pairs=len(chosen), accuracy=accuracy, low=low, high=high, findings=findings)


def _unranked(path: str, pairs: int, findings: tuple[CheckResult, ...]) -> RewardCheck:
    return RewardCheck(path=path, pairs=pairs, accuracy=math.nan, low=math.nan, high=math.nan, findings=findings)


def interval(share: float, count: int) -> tuple[float, float]:
    """Clopper and Pearson's for a share of so many pairs."""
    from scipy.stats import binomtest

    if not count:
        return math.nan, math.nan
    found = binomtest(round(share * count), count).proportion_ci(1 - ALPHA)
    return float(found.low), float(found.high)


def _alike(tokens: Sequence[Sequence[Sequence[int]]]) -> CheckResult | None:
    """That the model is shown no difference within any pair, so that its scores tell nothing of it."""
    if any(better != worse for better, worse in zip(*tokens, strict=True)):
        return None
    most = max(len(ids) for one in tokens for ids in one)
    said = f"both answers of each pair are the same {most} tokens or fewer, whole or cut: nothing to rank"
    return CheckResult(name=ACCURACY, fine=None, said=said)


def _accuracy(
    accuracy: float, limits: tuple[float, float], pairs: int, *, constant: bool, trained: bool
) -> CheckResult:
    """`pairs`: those with two different scores."""
    if constant:
        return CheckResult(name=ACCURACY, fine=False, said="every text has the same score")
    low, high = limits
    said = f"{100 * accuracy:.0f} % of {pairs} pairs ranked correctly [{100 * low:.0f}, {100 * high:.0f}]"
    if low > CHANCE:
        return CheckResult(name=ACCURACY, fine=True, said=said)
    if high < CHANCE:
        said += ": worse than chance" + (", as if the preferences were reversed" if trained else "")
        return CheckResult(name=ACCURACY, fine=False, said=said)
    if interval(1.0, pairs)[0] <= CHANCE:
        return CheckResult(name=ACCURACY, fine=None, said=f"{said}: too few to tell any model from chance")
    return CheckResult(name=ACCURACY, fine=False, said=f"{said}: no better than chance")


def _trained(weights: np.ndarray, better: np.ndarray, worse: np.ndarray) -> CheckResult:
    share = untrained(weights, better, worse)
    said = f"{100 * share:.1f} % of random heads on this model tell them apart as well"
    fine = share < ALPHA
    return CheckResult(name="trained", fine=fine, said=said if fine else f"{said}: its head is not trained for this")


def _scored(loaded: Loaded, texts: Sequence[str], size: int) -> tuple[np.ndarray, np.ndarray | None]:
    found = [loaded.score(texts[at : at + size]) for at in range(0, len(texts), size)]
    states = [read for _, read in found if read is not None]
    together = np.concatenate(states) if len(states) == len(found) else None
    return np.concatenate([scores for scores, _ in found]), together


EMBEDDED = "preferences"
ANSWERS = ("chosen", "rejected")
WANTED = f"expected {EMBEDDED}, or a JSONL file with prompt, chosen and rejected"
ROWS = 256  # pairs: a model that orders 57 % of them as people did is better than chance
CODES = {"PASS": 0, "BLOCK": 1, "INCONCLUSIVE": 3}


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the named model; return 0 if it is usable, 1 if it is not, 3 if the pairs do not tell."""
    parser = ArgumentParser(prog="canary check-reward", description=__doc__)
    parser.add_argument("path")
    parser.add_argument("--data", default=EMBEDDED)
    parser.add_argument("--config", help="a run's configuration as JSON: its data in place of --data")
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(arguments)
    return ended(lambda: _run(asked.path, asked.data, asked.rows, asked.config, as_json=asked.json))


def _run(path: str, data: str, rows: int, config: str | None, *, as_json: bool) -> int:
    chosen, rejected = pairs_of_config(config, rows) if config else pairs_of_data(data, rows)
    found = check(path, load(path, reward_folder(path)), chosen, rejected)
    if as_json:
        sys.stdout.write(json.dumps(found.to_dict(), allow_nan=False) + "\n")
    for line in lines(found):
        echo(line, err=as_json)
    return CODES[found.outcome]


def lines(found: RewardCheck) -> Iterator[str]:
    """The report for people."""
    yield f"{found.outcome}  {found.path}, on {found.pairs} pair{'s' * (found.pairs != 1)}"
    for one in found.findings:
        word = {True: "ok", False: "BLOCK", None: "--"}[one.fine]
        yield f"  {word:<5}  {one.name:<8}  {one.said}"


def pairs_of_data(data: str, rows: int) -> tuple[list[str], list[str]]:
    """Whole texts of the better and of the worse answers. Raises UsageError."""
    if data == EMBEDDED:
        order = shuffled(embedded.PROMPTS, embedded.KEY)[: min(rows, embedded.HELD_OUT)]
        made = [embedded.make_row(number) for number in order]
        return [row.prompt + row.chosen for row in made], [row.prompt + row.rejected for row in made]
    try:
        lines = read_bytes(Path(data)).decode("utf-8-sig").split("\n")
    except (OSError, ValueError) as error:
        raise UsageError(f"--data {data}: {getattr(error, 'strerror', '') or one_line(error)}; {WANTED}") from error
    filled = [(number, line) for number, line in enumerate(lines, 1) if line.strip()][:rows]
    found = [_pair(line, f"--data {data}, line {number}") for number, line in filled]
    if not found:
        raise UsageError(f"--data {data}: found no rows; expected pairs")
    return [better for better, _ in found], [worse for _, worse in found]


def _pair(line: str, where: str) -> tuple[str, str]:
    """Both whole texts of a row: what no classifier can read as text would get a score all the same."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: no JSON ({one_line(error)}); {WANTED}") from error
    if not isinstance(row, dict):
        raise UsageError(f"{where}: {kind_of(row)}; {WANTED}")
    prompt = row.get("prompt") if row.get("prompt") is not None else ""
    for name, value in (("prompt", prompt), *((name, row.get(name)) for name in ANSWERS)):
        if not isinstance(value, str):
            found = f"{name} is {kind_of(value)}" if name in row else f"no {name}"
            raise UsageError(f"{where}: {found}; {WANTED}, each a text")
        if name in ANSWERS and not value.strip():
            raise UsageError(f"{where}: {name} is empty; {WANTED}")
    return prompt + row["chosen"], prompt + row["rejected"]


def pairs_of_config(file: str, rows: int) -> tuple[list[str], list[str]]:
    """The same for the held-out data of a run's configuration; empty if it has no pairs of texts."""
    found = datasets.held_out_pairs(read_back(json.loads(Path(file).read_text())), rows)
    return [better for better, _ in found], [worse for _, worse in found]


def precheck(configs: Iterable[CanaryConfig]) -> Iterator[str]:
    """Check each reward model that scores answers once, on the same data, in a separate process that loads torch; yield
    a line for each. Raises SetupError with one line for a model that no policy can be trained with."""
    asked = {
        (str(reward.path), json.dumps(to_plain(config)["data"])): config
        for config in configs
        for reward in config.algo.scored_by()
        if reward.kind == "model" and reward.precheck
    }
    for (path, _), config in asked.items():
        yield _prechecked(path, config)


def _prechecked(path: str, config: CanaryConfig) -> str:
    with tempfile.TemporaryDirectory(prefix="canary-") as folder:
        file = Path(folder, "config.json")
        file.write_text(json.dumps(to_plain(config)))
        words = [
            *module_command("canary_mlflow.training.reward_checks"),
            path,
            f"--config={file}",
            f"--rows={ROWS}",
            "--json",
        ]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode not in CODES.values() or not done.stdout.strip():
        said = (done.stderr.strip().splitlines() or [f"{path}: the check of the reward model broke off"])[-1]
        raise SetupError(said.removeprefix("canary: "))
    found = json.loads(done.stdout)
    bad = [one["said"] for one in found["findings"] if one["fine"] is False]
    if bad:
        raise SetupError(
            f"reward model {path}: {'; '.join(bad)}; expected one that a policy can be trained with "
            f"(canary check-reward {path} shows all; algo.reward.precheck=false trains all the same)"
        )
    order = next((one["said"] for one in found["findings"] if one["name"] == "accuracy"), "no pairs to try it on")
    return f"reward model {path}: {order}"


if __name__ == "__main__":
    sys.exit(main())
