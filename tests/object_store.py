"""An S3 store: moto's server, with the bucket of the compose file in deploy/."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from cluster import free_port
from workplace import ROOT, Workplace


def compose() -> Any:
    return yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())["services"]


@contextmanager
def object_store(folder: Path, python: str = sys.executable) -> Iterator[dict[str, str]]:
    """moto's server, with the bucket that the compose file makes by `python`. Yields what a client of it sets."""
    port = free_port()
    where = {
        "MLFLOW_S3_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "mlflow",
        "AWS_SECRET_ACCESS_KEY": "of-the-tests",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    with (folder / "moto.log").open("w") as log:
        moto = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-p", str(port)], stdout=log, stderr=log, cwd=folder
        )
        try:
            bucket = compose()["bucket"]["command"]
            for _ in range(60):
                made = Workplace(folder=folder).start(*bucket[1:], python=python, **where)
                if made.wait() == 0:
                    break
                time.sleep(1)
            assert made.returncode == 0, made.communicate()
            yield where
        finally:
            moto.kill()
            moto.wait()


def keys_of(where: dict[str, str]) -> dict[str, str]:
    """Object's key → its ETag, which ends in the number of parts where there were any."""
    import boto3

    client = boto3.client(
        "s3",
        endpoint_url=where["MLFLOW_S3_ENDPOINT_URL"],
        aws_access_key_id="mlflow",
        aws_secret_access_key="of-the-tests",
        region_name="us-east-1",
    )
    pages = client.get_paginator("list_objects_v2").paginate(Bucket="mlflow")
    return {one["Key"]: one["ETag"].strip('"') for page in pages for one in page.get("Contents", ())}
