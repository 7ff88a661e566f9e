"""`canary upgrade`: sets of packages read, locked, tried and taken apart. Environments are built with --full alone, and
by benchmarks/real_regressions.py."""

from __future__ import annotations

import json
import os
import random
import shlex
import stat
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from datasets import Dataset
from workplace import Workplace

from canary_mlflow.bisecting.search import Answer, first_bad, smallest
from canary_mlflow.cli import canary
from canary_mlflow.errors import CanaryError, UsageError
from canary_mlflow.gates.model.records import Run, Series
from canary_mlflow.gates.model.verdict import Difference
from canary_mlflow.reports.upgrade import lines
from canary_mlflow.upgrading import environments, pins, uv
from canary_mlflow.upgrading.inside import give
from canary_mlflow.upgrading.judging import Diagnosis, compare
from canary_mlflow.upgrading.outcome import Culprit, Default, PackageSets, Upgrade
from canary_mlflow.upgrading.probing import Probe, Prober, canary_command, last_raised
from canary_mlflow.upgrading.run_comparison import Symptom
from canary_mlflow.upgrading.upgrade import Trial, likeliest, outcome_of

PYLOCK = 'lock-version = "1.0"\n[[packages]]\nname = "trl"\nversion = "1.16.0"\n'
TRACEBACK = """Traceback (most recent call last):
  File "/home/me/train.py", line 3, in <module>
    trainer.train()
  File "/env/lib/python3.11/site-packages/trl/trainer/utils.py", line 1638, in apply
    return kernel.apply()
AttributeError: 'NoneType' object has no attribute 'apply'
"""


@pytest.fixture
def this_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every set of packages is tried with the Python of these tests."""
    monkeypatch.setattr("canary_mlflow.upgrading.probing.build", lambda made: Path(sys.executable))
    monkeypatch.setenv("CANARY_ENVIRONMENTS", str(tmp_path / "none"))


def said(*words: str, code: int) -> Result:
    result = CliRunner().invoke(canary, ["upgrade", *words], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


def test_packages_are_read_from_words_and_from_each_kind_of_lock(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text(
        "trl==1.16.0 \\\n  --hash=sha256:ab\nPyYAML==6.0 ; python_version > '3'\n"
    )
    (tmp_path / "windows.txt").write_bytes(b"\xef\xbb\xbftrl==1.16.0 \\\r\n  --hash=sha256:ab\r\nPyYAML==6.0\r\n")
    (tmp_path / "pylock.toml").write_text(PYLOCK)
    (tmp_path / "uv.lock").write_text(PYLOCK.replace("packages", "package"))
    for name in ("requirements.txt", "windows.txt"):
        assert pins.read([str(tmp_path / name)]) == {"trl": "1.16.0", "pyyaml": "6.0"}
    assert pins.read([str(tmp_path / "pylock.toml")]) == pins.read([str(tmp_path / "uv.lock")]) == {"trl": "1.16.0"}
    assert pins.read(["TRL==1.15.0", "torch==2.13.0+cpu"]) == {"trl": "1.15.0", "torch": "2.13.0+cpu"}
    moves = pins.moved({"torch": "2.13.0", "d": "1", "b": "1"}, {"torch": "2.13.0+cpu", "d": "2", "c": "1"})
    assert list(map(str, moves)) == ["d 1 → 2", "b 1 → absent", "c absent → 1"]  # what moved first


def test_a_pin_is_met_by_the_build_that_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch==2.13.0 where 2.13.0+cpu is: another build brings gigabytes of CUDA along."""
    monkeypatch.setattr(pins, "here", lambda: {"torch": "2.13.0+cpu", "trl": "1.16.0"})
    assert pins.read(["torch==2.13.0", "trl==1.16.0"]) == {"torch": "2.13.0+cpu", "trl": "1.16.0"}
    assert pins.read(["torch==2.12.0"]) == {"torch": "2.12.0"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("trl>=1\n", "found 'trl>=1'; expected each package with ==VERSION"),
        ("# nothing\n", "found no packages in it"),
        ("-r base.txt\ntrl==1.0\n", "found '-r base.txt'; expected all packages in one file"),
        ("trl==1.0\nTRL==1.1\n", "found 'trl==1.0' and another version of it; expected one"),
    ],
)
def test_a_file_without_one_pin_of_each_package_is_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "requirements.txt").write_text(text)
    with pytest.raises(UsageError, match=words):
        pins.read([str(tmp_path / "requirements.txt")])


def test_what_is_for_another_python_or_machine_is_not_asked_for(tmp_path: Path) -> None:
    """As `uv export`, `pip-compile` and uv.lock write for all platforms at once."""
    (tmp_path / "requirements.txt").write_text(
        "trl==1.15.0 ; python_version < '3.9'\ntrl==1.14.2 ; python_version >= '3.9' --hash=sha256:ab\n"
        "pywin32==306 ; sys_platform == 'win32'\nold>=1 ; python_version < '3'\n"
    )
    assert pins.read([str(tmp_path / "requirements.txt")]) == {"trl": "1.14.2"}
    marked = '[[packages]]\nname = "pywin32"\nversion = "306"\nmarker = "sys_platform == \'win32\'"\n'
    (tmp_path / "pylock.toml").write_text(PYLOCK + marked)
    assert pins.read([str(tmp_path / "pylock.toml")]) == {"trl": "1.16.0"}
    forked = '[[package]]\nname = "numpy"\nversion = "{}"\nresolution-markers = ["python_full_version {} \'3.9\'"]\n'
    own = '[[package]]\nname = "mine"\nversion = "0.1"\nsource = {{ editable = "." }}\n'.format()
    (tmp_path / "uv.lock").write_text(forked.format("2", ">=") + forked.format("1", "<") + own)
    assert pins.read([str(tmp_path / "uv.lock")]) == {"numpy": "2"}


def test_two_versions_of_one_package_are_refused() -> None:
    assert "trl: found ==1.15.0 and ==1.14.2" in said("--to", "trl==1.15.0", "--to", "TRL==1.14.2", code=2).stderr


def test_a_project_of_ones_own_stays_what_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`pip install -e .` is at hand for most scripts, and no index has it."""
    place = tmp_path / "site" / "mine-0.1.dist-info"
    place.mkdir(parents=True)
    (place / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 0.1\n")
    (place / "direct_url.json").write_text('{"url": "file:///src/mine", "dir_info": {"editable": true}}')
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    own = {"mine": pins.here()["mine"]}
    assert own == {"mine": "file:///src/mine"}
    assert pins.lock({}, own, own) == pins.lock(own, own, {}) == own
    monkeypatch.setattr(environments, "uv", lambda *words: words[0] == "venv" and Path(words[2]).mkdir())
    monkeypatch.setenv("CANARY_ENVIRONMENTS", str(tmp_path))
    built = environments.build({**own, "trl": "1.0"}).parents[1]
    assert (built / "canary-packages.txt").read_text() == "-e file:///src/mine\ntrl==1.0\n"


def test_wrong_use_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "expected --to PKG==VERSION or --to FILE" in said(code=2).stderr
    assert "found neither a package with ==VERSION nor a file" in said("--to", "trl", code=2).stderr
    for file in ("missing.txt", str(tmp_path / "lock")):
        assert f"{file}: no such file; expected requirements.txt" in said("--to", file, code=2).stderr
    assert f"{tmp_path}: not a file" in said("--to", str(tmp_path), code=2).stderr
    assert "found --command and 'algo=sft'" in said("--to", "trl==1.0", "--command", "true", "algo=sft", code=2).stderr
    for command, words in (("", "expected a command"), ("python 'x", "No closing quotation"), ("nope x", "no program"),
                           ("python nope.py", "nope.py is no file")):  # fmt: skip
        assert words in said("--to", "trl==1.0", "--command", command, code=2).stderr
    assert "no program 'nope'" not in said("--to", "trl==1.0", "--from", "no.txt", "--command", "nope x", code=2).stderr
    monkeypatch.setattr(uv.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    alone = said("--to", "trl==1.0", code=4).stderr
    assert "no uv here" in alone
    assert alone.count("\n") == 1


@pytest.mark.parametrize(
    ("stderr", "words", "code"),
    [
        ("nope was not found in the package registry", "nope: no such package in the index", 2),
        ("there is no version of nope==9", "nope==9: no such version in the index", 2),
        (
            "No solution found when resolving dependencies:\n a needs b",
            "--from: these packages contradict each other: a needs b; expected packages that can be installed together",
            2,
        ),
        ("error sending request for url", "the package index does not answer", 4),
        ("No solution found: nope was not found in the cache", "uv is offline (UV_OFFLINE)", 4),
        (
            "error: no environment\n  cause: cannot write: No space left on\n    device (os error 28)",
            "the disk is full",
            4,
        ),
    ],
)
def test_what_uv_cannot_do_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stderr: str, words: str, code: int
) -> None:
    program = tmp_path / "uv"
    program.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{stderr}\nEND\nexit 2\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(uv.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")
    (tmp_path / "at_hand.txt").write_text("nope==9\n" if "such" in words else "nope==8\n")  # it is locked too
    words_of = said("--to", "nope==9", "--from", str(tmp_path / "at_hand.txt"), "--dry-run", code=code).stderr
    assert words in words_of
    assert words_of.count("\n") == 1


def test_a_traceback_ends_in_its_place() -> None:
    kind, text = last_raised(TRACEBACK, 1)
    assert (kind, text) == (
        "AttributeError",
        "AttributeError at trl/trainer/utils.py:1638 in apply: 'NoneType' object has no attribute 'apply'",
    )
    assert last_raised("killed", 137) == ("exit", "exit code 137: killed")
    canary_says = (
        "canary: AttributeError at trl/trainer/utils.py:1638 in apply ended the run of seed 0; making it again\n"
    )
    assert last_raised(f"step 0/5\n{canary_says}step 0/5", 3) == (
        "AttributeError", "AttributeError at trl/trainer/utils.py:1638 in apply",
    )  # fmt: skip


def test_the_canary_that_trains_without_a_command_ends_well(workplace: Workplace) -> None:
    """What an upgrade compares with must not fail by itself: a verdict of its first session is no reason."""
    python, safe_path, *words = shlex.split(canary_command(("algo=sft", "tier.variants=[]")))
    assert safe_path == "-P"  # which a fork does not need
    ended = workplace.run(*words)
    assert (python, ended.returncode) == ("python", 0), ended.stderr


def probe(ended: str = "", kind: str = "") -> Probe:
    return Probe(key="k", folder="/nowhere", seconds=1.0, code=bool(ended), ended=ended, kind=kind)


def test_a_crash_of_the_candidate_blocks_and_one_of_both_says_nothing() -> None:
    found = compare([probe()], [probe("AttributeError at trl/a.py:1 in b", "AttributeError")])
    assert (found.blocks, outcome_of(found), found.symptoms[0].key) == (True, "BLOCK", "crash:AttributeError")
    alike = compare([probe("no", "X")], [probe("no", "X")])
    assert (alike.blocks, outcome_of(alike)) == (False, "INCONCLUSIVE")
    assert "recorded no run; expected CanaryCallback" in compare([probe()], [probe()]).open


def test_equal_facts_pass_and_a_flipped_default_is_listed() -> None:
    assert outcome_of(Diagnosis(symptoms=(), differences=())) == "PASS"
    assert outcome_of(Diagnosis(symptoms=(), differences=(), besides=("entropy 5 → 6",))) == "INCONCLUSIVE"
    other = Difference(key="arguments.bf16", baseline="absent", candidate="True", group="facts")
    found = Diagnosis(symptoms=(), differences=(other,))
    assert (outcome_of(found), found.flipped) == ("INCONCLUSIVE", (other,))


def test_another_end_of_text_is_told_before_a_flipped_default() -> None:
    found = [
        Difference(key=key, baseline="0", candidate="1", group="facts") for key in ("arguments.a", "tokenizer.pad")
    ]
    finding = Diagnosis(symptoms=(), differences=tuple(found))
    flipped = (Default(key="arguments.a", before="0", now="1"),)
    moves = (pins.Change("transformers", "4", "5"),)
    told = lines(Upgrade(outcome="INCONCLUSIVE", changes=moves, finding=finding, defaults=flipped))
    assert next(told) == "INCONCLUSIVE  transformers 4 → 5: tokenizer.pad 0 → 1"


def test_the_package_of_the_traceback_is_looked_at_first() -> None:
    changes = [pins.Change(name, "1", "2") for name in ("abc", "transformers", "trl", "peft")]
    crash = Diagnosis(symptoms=(Symptom(key="crash:E", said="E at peft/a.py:1 in b"),), differences=())
    assert likeliest(crash, changes)[0].name == "peft"
    tokens = Diagnosis(symptoms=(Symptom(key="first.tokens", said="tokens"),), differences=())
    assert [one.name for one in likeliest(tokens, changes)] == ["trl", "transformers", "peft", "abc"]


@pytest.mark.parametrize("seed", range(40))
def test_the_smallest_set_is_found_whatever_it_is(seed: int) -> None:
    draw = random.Random(seed)
    items = list(range(draw.randint(1, 12)))
    guilty = set(draw.sample(items, k=min(len(items), draw.choice([1, 1, 2]))))
    blind = set() if seed % 2 else {frozenset(draw.sample(items, k=len(items) // 2))} - {frozenset(guilty)}
    tried: list[frozenset[int]] = []

    def test(some: Sequence[int]) -> Answer:
        tried.append(frozenset(some))
        if frozenset(some) in blind:
            return Answer.UNTESTABLE
        return Answer.BAD if guilty <= set(some) else Answer.GOOD

    found = set(smallest(items, test))
    assert guilty <= found
    if not blind:
        assert found == guilty
    assert len(tried) <= 80


@pytest.mark.parametrize("seed", range(20))
def test_the_first_bad_release_is_found_and_those_between_are_named(seed: int) -> None:
    draw = random.Random(seed)
    count = draw.randint(1, 20)
    bad = draw.randrange(count)
    lost = set(draw.sample(range(count - 1), k=draw.randint(0, (count - 1) // 2)))

    def test(at: int) -> Answer:
        return Answer.UNTESTABLE if at in lost else Answer.BAD if at >= bad else Answer.GOOD

    found, skipped = first_bad(list(range(count)), test)
    assert found == min(at for at in range(bad, count) if at not in lost)
    assert set(skipped) <= lost


def test_an_old_default_is_set_back_where_all_configurations_meet() -> None:
    @dataclass
    class Arguments:
        output_dir: str
        bf16: bool | None = None

    @dataclass
    class Own(Arguments):
        rate: float = 2e-5

        def __post_init__(self) -> None:
            self.bf16 = True if self.bf16 is None else self.bf16

    give(Arguments, {"bf16": False, "rate": 5e-5, "output_dir": "nope", "nope": 1})
    assert Own("out") == Own("out", bf16=None, rate=2e-5) == Own("out", bf16=False, rate=5e-5)
    assert Own("out", True, rate=1e-3) == Own(output_dir="out", bf16=True, rate=1e-3)
    assert (Own("out").bf16, Own("out").rate) == (False, 5e-5)
    assert (Own("out", rate=1e-3).rate, Own("out", True).bf16) == (1e-3, True)
    assert Arguments("out").bf16 is False


def test_what_is_at_hand_already_is_not_tried() -> None:
    same = {"trl": "1.0"}
    found = Trial(
        plan=PackageSets(before=same, now=same), prober=Prober(command="", work=Path()), say=print
    ).carry_out()
    assert (found.outcome, found.probes) == ("PASS", ())
    assert "nothing was tried" in "\n".join(lines(found))


@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
def test_an_installed_version_leaves_nothing_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dry: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CANARY_ENVIRONMENTS", str(tmp_path / "none"))
    found = said("--to", f"trl=={pins.here()['trl']}", *dry, "--json", code=0)
    assert "Nothing to do: these packages are at hand already" in found.stderr
    assert "minutes" not in found.stderr
    made = json.loads(found.stdout)
    assert (made["environments"], made["minutes"]) == (0, 0) if dry else made["environments"]["built"] == 0
    assert list(tmp_path.iterdir()) == []


def test_a_release_that_the_baseline_has_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest release is looked at for one that goes back, too."""
    monkeypatch.setattr("canary_mlflow.upgrading.upgrade.lock", lambda exact, names, preferred: {**preferred, **exact})
    monkeypatch.setattr("canary_mlflow.upgrading.upgrade.known_releases", lambda package: ["2", "1"])

    found = trial({"trl": "2"}, {"trl": "1"}, lambda made, _: trained(1.0 if made["trl"] == "2" else 4.0)).carry_out()
    assert [one["what"] for one in found.probes] == [
        "the packages at hand", "the packages asked for", "the packages at hand once more",
        "the packages asked for once more",
    ]  # fmt: skip
    told = "\n".join(lines(found))
    first = "BLOCK  trl 2 → 1: first loss 1 → 4 (4 times) in seed 0"
    assert told.splitlines()[:2] == [first, "  To do: keep trl==2."]
    assert "trl 2 → 1 explains it; 2 is fine." in told
    assert "4 trainings, 4.0 minutes; 1 environment built in 2.0 minutes, 3 reused." in told


def test_a_failure_of_the_present_packages_is_not_kept(tmp_path: Path, this_environment: None) -> None:
    script = tmp_path / "train.py"
    script.write_text("import sys; sys.exit('no data here')")
    prober = Prober(command=f"python {script}", work=tmp_path / "work")
    plan = PackageSets(before={"trl": "1"}, now={"trl": "2"})
    for _ in range(2):
        found = Trial(plan=plan, prober=prober, say=print).carry_out()
        assert (found.outcome, len(found.probes), prober.known(plan.before)) == ("INCONCLUSIVE", 1, None)
        assert "no data here" in found.finding.open
    script.write_text("raise OSError(28, 'No space left on device')")
    with pytest.raises(CanaryError, match="found no room"):
        Trial(plan=plan, prober=Prober(command=f"python {script}", work=tmp_path / "work"), say=print).carry_out()


def test_a_canary_that_refuses_what_it_was_given_is_wrong_use(tmp_path: Path, this_environment: None) -> None:
    prober = Prober(command=canary_command(("algo=nope",)), work=tmp_path / "work")
    plan = PackageSets(before={"trl": "1"}, now={"trl": "2"})
    with pytest.raises(UsageError, match=r"^unknown algo 'nope'; expected one of dpo"):
        Trial(plan=plan, prober=prober, say=print).carry_out()


def test_what_an_interrupted_attempt_left_running_does_not_count(tmp_path: Path, this_environment: None) -> None:
    script, places = tmp_path / "train.py", tmp_path / "places"
    script.write_text(f"import os; print(os.environ['CANARY_RECORDING'], file=open({str(places)!r}, 'a'))")
    prober = Prober(command=f"python -S {script}", work=tmp_path / "work")
    prober.try_({"trl": "1"})
    prober.forget({"trl": "1"})
    second = prober.try_({"trl": "1"})
    before, now = map(Path, places.read_text().split())
    assert before != now
    assert now.parent == Path(second.folder)
    assert not before.parent.exists()


def test_no_set_finds_what_an_earlier_one_left_in_a_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, this_environment: None
) -> None:
    """A canary makes its model once per release of transformers: made for one side before, only the other saves it."""
    monkeypatch.setenv("CANARY_CACHE", str(tmp_path / "warm"))
    script = tmp_path / "train.py"
    script.write_text(f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from canary_mlflow.tracking.stores.places import cache_dir
print(cache_dir(), cache_dir().exists(), file=open({str(tmp_path / "caches")!r}, "a"))
cache_dir().mkdir()
""")
    prober = Prober(command=f"python -S {script}", work=tmp_path / "work")
    for version in "12":
        prober.try_({"trl": version})
    first, one, second, other = (tmp_path / "caches").read_text().split()
    assert (one, other) == ("False", "False")
    assert first != second


def test_a_launcher_is_the_one_of_the_environment_and_need_not_be_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchrun lies beside Python, and whoever calls canary by its path has no environment activated."""
    monkeypatch.setenv("CANARY_ENVIRONMENTS", str(tmp_path / "none"))
    monkeypatch.setenv("PATH", f"/usr/bin{os.pathsep}/bin")
    found = said("--to", f"trl=={pins.here()['trl']}", "--command", "torchrun train.py", "--dry-run", code=0)
    assert "Nothing to do" in found.stdout
    places = tmp_path / "here", tmp_path / "there"
    for place in places:
        place.mkdir()
        (place / "torchrun").write_text(f"#!/bin/sh\necho {place.name} >> {tmp_path}/ran\n")
        (place / "torchrun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{places[0]}{os.pathsep}/usr/bin{os.pathsep}/bin")
    monkeypatch.setattr("canary_mlflow.upgrading.probing.build", lambda made: places[1] / "python")
    Prober(command="torchrun train.py", work=tmp_path / "work").try_({"trl": "1"})
    assert (tmp_path / "ran").read_text() == "there\n"


MAPPED = """
import json, os
from datasets import Dataset, load_dataset, load_from_disk
from prep import encode, rows
table = load_dataset("json", data_files="rows.jsonl", split="train")
prepared = table.cache_files[0]["filename"]
table.map(encode, fn_kwargs={"of": "prepared"})
load_from_disk("saved").map(encode, fn_kwargs={"of": "saved"})
Dataset.from_generator(rows)
print(os.path.realpath(prepared), file=open("prepared", "a"))
"""


def test_no_set_trains_on_what_another_made_of_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, this_environment: None
) -> None:
    """Datasets names what map and generators make by the code of the function, not of the modules that it calls. What
    is prepared of the data alone is shared: without a network there is no other."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HF_DATASETS_CACHE", raising=False)
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text('{"text": "k1"}\n')
    Path("prep.py").write_text("""
def called(of):
    with open("called", "a") as file:
        print(of, file=file)
def encode(row, of):
    called(of)
    return {"input_ids": [1]}
def rows():
    called("generated")
    yield {"input_ids": [1]}
""")
    Path("train.py").write_text(MAPPED)
    Dataset.from_list([{"text": "k1"}]).save_to_disk("saved")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    subprocess.run([sys.executable, "train.py"], env=environment, check=True)  # the training of every day
    prober = Prober(command="python train.py", work=tmp_path / "work")
    probes = [prober.try_({"trl": version}) for version in "12"]
    assert [one.ended for one in probes] == ["", ""]
    assert Counter(Path("called").read_text().split()) == dict.fromkeys(("prepared", "saved", "generated"), 3)
    assert len({*Path("prepared").read_text().split()}) == 1
    assert not [*Path("work").glob("**/datasets")]
    left = {path.name for path in (tmp_path / "saved").glob("cache-*")}
    assert len(left) == 1  # of every day


def test_a_dry_run_builds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY_ENVIRONMENTS", str(tmp_path / "none"))
    monkeypatch.setattr(pins, "uv", lambda *words: "")  # what is preferred stays in its file: it is the answer
    (tmp_path / "at_hand.txt").write_text("trl==1.14.2\ntqdm==4.70.1\n")
    found = said("--to", "trl==1.15.0", "--from", str(tmp_path / "at_hand.txt"), "--dry-run", "--json", code=0)
    plan = json.loads(found.stdout)
    assert (plan["environments"], plan["there"]) == (2, 0)
    assert plan["changes"] == [{"name": "trl", "before": "1.14.2", "now": "1.15.0"}]
    assert "1 package would move" in found.stderr
    assert not (tmp_path / "none").exists()


def test_a_file_that_lists_only_what_a_project_asks_for_is_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the environment of the present packages would lack what they need, and all of that would seem to move."""

    def resolved(*words: str) -> str:
        found = Path(words[words.index("--output-file") + 1])
        found.write_text(f"{Path(words[2]).read_text()}tqdm==4.70.1\n")
        return ""

    monkeypatch.setattr(pins, "uv", resolved)
    (tmp_path / "requirements.txt").write_text("trl==1.14.2\n")
    found = said("--to", "trl==1.15.0", "--from", str(tmp_path / "requirements.txt"), "--dry-run", "--json", code=0)
    assert json.loads(found.stdout)["changes"] == [{"name": "trl", "before": "1.14.2", "now": "1.15.0"}]


def trained(loss: float, **facts: str) -> Probe:
    """A probe whose one run began with this loss."""
    found = probe()
    series = {"loss": Series(name="loss", steps=np.array([1]), values=np.array([loss]))}
    told = {"training.precision": "fp32", **{key.replace("_", ".", 1): value for key, value in facts.items()}}
    found.__dict__["runs"] = (Run(run_id=f"{loss}", seed=0, series=series, facts=told),)
    return found


def trial(before: pins.Pins, now: pins.Pins, answer: Callable[[pins.Pins, int], Probe]) -> Trial:
    """One whose sets of packages answer at once, by the number of the repetition too."""

    class Answered(Trial):
        def probe(self, pins: pins.Pins, what: str, prober: object = None, repeat: int = 0) -> Probe:
            self.tried.append({"what": what, "key": what, "seconds": 60.0, "known": False,
                               "built": pins == before and not repeat, "building": 30.0})  # fmt: skip
            return answer(pins, repeat)

    return Answered(plan=PackageSets(before=before, now=now), prober=Prober(command="", work=Path()), say=print)


def test_what_the_packages_at_hand_do_not_repeat_themselves_tells_nothing() -> None:
    before, now = trained(1.0, parameters_trainable="9"), trained(3.0, parameters_trainable="9")
    assert [one.key for one in compare([before], [now]).symptoms] == ["first.loss.1"]
    assert compare([before, trained(1.0)], [now]).blocks
    assert not compare([before, trained(2.0)], [now]).blocks  # a script without a seed
    fewer = trained(3.0, parameters_trainable="8")
    assert [one.key for one in compare([before, trained(2.0)], [fewer]).symptoms] == ["parameters.trainable"]


@pytest.mark.parametrize(
    ("guilty", "told"),
    [
        ({"bf16"}, {"bf16": True, "optim": False, "rate": False, "new": None}),
        ({"bf16", "rate"}, {"bf16": True, "optim": False, "rate": True, "new": None}),
        ({"elsewhere"}, {"bf16": False, "optim": False, "rate": False, "new": None}),
        (None, {"bf16": None, "optim": None, "rate": None, "new": None}),
    ],
)
def test_the_fewest_defaults_that_explain_are_named(guilty: set[str] | None, told: dict[str, bool | None]) -> None:
    class Answered(Trial):
        def set_back(self, some: Sequence[Default], finding: Diagnosis) -> Answer:
            if guilty is None:
                return Answer.UNTESTABLE
            return Answer.BAD if guilty <= {one.name for one in some} else Answer.GOOD

    flipped = (("bf16", "false"), ("optim", "adamw"), ("rate", "5e-05"), ("new", "absent"))
    differences = tuple(Difference(key=f"arguments.{name}", baseline=old, candidate="other", group="facts")
                        for name, old in flipped)  # fmt: skip
    trial = Answered(plan=PackageSets(before={}, now={}), prober=Prober(command="", work=Path()), say=print)
    found = trial.defaults(Diagnosis(symptoms=(), differences=differences))
    assert {one.name: one.explains for one in found} == told
    named = "\n".join(lines(Upgrade(outcome="BLOCK", changes=(), finding=Diagnosis(symptoms=(), differences=()),
                                    defaults=found)))  # fmt: skip
    assert ("set bf16=false" in named) is (guilty is not None and "bf16" in guilty)


def test_a_package_that_comes_anew_is_to_be_left_out_and_one_that_goes_is_to_be_kept() -> None:
    came, went = pins.Change("vllm", "", "0.9"), pins.Change("peft", "0.18.0", "")

    def to_do(*packages: pins.Change) -> str:
        worse = Diagnosis(symptoms=(Symptom(key="first.loss.1", said="first loss 1 → 4"),), differences=())
        found = Upgrade(outcome="BLOCK", changes=packages, finding=worse, culprit=Culprit(packages=packages))
        return list(lines(found))[1]

    assert to_do(came) == "  To do: leave out vllm."
    assert to_do(went, came) == "  To do: keep peft==0.18.0 and leave out vllm."


def test_what_an_upgrade_makes_worse_without_another_loss_blocks() -> None:
    def blocked(before: dict[str, str], now: dict[str, str]) -> list[str]:
        return [one.key for one in compare([trained(1.0, **before)], [trained(1.0, **now)]).symptoms]

    assert blocked({"first_grad_norm.1": "1.5549"}, {"first_grad_norm.1": "0.3887"}) == ["first.grad_norm.1"]
    assert blocked({"first_grad_norm.1": "1.5549"}, {"first_grad_norm.1": "1.5601"}) == []
    assert blocked({"training_precision": "fp32"}, {"training_precision": "bf16"}) == ["training.precision"]
    assert blocked({"training_precision": "bf16"}, {"training_precision": "fp32"}) == []
    coarse, mixed, fine = (
        {"training_precision": "bf16", "parameters_dtype": types}
        for types in ("8 of bfloat16", "2 of bfloat16, 6 of float32", "8 of float32")
    )
    assert blocked(fine, coarse) == blocked(fine, mixed) == ["parameters.dtype"]
    assert blocked(coarse, fine) == blocked(coarse, coarse) == []
    sent, alone = ({"arguments_report_to": names} for names in ('["mlflow", "wandb"]', '["mlflow"]'))
    assert blocked(sent, alone) == ["reported:wandb"]
    assert blocked(alone, sent) == []


def test_other_groups_of_the_optimizer_block_however_they_are_implemented() -> None:
    def compared(now: str) -> Diagnosis:
        before = {"training_groups": '[{"tensors": 4, "weight_decay": 0.1}]'}
        return compare([trained(1.0, **before)], [trained(1.0, training_groups=now)])

    def blocked(now: str) -> list[str]:
        return [one.key for one in compared(now).symptoms]

    def told(now: str) -> str:
        return compared(now).symptoms[0].said

    assert blocked('[{"tensors": 3, "weight_decay": 0.1}, {"tensors": 1, "weight_decay": 0.0}]') == ["training.groups"]
    assert blocked('[{"tensors": 4, "weight_decay": 0.2}]') == ["training.groups"]
    assert told('[{"tensors": 4, "weight_decay": 0.2}]') == "the optimizer's groups weight_decay 0.1 → 0.2"
    assert blocked('[{"fused": true, "new": 1, "tensors": 4, "weight_decay": 0.1}]') == []
    assert blocked('[{"tensors": 3, "weig… 0123') == []


def test_what_seems_to_cost_more_is_repeated_until_that_is_known() -> None:
    """Every repetition of a side costs 2.5 % more than the one before."""

    def upgraded(dear: float) -> tuple[list[str], int]:
        def timed(made: pins.Pins, repeat: int) -> Probe:
            found = trained(1.0)
            steps = np.full(5, (10.0 if made["trl"] == "1" else dear) * (1 + 0.025 * repeat))
            (run,) = found.runs
            cost = Series(name="step_cost", steps=np.arange(5), values=steps)
            found.__dict__["runs"] = (replace(run, series={**run.series, "step_cost": cost}),)
            return found

        found = trial({"trl": "1"}, {"trl": "2"}, timed).carry_out(bisect=False)
        return [one.key for one in found.finding.symptoms], len(found.probes)

    assert upgraded(13.0) == (["cost.step"], 6)
    assert upgraded(11.2) == upgraded(11.9) == ([], 6)  # the second by every repetition, but by less than a fifth
    assert upgraded(10.5) == ([], 2)


def test_what_one_of_two_culprits_does_not_show_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """`trl explains it` alone would leave peft in the upgrade."""
    monkeypatch.setattr("canary_mlflow.upgrading.upgrade.lock", lambda exact, names, preferred: {**preferred, **exact})
    monkeypatch.setattr("canary_mlflow.upgrading.upgrade.known_releases", lambda package: ["2", "1"])

    def two(made: pins.Pins, repeat: int) -> Probe:
        return trained(4.0 if made["trl"] == "2" else 1.0, parameters_trainable="8" if made["peft"] == "2" else "9")

    def told(peft: str) -> list[str]:
        before, now = {"trl": "1", "peft": "1", "tqdm": "1"}, {"trl": "2", "peft": peft, "tqdm": "2"}
        culprit = trial(before, now, two).carry_out().culprit
        assert culprit is not None
        return [str(one) for one in culprit.packages] + [*culprit.unexplained]

    assert told("2") == ["peft 1 → 2", "first loss 1 → 4 (4 times) in seed 0"]
    assert told("1") == ["trl 1 → 2"]


@pytest.mark.parametrize("other", ["loss", "crash"])
def test_what_a_training_shows_now_and_then_is_laid_on_no_package(other: str) -> None:
    odd = trained(4.0) if other == "loss" else probe("OSError at a.py:1 in b: busy", "OSError")
    found = trial(
        {"tqdm": "1"}, {"tqdm": "2"}, lambda made, repeat: odd if made["tqdm"] == "2" and not repeat else trained(1.0)
    ).carry_out()
    assert (found.outcome, found.culprit) == ("INCONCLUSIVE", None)
    assert "what blocks came once in two trainings with the same packages" in "\n".join(lines(found))


def test_another_course_after_the_same_first_step_blocks_and_grown_rounding_does_not() -> None:
    def blocked(now: float) -> list[str]:
        before, after = ({"first_loss.2": repr(value)} for value in (2.0, now))
        return [one.key for one in compare([trained(1.0, **before)], [trained(1.0, **after)]).symptoms]

    assert blocked(2.002) == ["first.loss.2"]
    assert blocked(2.0001) == []


def test_each_training_of_a_script_is_compared_with_its_own() -> None:
    """Two trainings with one seed differ from each other, which once left both out as not reproducible."""

    def twice(second: float) -> Probe:
        both, other = trained(1.0), trained(second)
        both.__dict__["runs"] = (*both.runs, *other.runs)
        return both

    assert [one.key for one in compare([twice(2.0)], [twice(3.0)]).symptoms] == ["first.loss.1"]
    assert compare([twice(2.0), twice(2.0)], [twice(2.0)]).symptoms == ()


def test_a_step_that_asks_for_much_more_blocks_and_for_a_little_more_is_said() -> None:
    counted = {"work_status": "counted", "work_fixture": "f", "work_sequence": "s", "work_shapes": "a",
               "work_flops": "100", "work_tensors": "100", "work_allocated": "100", "work_traffic": "100"}  # fmt: skip
    more = {**counted, "work_shapes": "b", "work_sequence": "t"}
    before = trained(1.0, **counted)
    over = compare([before], [trained(1.0, **{**more, "work_allocated": "473"})])
    assert [(one.key, one.said) for one in over.symptoms] == [
        ("work.allocated", "work of a step: allocated +373.0 %, limit +20 %")
    ]
    little = compare([before], [trained(1.0, **{**more, "work_flops": "105"})])
    assert (little.symptoms, outcome_of(little), little.work) == ((), "INCONCLUSIVE", ("flops +5.0 %",))
    assert outcome_of(compare([before], [trained(1.0, **counted)])) == "PASS"


def test_a_package_moves_with_what_it_needs_and_never_with_a_likelier_culprit(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers 5 needs hub 1, and hub 1 needs transformers 5."""

    def locked(exact: pins.Pins, names: object, preferred: pins.Pins) -> dict[str, str]:
        found = {"transformers": "4", "hub": "0", "tqdm": "1", **exact}
        if (found["transformers"] == "5") is (found["hub"] == "1"):
            return found
        if exact.keys() >= {"transformers", "hub"}:
            raise pins.Unresolvable("these packages contradict each other")
        return {**found, "transformers": "5", "hub": "1"}

    monkeypatch.setattr("canary_mlflow.upgrading.upgrade.lock", locked)
    before, now = {"transformers": "4", "hub": "0", "tqdm": "1"}, {"transformers": "5", "hub": "1", "tqdm": "2"}
    trial = Trial(plan=PackageSets(before=before, now=now), prober=Prober(command="", work=Path()), say=print,
                  order=["transformers", "hub", "tqdm"])  # fmt: skip
    moves = {one.name: one for one in trial.plan.changes}
    alone = trial.set_of([moves["transformers"]])
    assert alone == {"transformers": "5", "hub": "1", "tqdm": "1"}
    assert [str(one) for one in trial.needed({"transformers"}, alone)] == ["hub 0 → 1"]
    with pytest.raises(pins.Unresolvable):
        trial.set_of([moves["hub"]])
