"""Samples: kept within their size, shown next to the champion's, and harmless whatever an answer says."""

from __future__ import annotations

import itertools
import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from hostile import HOSTILE, obeyed

from canary_mlflow.cli import canary
from canary_mlflow.errors import UsageError
from canary_mlflow.registry.acts.by_hand import bless
from canary_mlflow.tracking.probes.answers import Answers, repetition
from canary_mlflow.tracking.reading.samples import FILE, MOST_CHARACTERS, Answer, Samples, read


def an_answer(step: int = 1, kind: str = "fixed", text: str = "yes", **more: Any) -> Answer:
    return Answer(step=step, kind=kind, prompt="How?", answer=text, **more)


def test_a_table_is_read_as_it_was_written() -> None:
    table = Samples()
    given = [an_answer(reward=1.5, length=3, kl=0.25), an_answer(2, "worst", text=HOSTILE, reward=float("nan"))]
    table.add(given)
    found = read(table.text(), FILE)
    assert found[0] == given[0]
    assert (found[1].answer, str(found[1].reward)) == (HOSTILE, "nan")


def test_a_full_table_spans_the_whole_run_and_stays_within_its_size() -> None:
    table = Samples(most=20_000)
    for step in range(1, 401):
        table.add([an_answer(step, text="x" * 500)])
    steps = [one.step for one in read(table.text(), FILE)]
    assert len(table.text()) <= 20_000
    assert (steps[0], steps[-1]) == (1, 400)
    assert max(after - before for before, after in itertools.pairwise(steps)) < 200


def test_an_answer_of_a_megabyte_is_cut_and_says_so() -> None:
    table = Samples()
    table.add([an_answer(text="x" * 1_000_000)])
    (found,) = read(table.text(), FILE)
    assert len(found.answer) < MOST_CHARACTERS + 50
    assert found.answer.endswith("more characters)")


@pytest.mark.parametrize("line", ["{", "[]", '{"step": 1}', '{"step": 1, "kind": "x", "prompt": "", "answer": ""}'])
def test_a_line_that_is_no_answer_is_refused_in_one_line(line: str) -> None:
    with pytest.raises(UsageError, match=r"samples.jsonl, line 1: ") as caught:
        read(line, FILE)
    assert "\n" not in str(caught.value)


def test_repetition_counts_tokens_that_end_what_stood_before() -> None:
    assert repetition([1, 2, 3, 4, 5]) == 0.0
    assert repetition([1, 1, 1, 1, 1]) == pytest.approx(2 / 3)
    assert repetition([1, 2]) == 0.0


class GroupTrainer:
    """What the probe reads of TRL's trainer."""

    eos_token_ids = (0,)
    model = torch.nn.Linear(1, 1)
    reward_weights = torch.ones(1)
    state = SimpleNamespace(global_step=0)

    def _calculate_rewards(self, inputs: Any, prompts: Any, texts: Any, ids: Any) -> torch.Tensor:
        return torch.tensor([[1.0], [3.0], [2.0], [0.0]])


def test_the_best_and_the_worst_of_a_step_are_kept_and_the_trainer_is_left_as_it_was() -> None:
    trainer, probe, table, row = GroupTrainer(), Answers(), Samples(), {}
    probe.start(SimpleNamespace(trainer=trainer, samples=table, algo="grpo", arguments={"max_steps": 5}))  # type: ignore[arg-type]
    trainer._calculate_rewards([], ["p"] * 4, ["a", "b", "c", "d"], [[5, 5, 5, 5, 0], [6, 0], [7], [0]])
    probe.step_ended(row)
    probe.stop()
    assert [(one.kind, one.answer) for one in read(table.text(), FILE)] == [
        ("worst", "d"), ("worst", "a"), ("best", "b"), ("best", "c"),
    ]  # fmt: skip
    assert row == {"empty_share": 0.25, "repetition": pytest.approx(0.125)}
    assert "_calculate_rewards" not in vars(trainer)


@pytest.fixture
def sampled(recorded: Any) -> Any:
    """A champion and a candidate; in each, a run with samples, the candidate's hostile."""
    ids = []
    for texts in (["a champion says"], [HOSTILE, "\u202e\u05d0" + "y" * 1_000_000]):
        session = recorded.session(runs=2, tags={"canary.model_name": recorded.model})
        run_id = recorded.children(session)[0]
        table = Samples()
        table.add([an_answer(9, text=text) for text in texts])
        table.add([an_answer(9, "best", text=texts[0], reward=1.0, length=2, kl=0.5)])
        recorded.client.log_text(run_id, table.text(), FILE)
        ids.append((session, run_id, recorded.register(session)))
    bless(recorded.client, recorded.model, ids[0][2], "first", actor="somebody")
    return SimpleNamespace(store=recorded, session=ids[1][0], run_id=ids[1][1], version=ids[1][2])


def test_hostile_answers_are_shown_beside_the_champions_and_obeyed_by_nobody(
    sampled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")  # as the command itself does
    words = ["--tracking-uri", sampled.store.uri]
    for name in (sampled.run_id, sampled.session, f"{sampled.store.model}/{sampled.version}"):
        done = CliRunner().invoke(canary, ["samples", name, *words])
        assert done.exit_code == 0, done.output
        assert "a champion says" in done.output
        assert not obeyed(done.output)
        assert len(done.output) < 5000
    done = CliRunner().invoke(canary, ["samples", sampled.run_id, "--json", *words])
    assert not obeyed(done.output)
    assert json.loads(done.output)["answers"][0]["answer"] == HOSTILE


def test_a_run_without_samples_is_refused_in_one_line(sampled: Any) -> None:
    other = sampled.store.children(sampled.session)[-1]
    done = CliRunner().invoke(canary, ["samples", other, "--tracking-uri", sampled.store.uri])
    assert done.exit_code == 2
    assert "no run has samples.jsonl" in done.output
    assert len(done.output.strip().splitlines()) == 1


def test_a_table_that_is_too_large_is_refused_in_one_line(sampled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    other = sampled.store.children(sampled.store.session(runs=1))[0]
    sampled.store.client.log_text(other, "x" * (1 << 20) + "x", FILE)
    done = CliRunner().invoke(canary, ["samples", other, "--tracking-uri", sampled.store.uri])
    assert done.exit_code == 2
    assert done.output.strip().endswith(f"samples.jsonl of run {other} holds more than 1 MiB; expected at most that")
    assert len(done.output.strip().splitlines()) == 1
