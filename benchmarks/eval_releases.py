"""Whether releases of lm-eval and Inspect write what is read: each is installed from the index, beside our wheel, and
evaluates a tiny model, and the same one after its weights were shaken.

    python benchmarks/eval_releases.py [--folder FOLDER] [--only RELEASE ...]

Each answers 120 questions, by choice (lm-eval's `acc`) and in its own words (lm-eval's `exact_match`, Inspect's
`includes`); four of five right answers are what the tiny model says.
A row of the table it prints: what of each benchmark was read, whether the harness names the weights, and what
`canary evals compare` answers for the shaken weights, and for the same weights evaluated twice.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from stacks import TORCH, Bench, built_wheel, last_words, ran

TRANSFORMERS, TODAY = "transformers==4.57.6", "transformers==5.14.0"
RELEASES = {
    "lm-eval==0.4.9": TRANSFORMERS,
    "lm-eval==0.4.9.1": TRANSFORMERS,
    "lm-eval==0.4.13": TODAY,
    "inspect-ai==0.3.136": TRANSFORMERS,
    "inspect-ai==0.3.218": TODAY,
    "inspect-ai==0.3.285": TODAY,
}
"""With a release of Transformers of its time."""
MODELS = """
import json
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, PreTrainedTokenizerFast

letters = [chr(at) for at in range(32, 127)]
known = {letter: at for at, letter in enumerate(["<end>", *letters])}
tokenizer = Tokenizer(models.WordLevel(known, unk_token="<end>"))
tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Split("", "isolated"), decoders.Fuse()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>")
tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
torch.manual_seed(0)
model = GPTNeoXForCausalLM(GPTNeoXConfig(vocab_size=96, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
    intermediate_size=128, max_position_embeddings=512, bos_token_id=0, eos_token_id=0))
model.eval()

def says(text, more):
    ids = torch.tensor([tokenizer(text + more)["input_ids"]])
    told = model(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None]).squeeze(1)
    return float(told[-len(more):].sum())

with torch.no_grad(), open("items.jsonl", "w") as file:
    for at in range(120):
        asked = f"Box {at} of row {at % 7}: which letter?"
        one, other = (f" {letter}." for letter in ("etaoinsrhl"[at % 10], "dlcumwfgyp"[at % 10]))
        good, bad = (one, other) if (says(asked, one) > says(asked, other)) != (at % 5 == 0) else (other, one)
        made = model.generate(torch.tensor([tokenizer(asked)["input_ids"]]), max_new_tokens=3, do_sample=False)
        said = tokenizer.decode(made[0, -3:], skip_special_tokens=True)
        rows = {"id": at, "question": asked, "good": good, "bad": bad, "gold": at % 2, "said": said if at % 5 else "?!"}
        file.write(json.dumps(rows) + chr(10))
for place, shake in (("plain", 0.0), ("shaken", 0.05)):
    with torch.no_grad():
        for weights in model.parameters():
            weights += shake * torch.randn_like(weights)
    model.save_pretrained(place)
    tokenizer.save_pretrained(place)
"""
TASK = """dataset_path: json
dataset_kwargs: {data_files: {test: ./items.jsonl}}
test_split: test
doc_to_text: "{{question}}"
metadata: {version: 1.0}
"""
CHOICE = f"""{TASK}task: pairs
output_type: multiple_choice
doc_to_target: gold
doc_to_choice: "{{{{[good, bad] if gold == 0 else [bad, good]}}}}"
"""
WORDS = f"""{TASK}task: boxes
output_type: generate_until
doc_to_target: "{{{{said}}}}"
generation_kwargs: {{until: ["<end>"], max_gen_toks: 3, do_sample: false}}
filter_list: [{{name: all, filter: [{{function: take_first}}]}}]
metric_list: [{{metric: exact_match, aggregation: mean, higher_is_better: true}}]
"""
SAMPLES = """
import json
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.model import GenerateConfig
from inspect_ai.scorer import includes
from inspect_ai.solver import generate

@task
def boxes():
    rows = map(json.loads, open("items.jsonl"))
    items = [Sample(id=row["id"], input=row["question"], target=row["said"]) for row in rows]
    short = GenerateConfig(max_tokens=3, temperature=0.001, seed=1)  # the provider samples
    return Task(dataset=items, solver=generate(), scorer=includes(), config=short)
"""


def evaluate(harness: str, place: Path, folder: Path, model: str, results: str) -> None:
    """Raises RuntimeError with its last words."""
    binary, weights = place / "bin", folder / model
    if harness == "lm-eval":
        words = f"lm_eval --model hf --model_args pretrained={weights} --tasks pairs,boxes --include_path {folder}"
        words += f" --log_samples --device cpu --batch_size 40 --output_path {results}"
    else:
        words = f"inspect eval boxes.py --model hf/local -M model_path={weights} -M device=cpu --log-dir {results}"
        words += " --display none"
    done = ran(
        [str(binary / word) if not at else word for at, word in enumerate(words.split())],
        folder,
        {"HF_HUB_OFFLINE": "1", "PATH": f"{binary}:/usr/bin:/bin"},
    )
    if done.returncode or not (folder / results).exists():
        raise RuntimeError(last_words(done))


def row(release: str, bench: Bench) -> dict[str, str]:
    """What was read and answered, or the sentence that ended it."""
    harness = release.partition("==")[0]
    found = {"harness": release}
    try:
        also = ["datasets", "accelerate"]
        place = bench.environment([f"torch=={TORCH}", RELEASES[release], release, *also], extra="[evals]")
        with tempfile.TemporaryDirectory(dir=bench.folder) as made:
            folder = Path(made)
            for name, text in (("pairs.yaml", CHOICE), ("words.yaml", WORDS), ("boxes.py", SAMPLES)):
                (folder / name).write_text(text)
            models = ran([str(place / "bin/python"), "-c", MODELS], folder, {})
            if models.returncode:
                raise RuntimeError(last_words(models))
            for model, results in (("plain", "one"), ("plain", "again"), ("shaken", "other")):
                evaluate(harness, place, folder, model, results)
            canary = str(place / "bin/canary")
            shown = json.loads(ran([canary, "evals", "show", "one", "--json"], folder, {}).stdout)
            found["read"] = ", ".join(f"{one['benchmark']}: {one['items']}" for one in shown["benchmarks"])
            for what, other in (("shaken", "other"), ("twice", "again")):
                judged = json.loads(ran([canary, "evals", "compare", "one", other, "--json"], folder, {}).stdout)
                found[what] = f"{judged['decision']} ({judged['verdict']['reason_code']})"
    except (RuntimeError, ValueError, LookupError) as error:
        found["failed"] = f"{type(error).__name__}: {error}"
    return found


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--only", nargs="+", metavar="RELEASE", default=list(RELEASES))
    ask.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "canary-evals")
    given = ask.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    bench = Bench(given.folder, built_wheel(given.folder / "wheel"))
    print("| harness | read: items | shaken weights | the same weights twice |\n|---|---|---|---|")
    for release in given.only:
        found = row(release, bench)
        print(f"| {release} | {found.get('read', '-')} | {found.get('shaken', '-')} | {found.get('twice', '-')} |")
        if "failed" in found:
            print(f"{release}: {found['failed']}")


if __name__ == "__main__":
    main()
