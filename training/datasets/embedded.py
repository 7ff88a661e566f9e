"""The embedded preference set: household questions with a helpful and an unhelpful answer, made by a keyed generator.

A share of the labels is flipped (`label_noise`), in the held-out part as well. On clean labels nothing punishes
overconfidence: DPO with a learning rate 50 times too high ends at a held-out loss of 0.25 to 0.29, as good as the 0.26
to 0.28 of a healthy run. With one pair in five flipped it is 0.65 to 0.68 against 0.53 to 0.55.
"""

from __future__ import annotations

from canary_mlflow.training.assets import sentences
from canary_mlflow.training.config import CanaryConfig
from canary_mlflow.training.datasets.rows import RawData, Row, draw, shuffled
from canary_mlflow.training.errors import SetupError

Options = tuple[str, ...]

SETTINGS = ("label_noise",)
KEY = "preferences-1"  # a new number makes new data, hence a new digest and no comparison with the old
PROMPTS = len(sentences.TASKS) * len(sentences.CONTEXTS) * len(sentences.QUESTIONS)
HELD_OUT = PROMPTS // 8  # prompts that no training row has, whatever the tier


def check(config: CanaryConfig) -> None:
    """Raise SetupError if more held-out rows are requested than there are, or the noise is not a share."""
    if config.tier.eval_rows > HELD_OUT:
        raise SetupError(
            f"tier.eval_rows is {config.tier.eval_rows}; the embedded data holds out {HELD_OUT} rows; "
            "ask for that many or fewer"
        )
    if not 0 <= config.data.label_noise < 0.5:
        raise SetupError(
            f"data.label_noise is {config.data.label_noise}; expected a share of pairs, 0 or more, below 0.5"
        )


def load(config: CanaryConfig) -> RawData:
    """Make the rows that the tier asks for; a longer tier has the rows of a shorter one, and more.

    After every training prompt was used, the prompts repeat with other answers.
    """
    check(config)
    order, noise = shuffled(PROMPTS, KEY), config.data.label_noise
    asked = order[HELD_OUT:]
    train = (
        flip(make_row(asked[position % len(asked)], variant=position // len(asked)), position, noise)
        for position in range(config.tier.train_rows)
    )
    held_out = (flip(make_row(prompt), position, noise) for position, prompt in enumerate(order[:HELD_OUT]))
    return RawData(train=train, held_out=held_out)


def flip(row: Row, position: int, share: float) -> Row:
    """Swap the answers of an even share of positions: of the first n rows, floor(n * share) are flipped."""
    before, after = (int(count * share + 1e-9) for count in (position, position + 1))
    return Row(row.prompt, row.rejected, row.chosen) if after > before else row


def make_row(number: int, variant: int = 0) -> Row:
    """Return the pair for prompt `number` (0 to PROMPTS - 1), always the same for the same variant."""
    rest, task = divmod(number, len(sentences.TASKS))
    question, context = divmod(rest, len(sentences.CONTEXTS))
    asked = sentences.QUESTIONS[question].format(task=sentences.TASKS[task][0], context=sentences.CONTEXTS[context])
    return Row(f"Q: {asked}\nA:", _helpful(number, variant, task), _unhelpful(number, variant, task))


def _helpful(*key: int) -> str:
    tip = _pick(sentences.TASKS[key[-1]][1], "tip", key)
    return _answer(key, sentences.KIND_OPENINGS, sentences.ADVICE, sentences.KIND_ENDINGS, tip=tip)


def _unhelpful(*key: int) -> str:
    """Return a rude answer (half), a kind one that says nothing (three of ten), or advice on another task."""
    kind, task = draw(KEY, "kind", *key) % 10, sentences.TASKS[key[-1]][0]
    if kind < 5:
        return _answer(key, sentences.RUDE_OPENINGS, sentences.REFUSALS, sentences.RUDE_ENDINGS, task=task)
    if kind < 8:
        return _answer((*key, 1), sentences.KIND_OPENINGS, sentences.EVASIONS, sentences.KIND_ENDINGS, task=task)
    step = 1 + draw(KEY, "other", *key) % (len(sentences.TASKS) - 1)
    return _helpful(*key, (key[-1] + step) % len(sentences.TASKS))


def _answer(key: tuple[int, ...], openings: Options, bodies: Options, endings: Options, **words: str) -> str:
    opening, body, ending = (
        _pick(options, slot, key) for slot, options in (("open", openings), ("body", bodies), ("end", endings))
    )
    return " " + f"{opening} {body.format(**words)} {ending}".strip()


def _pick(options: Options, slot: str, key: tuple[int, ...]) -> str:
    return options[draw(KEY, slot, *key) % len(options)]
