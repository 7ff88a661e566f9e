"""The data: made or read, cut to the token budget, the same on every machine."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from canaries import a_config, tiny_model

from canary_mlflow.training import datasets
from canary_mlflow.training.datasets import embedded, hh_rlhf, jsonl
from canary_mlflow.training.datasets.rows import Row, digest, fit, shuffled, split_held_out, take
from canary_mlflow.training.errors import SetupError
from canary_mlflow.training.loading import load_tokenizer
from canary_mlflow.training.models import model_folder


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(model_folder(tiny_model()))


def lines(path: Path, *rows: object) -> Path:
    path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def pair(number: int = 0) -> dict[str, str]:
    return {"prompt": f"Q{number}: why?", "chosen": f" Because {number}.", "rejected": " No."}


# --- embedded ---------------------------------------------------------------------------------------------------


def test_embedded_data_are_the_same_on_every_machine(tokenizer):
    _, _, stats = datasets.load(a_config(train_rows=512, eval_rows=64), tokenizer)

    # A new digest means new data: baselines recorded with the old are no longer comparable.
    assert stats.digest == "0ca3ed0d2165aee740f7e98332f45ce395b25d6bd323838ba95b944ceb59209b"
    assert (stats.train_rows, stats.eval_rows, stats.shortened, stats.dropped_identical) == (512, 64, 0, 0)


def test_a_longer_tier_extends_the_rows_of_a_shorter_one():
    short = list(embedded.load(a_config(train_rows=50)).train)
    long = list(embedded.load(a_config(train_rows=4000)).train)

    assert long[:50] == short
    assert len(long) == 4000
    assert len(set(long)) > 3900, "prompts that come again bring other answers"


def test_no_training_row_has_a_held_out_prompt():
    raw = embedded.load(a_config(train_rows=8192, eval_rows=256))

    assert not {row.prompt for row in raw.train} & {row.prompt for row in raw.held_out}


@pytest.mark.parametrize("share", [0.0, 0.2, 0.25])
def test_label_noise_flips_exactly_the_asked_share(share):
    config = a_config(train_rows=500)
    config.data.label_noise = share
    noisy = list(embedded.load(config).train)
    config.data.label_noise = 0.0
    clean = list(embedded.load(config).train)

    flipped = [a for a, b in zip(noisy, clean, strict=True) if a != b]
    assert len(flipped) == int(500 * share)
    assert {row._replace(chosen=row.rejected, rejected=row.chosen) for row in flipped} <= set(clean)


def test_length_does_not_give_the_preference_away(tokenizer):
    config = a_config(train_rows=400)
    config.data.label_noise = 0.0
    lengths = [
        (len(tokenizer(row.chosen)["input_ids"]), len(tokenizer(row.rejected)["input_ids"]))
        for row in embedded.load(config).train
    ]

    longer = sum(chosen > rejected for chosen, rejected in lengths) / len(lengths)
    assert 0.3 < longer < 0.7


def test_more_held_out_rows_than_there_are_is_refused():
    with pytest.raises(SetupError, match=r"tier\.eval_rows is 9999.*holds out"):
        datasets.check(a_config(eval_rows=9999))


# --- the token budget -------------------------------------------------------------------------------------------


def test_prompts_are_cut_from_the_left_and_answers_from_the_right(tokenizer):
    row = Row("one two three four five six seven eight", " nine ten eleven twelve", " nine ten eleven thirteen")

    cut = fit(row, tokenizer, max_prompt=4, max_length=10)

    assert row.prompt.endswith(cut.prompt)
    assert cut.prompt != row.prompt
    assert row.chosen.startswith(cut.chosen)
    whole = tokenizer(cut.prompt + cut.chosen)["input_ids"]
    assert len(whole) + 1 <= 10, "one place is left for the end of the text"


def test_a_row_that_fits_is_untouched(tokenizer):
    row = Row("Q: ça va, 你好 🙂?\nA:", " très bien", " non")

    assert fit(row, tokenizer, max_prompt=64, max_length=256) == row


def test_pairs_equal_after_cutting_are_left_out_and_counted(tokenizer):
    same = " word" * 50
    rows = [Row("p", same + " yes", same + " no"), Row("p", " yes", " no"), Row("p", " x", " x")]

    taken = take(rows, 10, tokenizer, max_prompt=8, max_length=24)

    assert taken.rows == (rows[1],)
    assert taken.identical == 2


def test_taking_stops_at_the_wanted_number(tokenizer):
    endless = (Row(f"p{number}", " yes", " no") for number in iter(int, 1))

    assert len(take(endless, 5, tokenizer, max_prompt=8, max_length=24).rows) == 5


def test_ppo_keeps_its_own_prompt_length():
    assert datasets.max_prompt(a_config(algo="ppo")) == 32
    assert datasets.max_prompt(a_config(algo="dpo")) == 128


def test_the_digest_sees_content_order_and_part():
    a, b = Row("p", "a", "b"), Row("p", "b", "a")

    digests = [
        digest([a], [b]),
        digest([b], [a]),
        digest([a, b], []),
        digest([a], []),
        digest([Row("pa", "", "b")], []),
    ]
    assert len(set(digests)) == len(digests)
    assert digest([Row("é", "ü", "")]) == "1eeddde15592f4e51a1105c867a2f20f5982029875d654d829fd1544fbf86b0d"


def test_orders_and_splits_are_fixed_and_whole():
    assert shuffled(5, "key") == [4, 2, 1, 0, 3]
    rows = [Row(str(number), "a", "b") for number in range(20)]
    train, held_out = split_held_out(rows, 100, "key")
    assert sorted(train + held_out) == sorted(rows)
    assert len(held_out) == 4, "at most a fifth"


# --- jsonl ------------------------------------------------------------------------------------------------------


def test_jsonl_rows_are_used_once_each(tmp_path, tokenizer):
    path = lines(tmp_path / "pairs.jsonl", *[pair(number) for number in range(40)])

    train, held_out, stats = datasets.load(a_config("jsonl", path, train_rows=100, eval_rows=5), tokenizer)

    assert (stats.train_rows, stats.eval_rows) == (35, 5)
    assert sorted([*train["prompt"], *held_out["prompt"]]) == sorted(pair(number)["prompt"] for number in range(40))
    assert train.column_names == ["prompt", "chosen", "rejected"]


def test_jsonl_takes_bom_crlf_blank_lines_unicode_and_gzip(tmp_path):
    text = (
        "\ufeff"
        + json.dumps(pair(1))
        + "\r\n\r\n   \n"
        + json.dumps({**pair(2), "chosen": "a\u2028b é 🙂"}, ensure_ascii=False)
    )
    plain, packed = tmp_path / "a.jsonl", tmp_path / "a.jsonl.gz"
    plain.write_bytes(text.encode())
    packed.write_bytes(gzip.compress(text.encode()))

    for path in (plain, packed):
        rows = list(jsonl.read_rows(a_config("jsonl", path)))
        assert [row.chosen for row in rows] == [" Because 1.", "a\u2028b é 🙂"]


def test_completions_serve_sft_and_ppo_but_not_dpo(tmp_path, tokenizer):
    path = lines(tmp_path / "a.jsonl", *[{"prompt": f"p{n}", "completion": f" c{n}"} for n in range(10)])

    train, _, _ = datasets.load(a_config("jsonl", path, algo="sft"), tokenizer)
    completions = datasets.as_completions(train)
    assert completions.column_names == ["prompt", "completion"]
    assert set(completions["completion"]) <= {f" c{n}" for n in range(10)}
    datasets.check(a_config("jsonl", path, algo="ppo"))
    with pytest.raises(SetupError, match=r"line 1: a completion without a rejected answer.*prompt, chosen, rejected"):
        datasets.check(a_config("jsonl", path, algo="dpo"))


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        ('{"prompt": "x", \n', r"line 3: no JSON \(.* at column \d+\); expected one object per line"),
        ('["a", "b"]\n', r"line 3: a list; expected an object"),
        (
            {"prompt": "p", "chosen": "c"},
            r"line 3: no column 'rejected'; found chosen, prompt; expected prompt, chosen",
        ),
        ({**pair(), "chosen": ["c"]}, r"line 3: chosen is a list; expected a string"),
        ({**pair(), "chosen": 7}, r"line 3: chosen is a number; expected a string"),
        ({**pair(), "chosen": {"text": "c"}}, r"line 3: chosen is an object; expected a string"),
        ({**pair(), "prompt": None}, r"line 3: prompt is null; expected a string"),
        ({**pair(), "rejected": "  "}, r"line 3: rejected is empty; expected some text"),
        ('{"prompt": "\\ud800", "chosen": "a", "rejected": "b"}\n', r"line 3: prompt holds half a surrogate pair"),
        ("[" * 100_000 + "\n", r"line 3: no usable JSON"),
    ],
)
def test_a_bad_line_is_named_with_what_was_expected(tmp_path, bad, expected):
    path = lines(tmp_path / "a.jsonl", pair(0), pair(1), bad, pair(3))

    with pytest.raises(SetupError, match=expected) as caught:
        datasets.check(a_config("jsonl", path))

    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_bytes_that_are_no_utf8_are_named_by_line(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(json.dumps(pair()).encode() + b'\n{"prompt": "\xff"}\n')

    with pytest.raises(SetupError, match=r"line 2: invalid start byte; expected UTF-8"):
        datasets.check(a_config("jsonl", path))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (json.dumps([pair()] * 3).encode(), r"is one JSON array; expected an object per line; `jq -c '\.\[\]' "),
        (json.dumps(pair()).encode("utf-16"), "is UTF-16, or no text; expected UTF-8; `iconv "),
        (json.dumps(pair()).encode("utf-16-le"), "is UTF-16, or no text; expected UTF-8; `iconv "),
        (b"\r".join([json.dumps(pair()).encode()] * 3), r"ends its lines with .r; expected .n; `tr "),
    ],
)
def test_other_kinds_of_files_are_named_with_what_converts_them(tmp_path, content, expected):
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)

    with pytest.raises(SetupError, match=expected):
        datasets.check(a_config("jsonl", path))


@pytest.mark.parametrize(
    ("content", "expected"), [("", "no rows"), ("\n \n", "no rows"), (json.dumps(pair()), "one row")]
)
def test_a_set_too_small_to_hold_anything_out_is_refused(tmp_path, content, expected):
    with pytest.raises(SetupError, match=expected):
        datasets.check(a_config("jsonl", lines(tmp_path / "a.jsonl", content)))


def test_a_set_without_any_difference_is_refused(tmp_path, tokenizer):
    path = lines(tmp_path / "a.jsonl", *[{"prompt": "p", "chosen": "same", "rejected": "same"}] * 5)

    with pytest.raises(SetupError, match=r"leaves 0 training and 0 held-out rows after dropping 5 pairs"):
        datasets.load(a_config("jsonl", path), tokenizer)


def test_a_missing_or_unnamed_file_is_said(tmp_path):
    with pytest.raises(SetupError, match=r"nowhere\.jsonl is not a file; expected"):
        datasets.check(a_config("jsonl", tmp_path / "nowhere.jsonl"))
    with pytest.raises(SetupError, match=r"expected data\.path=FILE"):
        datasets.check(a_config("jsonl"))


# --- hh-rlhf ----------------------------------------------------------------------------------------------------


def dialogue(*turns: str) -> str:
    return "".join(f"\n\n{'Assistant' if index % 2 else 'Human'}: {turn}" for index, turn in enumerate(turns))


def hh_folder(folder: Path, pairs: list[tuple[str, str]], split: str = "train", subset: str = "helpful-base") -> Path:
    (folder / subset).mkdir(parents=True, exist_ok=True)
    rows = "".join(json.dumps({"chosen": chosen, "rejected": rejected}) + "\n" for chosen, rejected in pairs)
    (folder / subset / f"{split}.jsonl.gz").write_bytes(gzip.compress(rows.encode()))
    return folder


def some_pairs(count: int, start: int = 0) -> list[tuple[str, str]]:
    asked = [("hello", "hi", f"question {start + number}") for number in range(count)]
    return [(dialogue(*turns, "yes, gladly"), dialogue(*turns, "no")) for turns in asked]


def test_dialogues_are_split_at_the_last_shared_assistant_turn():
    row = hh_rlhf.split_pair(dialogue("a", "b", "c", "good"), dialogue("a", "b", "c", "bad"))

    assert row == Row("\n\nHuman: a\n\nAssistant: b\n\nHuman: c\n\nAssistant:", " good", " bad")


def test_answers_that_begin_alike_stay_whole():
    row = hh_rlhf.split_pair(dialogue("a", "I think so"), dialogue("a", "I think not"))

    assert row is not None
    assert (row.chosen, row.rejected) == (" I think so", " I think not")


@pytest.mark.parametrize(
    ("chosen", "rejected"),
    [
        (dialogue("a", "b"), dialogue("x", "y")),
        (dialogue("a", "b", "c", "d"), dialogue("a", "x", "y", "z")),
        (dialogue("a", "b"), dialogue("a", "")),
        ("no dialogue", "none either"),
    ],
)
def test_pairs_without_shared_prompt_or_answer_are_unusable(chosen, rejected):
    assert hh_rlhf.split_pair(chosen, rejected) is None


def test_a_local_folder_of_the_hubs_layout_is_read(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    unusable = (dialogue("a", "b"), dialogue("x", "y"))
    alike = (dialogue("a", "yes " * 300 + "x"), dialogue("a", "yes " * 300 + "y"))
    folder = hh_folder(tmp_path / "hh", [*some_pairs(10), unusable], subset="harmless-base")
    hh_folder(folder, [*some_pairs(10, 10), alike], subset="helpful-base")
    hh_folder(folder, some_pairs(8, 100), split="test")
    hh_folder(folder, some_pairs(8, 500), subset="red-team-attempts")
    config = a_config("hh-rlhf", folder, train_rows=100, eval_rows=4)

    datasets.check(config)
    train, held_out, stats = datasets.load(config, tokenizer)

    assert (stats.train_rows, stats.eval_rows) == (20, 4)
    assert (stats.dropped_unusable, stats.dropped_identical) == (1, 1)
    assert not any("question 50" in prompt for prompt in train["prompt"]), "the red-team subset has no pairs"
    assert all("question 10" in prompt for prompt in held_out["prompt"]), "held-out rows come from the test split"
    assert datasets.load(config, tokenizer)[2] == stats


def test_the_hubs_cache_serves_without_network(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    place = tmp_path / "datasets--Anthropic--hh-rlhf"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text("d" * 40)
    snapshot = place / "snapshots" / ("d" * 40)
    for number, subset in enumerate(hh_rlhf.SUBSETS):
        hh_folder(snapshot, some_pairs(4, 10 * number), subset=subset)
        hh_folder(snapshot, some_pairs(4, 100 + 10 * number), split="test", subset=subset)
    config = a_config("hh-rlhf", "Anthropic/hh-rlhf")

    datasets.check(config)
    _, _, stats = datasets.load(config, tokenizer)

    assert (stats.train_rows, stats.eval_rows) == (16, 16)
    (snapshot / hh_rlhf.SUBSETS[2] / "train.jsonl.gz").unlink()
    with pytest.raises(SetupError, match=r"the cache lacks it \(helpful-online/train\.jsonl\.gz\)"):
        datasets.check(config)


def test_long_prompts_keep_their_end(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    turns = [f"turn {number} of a long talk" for number in range(61)]
    folder = hh_folder(tmp_path / "hh", [(dialogue(*turns, f"yes {n}"), dialogue(*turns, f"no {n}")) for n in range(5)])

    train, _, stats = datasets.load(a_config("hh-rlhf", folder), tokenizer)

    assert stats.shortened == 5
    assert all(prompt.endswith("turn 60 of a long talk\n\nAssistant:") for prompt in train["prompt"])
    assert all("turn 0 of" not in prompt for prompt in train["prompt"])
    assert max(len(tokenizer(prompt)["input_ids"]) for prompt in train["prompt"]) <= 128


def test_a_folder_that_is_no_hh_rlhf_is_said(tmp_path):
    with pytest.raises(SetupError, match=r"has no train\.jsonl\.gz"):
        datasets.check(a_config("hh-rlhf", tmp_path))
    (tmp_path / "train.jsonl").write_text('{"text": "x"}\n')
    with pytest.raises(SetupError, match=r"line 1: no text column 'chosen'; found text"):
        datasets.check(a_config("hh-rlhf", tmp_path))
    (tmp_path / "train.jsonl").write_text('{"chosen": "x", "rejected": "y"}\n')
    with pytest.raises(SetupError, match=r"line 1: no dialogue"):
        datasets.check(a_config("hh-rlhf", tmp_path))
