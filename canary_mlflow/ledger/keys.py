"""The keys that rows are signed and checked with: ed25519, in a folder of the account that signs.

    signing.pem          the private key in use, mode 0600
    public/<id>.pem      every public key that is trusted, its own and others'

The folder is CANARY_KEYS, else canary-mlflow/keys in XDG_CONFIG_HOME or ~/.config. `docs/guard.md` has the procedures.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from canary_mlflow.errors import StoreError, UsageError, one_line
from canary_mlflow.files.source import read_bytes

FOLDER = "CANARY_KEYS"
PRIVATE = "signing.pem"


@dataclass(frozen=True, kw_only=True)
class Signer:
    """The private key in use."""

    key_id: str
    key: Ed25519PrivateKey

    def sign(self, text: str) -> str:
        """The signature in hex."""
        return self.key.sign(text.encode()).hex()


@dataclass(frozen=True, kw_only=True)
class PublicKeys:
    """Trusted public keys by id."""

    keys: Mapping[str, Ed25519PublicKey]

    def refusal(self, key_id: str, text: str, signature: str) -> str:
        """Why the signature counts for nothing; empty when it holds."""
        key = self.keys.get(key_id)
        if key is None:
            return f"it is signed with key {key_id[:40]!r}, which is not among the trusted ones"
        try:
            key.verify(bytes.fromhex(signature), text.encode("utf-8", "surrogatepass"))
        except (InvalidSignature, ValueError):
            return "its signature is not that of its key"
        # bytes.fromhex also reads blanks and capitals: one signature, one spelling.
        return "" if signature == bytes.fromhex(signature).hex() else "its signature is not spelled as it was written"


def key_folder() -> Path:
    """Where the keys are, or will be."""
    if given := os.environ.get(FOLDER):
        return Path(given).absolute()
    home = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(home) / "canary-mlflow" / "keys"


def key_id_of(key: Ed25519PublicKey) -> str:
    """The first 16 hex digits of the sha256 of the raw public key."""
    raw = key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    return hashlib.sha256(raw).hexdigest()[:16]


def load_signer(folder: Path) -> Signer:
    """The private key in use; the first call on a machine makes one.

    Raises StoreError when others may read it, when it cannot be read, and when it is gone though its public key is
    there: a new one would look like a forger's.
    """
    file = folder / PRIVATE
    try:
        if not file.exists():
            if any(public_files(folder)) and not file.exists():  # another first signer may just have written it
                raise StoreError(
                    f"{file}: gone, while {folder / 'public'} holds public keys; expected the key that signed before; "
                    "put it back, or begin with a new one: canary keys rotate"
                )
            write_private(Ed25519PrivateKey.generate(), folder, replace=False)
        mode = file.stat().st_mode & 0o777
        if mode & 0o077:
            raise StoreError(f"{file}: mode {mode:o} lets others read it; expected 600; chmod 600 {file}")
        key = serialization.load_pem_private_key(read_bytes(file), password=None)
    except OSError as error:
        raise StoreError(
            f"{error.filename or file}: {error.strerror}; expected a folder for keys that this account can use; "
            f"set {FOLDER}"
        ) from error
    except (ValueError, TypeError) as error:
        raise StoreError(f"{file}: {one_line(error)}; expected an ed25519 private key without password") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise StoreError(f"{file}: {type(key).__name__}; expected an ed25519 private key")
    publish(key.public_key(), folder)
    return Signer(key_id=key_id_of(key.public_key()), key=key)


def rotate(folder: Path) -> Signer:
    """A new private key in place of the one in use, whose public half stays trusted."""
    if (folder / PRIVATE).exists():
        load_signer(folder)  # leaves its public key beside the new one's
    write_private(Ed25519PrivateKey.generate(), folder, replace=True)
    return load_signer(folder)


def write_private(key: Ed25519PrivateKey, folder: Path, *, replace: bool) -> None:
    """Whole or not at all; of several processes that make the first key at once, one wins."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    handle, name = tempfile.mkstemp(dir=folder)  # mode 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if replace:
            os.replace(name, folder / PRIVATE)
        else:
            os.link(name, folder / PRIVATE)
    except FileExistsError:
        pass  # another process was faster: its key is the one
    finally:
        Path(name).unlink(missing_ok=True)


def publish(key: Ed25519PublicKey, folder: Path) -> Path:
    """Put a public key among the trusted ones."""
    file = folder / "public" / f"{key_id_of(key)}.pem"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        text = key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as made:
            made.write(text)
        os.chmod(made.name, 0o644)
        os.replace(made.name, file)
    return file


def public_files(folder: Path) -> list[Path]:
    """The files of the trusted public keys."""
    return sorted((folder / "public").glob("*.pem"))


def load_public(files: Iterable[Path]) -> PublicKeys:
    """The keys in these files. Raises UsageError for one that is none."""
    found: dict[str, Ed25519PublicKey] = {}
    for file in files:
        try:
            key = serialization.load_pem_public_key(read_bytes(file))
        except OSError as error:
            raise UsageError(f"{file}: {error.strerror}; expected a public key in PEM") from error
        except ValueError as error:
            raise UsageError(f"{file}: no public key in PEM; expected one that `canary keys` lists") from error
        if not isinstance(key, Ed25519PublicKey):
            raise UsageError(f"{file}: {type(key).__name__}; expected an ed25519 public key")
        found[key_id_of(key)] = key
    return PublicKeys(keys=found)
