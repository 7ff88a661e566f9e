"""`canary verify-weights`: checks files against the seal of their version."""

from __future__ import annotations

from pathlib import Path

import click

from canary_mlflow.commands.shared import open_store, store_option
from canary_mlflow.errors import UsageError
from canary_mlflow.shown import echo, say

CODES = """\b
Exit codes:
  0  every file is the one that was sealed, and there are no others
  1  a file differs, is missing, or was added
  2  wrong use, or no seal that holds
  4  the files or the registry cannot be read
"""


@click.command("verify-weights", epilog=CODES)
@click.argument("version", required=False)
@click.option("--dir", "folder", type=click.Path(path_type=Path), metavar="DIR", help="The files to check, elsewhere.")
@click.option(
    "--export",
    "to",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write a signature that `model_signing verify key` takes (OpenSSF model signing), if everything is as sealed.",
)
@click.option(
    "--signature",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Check DIR against such a signature, without a registry; with --key.",
)
@click.option("--key", type=click.Path(path_type=Path), metavar="FILE", help="The public key for that signature.")
@store_option
@click.pass_context
def verify_weights(
    ctx: click.Context,
    version: str | None,
    folder: Path | None,
    to: Path | None,
    signature: Path | None,
    key: Path | None,
    tracking_uri: str | None,
) -> None:
    """Check the files of VERSION against its seal.

    The seal lists the files of the version at registration. VERSION is models:/MODEL@champion or models:/MODEL/3.
    Without --dir the files are read from the registry's place.
    """
    from canary_mlflow.analysis import weights
    from canary_mlflow.ledger.keys import key_folder
    from canary_mlflow.registry.guard.model_signing import export, read_bundle

    if (signature is None) == (version is None) or (signature is None) != (key is None):
        raise UsageError(
            "verify-weights: expected VERSION, or --dir with --signature and --key; name what the files are to be"
        )
    if version is None:
        if folder is None or to is not None:
            raise UsageError("verify-weights --signature: expected --dir DIR and no --export; name the folder")
        assert signature is not None
        assert key is not None
        subject, sealed = str(folder), read_bundle(signature, key)
        there = {name: found for name, found in weights.files_in(folder).items() if folder / name != signature}
    else:
        client = open_store(tracking_uri)
        found = weights.named_version(client, version)
        subject, sealed = f"{found.name} version {found.version}", weights.sealed_files(client, found)
        there = weights.files_of(client, found) if folder is None else weights.files_in(folder)
    if different := weights.differing(sealed, there):
        for what in different:
            echo(f"{subject}: {what} since it was sealed")
        ctx.exit(1)
    echo(f"{subject}: {len(sealed)} files, all as sealed")
    if to is not None:
        public = export(str(found.name), sealed, key_folder(), to)
        say(f"model_signing verify key {folder or 'FOLDER'} --signature {to} --public_key {public}")
