"""The README's job over a server with PostgreSQL and an S3 store, and the files in deploy/ that set one up."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from cluster import database
from object_store import compose, keys_of, object_store
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from recorded import Recorded
from servers import Server
from workplace import ROOT, Workplace

from canary_mlflow.cli import canary
from canary_mlflow.registry.acts.by_hand import bless
from canary_mlflow.tracking.stores.store import prepare_store

MODEL = "dpo-tiny-neox-preferences-smoke"
SHORT = ["train.max_steps=40", "repeats=2"]
# As a cluster's owner sets it: weights go to the store by presigned parts, past the server.
MULTIPART = {"MLFLOW_ENABLE_PROXY_MULTIPART_UPLOAD": "true", "MLFLOW_MULTIPART_UPLOAD_MINIMUM_FILE_SIZE": "10000"}


def options(command: list[str]) -> dict[str, str]:
    return dict(word[2:].split("=", 1) for word in command if word.startswith("--"))


def test_the_compose_file_starts_a_guarded_server_on_its_own_stores() -> None:
    services = compose()
    server = services["server"]
    asked = options(server["command"])
    assert asked["registry-store-uri"] == f"canary+{asked['backend-store-uri']}"
    assert asked["backend-store-uri"].endswith("@database/mlflow")
    assert asked["app-name"] == "canary"
    assert asked["artifacts-destination"] == "s3://mlflow"
    assert "Bucket='mlflow'" in services["bucket"]["command"][-1]
    assert all(one.startswith("127.0.0.1:") for one in server["ports"]), "nobody has to log in there"
    assert server["volumes"] == ["keys:/keys"]
    assert "CANARY_KEYS=/keys" in (ROOT / "deploy" / "Dockerfile").read_text()
    for name, service in services.items():
        assert set(service.get("depends_on", ())) <= set(services), name
    built = services["server-image"]["build"]
    assert (ROOT / "deploy" / built["context"] / built["dockerfile"]).is_file()


def steps_of_the_image() -> list[tuple[str, str]]:
    """The Dockerfile's instructions: (name, the rest)."""
    lines = (ROOT / "deploy" / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    found = [line.partition(" ") for line in lines if line.strip() and not line.startswith("#")]
    return [(name, rest.strip()) for name, _, rest in found]


def test_the_image_installs_what_its_services_start() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    steps = dict(reversed(steps_of_the_image()))  # of several, the first
    base, _, python = steps["FROM"].partition(":")
    assert (base, python.removesuffix("-slim") in SpecifierSet(project["requires-python"])) == ("python", True)
    source, target = steps["COPY"].split()
    assert (ROOT / source / "pyproject.toml").is_file()
    pinned = " ".join(f"-c {target}/{name}" for name in ("requirements.txt", "deploy/constraints.txt"))
    installed = re.fullmatch(rf'pip install --no-cache-dir {pinned} "{target}\[([\w,]+)\]"', steps["RUN"])
    assert installed, steps["RUN"]
    extras = [project["optional-dependencies"][name] for name in installed[1].split(",")]
    names = {Requirement(text).name for text in (*project["dependencies"], *(text for one in extras for text in one))}
    assert {"mlflow", "psycopg", "boto3", "flask-wtf"} <= names, "what the compose file and docs/server.md start"
    assert "torch" not in names
    pins = [(ROOT / name).read_text().splitlines() for name in ("requirements.txt", "deploy/constraints.txt")]
    named = {line.partition("==")[0].lower() for line in (*pins[0], *pins[1]) if "==" in line}
    assert {name.lower() for name in names} <= named, "each has its pin"


def test_the_image_serves_as_nobody_of_note() -> None:
    """Root in a container is root on what it mounts."""
    steps = steps_of_the_image()
    (user,) = (rest for name, rest in steps if name == "USER")
    made = next(rest for name, rest in steps if name == "RUN" and "useradd" in rest)
    assert user != "root"
    assert re.search(rf"useradd --uid \d{{5}} .*{user}\b", made)
    assert f"install -d -o {user} -m 700 /keys" in made
    assert [name for name, _ in steps].index("USER") > max(at for at, (name, _) in enumerate(steps) if name == "RUN")


def test_no_password_is_in_a_command_or_an_address() -> None:
    services = compose()
    whole = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())
    for name, service in services.items():
        told = f"{service.get('command')} {service.get('environment')}"
        assert "PASSWORD}" not in told, name
        for key, place in dict(service.get("environment") or {}).items():
            if key.endswith("_FILE"):
                assert place.removeprefix("/run/secrets/") in service["secrets"], name
            assert "PASSWORD" not in key or key.endswith("_FILE"), name
    assert whole["secrets"] == {
        "database": {"environment": "DATABASE_PASSWORD"}, "s3": {"environment": "S3_PASSWORD"}
    }  # fmt: skip
    assert dict(steps_of_the_image())["ENTRYPOINT"] == '["with_secrets"]'


def with_secrets(**environment: str) -> subprocess.CompletedProcess[str]:
    """The image's entrypoint, around a command that tells what it was given."""
    shown = "import os, sys; print(os.environ.get('PGPASSWORD'), os.environ.get('AWS_SECRET_ACCESS_KEY'), sys.argv[1:])"
    command = [ROOT / "deploy" / "with_secrets.sh", sys.executable, "-c", shown, "a b", "$x"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_the_entrypoint_gives_passwords_from_files(tmp_path: Path) -> None:
    (database := tmp_path / "database").write_text("p#a/s's \"$w ord\n")
    done = with_secrets(PGPASSWORD_FILE=str(database), AWS_SECRET_ACCESS_KEY="given")
    assert (done.returncode, done.stdout.strip()) == (0, "p#a/s's \"$w ord given ['a b', '$x']"), done.stderr
    assert with_secrets().stdout.strip() == "None None ['a b', '$x']"
    missing = with_secrets(PGPASSWORD_FILE=str(tmp_path / "none"))
    assert (missing.returncode, missing.stdout) == (2, "")
    assert missing.stderr == (
        f"with_secrets: {tmp_path}/none: cannot be read; expected the file with PGPASSWORD; see PGPASSWORD_FILE\n"
    )


@pytest.mark.full
@pytest.mark.timeout(1200)
def test_two_sessions_are_recorded_sealed_and_judged_on_postgresql_and_s3(tmp_path: Path) -> None:
    pytest.importorskip("moto")  # of the extra [dev]
    folder = tmp_path / "work"
    folder.mkdir()
    place = Workplace(folder=folder)
    with database("postgresql", tmp_path) as uri, object_store(tmp_path) as where:
        registry = f"canary+{uri}"
        with Server(uri, tmp_path, registry=registry, app="canary", artifacts="s3://mlflow", environment=where) as up:
            who = {"MLFLOW_TRACKING_URI": up.uri, **MULTIPART}  # no key of the store: presigned parts need none
            first = place.train(*SHORT, **who)
            assert first.stdout.startswith("BOOTSTRAP "), first.stdout + first.stderr
            parts = {key: tag for key, tag in keys_of(where).items() if key.endswith(".safetensors")}
            assert parts
            assert all(tag.endswith("-1") for tag in parts.values()), parts
            second = place.train(*SHORT, **who)
            assert second.returncode in (0, 1, 3), second.stdout + second.stderr
            assert not list(folder.glob("mlflow.db*")), "nothing is kept where the job runs"


@pytest.mark.full  # test_prune.py prunes a folder every day
def test_what_lies_in_s3_is_pruned_and_missed_by_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("moto")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    with object_store(tmp_path) as where:
        for key, value in where.items():
            monkeypatch.setenv(key, value)
        client = prepare_store(uri)
        experiment = client.create_experiment("in a bucket", artifact_location="s3://mlflow/place")
        recorded = Recorded(client=client, uri=uri, experiment=experiment, model="m")
        for _ in range(3):
            bless(client, "m", recorded.version(runs=2), "for the test")
        before, first = keys_of(where), client.get_model_version("m", "1").run_id
        done = CliRunner().invoke(canary, ["prune", "--yes", "--keep", "1", "--tracking-uri", uri])
        assert done.exit_code == 0, done.output
        assert before.keys() - keys_of(where).keys() == {f"place/{first}/artifacts/model/model.safetensors"}
        assert keys_of(where).keys() <= before.keys()
        held = CliRunner().invoke(canary, ["audit", "verify", "--tracking-uri", uri])
        assert held.exit_code == 0, held.output
