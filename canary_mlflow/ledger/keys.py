"""The keys that sign and check rows: ed25519, in a folder of the account that signs.

    signing.pem          the private key in use, mode 0600
    public/<id>.pem      every public key that is trusted, its own and others'
    handed/<id>.json     the handovers that led to a key, to be recorded in ledgers that do not know of them yet

The folder is CANARY_KEYS, else canary-mlflow/keys in XDG_CONFIG_HOME or ~/.config. `docs/guard.md` has the procedures.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from canary_mlflow.errors import StoreError, UsageError, one_line
from canary_mlflow.files.source import read_bytes

FOLDER = "CANARY_KEYS"
PRIVATE = "signing.pem"
STRANGER = "is not among the trusted ones"
HANDOVER = "canary-mlflow key handover "  # so that a signature made for another purpose hands nothing over


@dataclass(frozen=True, kw_only=True)
class Signer:
    """The private key in use."""

    key_id: str
    key: Ed25519PrivateKey

    def sign(self, text: str) -> str:
        """The signature in hex."""
        return self.key.sign(text.encode()).hex()

    @property
    def public(self) -> str:
        """The public half, 32 bytes in hex."""
        return raw_of(self.key.public_key()).hex()


@dataclass(frozen=True, kw_only=True)
class End:
    """A key's end in one ledger: its rows from `row` on do not count. `said_in`: the row that says so."""

    row: int
    said_in: int
    why: str
    own_line: bool  # ended by a later key in its own line

    def __str__(self) -> str:
        return f"ended with row {self.row} ({self.why}, row {self.said_in})"


@dataclass(frozen=True, kw_only=True)
class PublicKeys:
    """Trusted public keys by id, and what one ledger's own rows say about them (`succession.py`).

    `ends`: keys that have ended there. `admitted`: key → the row since which the ledger knows it; None if no row is
    about keys, and every trusted key may sign. `void`: rows about keys that have no effect, and why.
    """

    keys: Mapping[str, Ed25519PublicKey]
    ends: Mapping[str, End] = field(default_factory=dict)
    admitted: Mapping[str, int] | None = None
    void: Mapping[int, str] = field(default_factory=dict)

    def out_of_time(self, key_id: str, seq: int) -> str:
        """Why a trusted key may not have signed this row of the ledger; empty if it may."""
        end = self.ends.get(key_id)
        if end is not None and seq >= end.row:
            return f"it is signed with key {key_id[:40]!r}, which {end}"
        if self.admitted is not None and self.admitted.get(key_id, seq + 1) > seq and seq not in self.void:
            return f"it is signed with key {key_id[:40]!r}, which no row of the ledger has trusted until then"
        return self.void.get(seq, "")

    def refusal(self, key_id: str, text: str, signature: str) -> str:
        """Why the signature does not count; empty if it holds."""
        key = self.keys.get(key_id)
        if key is None:
            return f"it is signed with key {key_id[:40]!r}, which {STRANGER}"
        try:
            key.verify(bytes.fromhex(signature), text.encode("utf-8", "surrogatepass"))
        except (InvalidSignature, ValueError):
            return "its signature is not that of its key"
        # bytes.fromhex also accepts spaces and capitals, but a signature must have one spelling.
        return "" if signature == bytes.fromhex(signature).hex() else "its signature is not spelled as it was written"


def key_folder() -> Path:
    """Where the keys are, or will be."""
    if given := os.environ.get(FOLDER):
        return Path(given).absolute()
    home = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(home) / "canary-mlflow" / "keys"


def raw_of(key: Ed25519PublicKey) -> bytes:
    """A public key's 32 bytes."""
    return key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)


def key_id_of(key: Ed25519PublicKey) -> str:
    """The first 16 hex digits of the sha256 of the raw public key."""
    return hashlib.sha256(raw_of(key)).hexdigest()[:16]


def load_signer(folder: Path) -> Signer:
    """The private key in use; the first call on a machine makes one.

    Raises StoreError if others may read it, if it cannot be read, and if it is gone while its public key is still
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
    """Replace the private key in use by a new one. The old key first hands over to it, and its public half stays
    trusted.

    The handover is kept: it is recorded in each ledger, at once or before the new key's first row there.
    """
    made = Ed25519PrivateKey.generate()
    if (folder / PRIVATE).exists():
        old = load_signer(folder)  # leaves its public key beside the new one's
        new = Signer(key_id=key_id_of(made.public_key()), key=made)
        passed = {"from": old.key_id, "to": new.key_id, "public": new.public}
        passed["signature"] = old.sign(handover_text(old.key_id, new.key_id))
        write_handovers(folder, new.key_id, [*handovers(folder, old.key_id), passed])
    write_private(made, folder, replace=True)
    return load_signer(folder)


def handover_text(old: str, new: str) -> str:
    """The text that the old key signs to hand over."""
    return f"{HANDOVER}{old} {new}"


def handovers(folder: Path, key_id: str) -> list[dict[str, Any]]:
    """The handovers that led to a key, oldest first; empty for a key without a predecessor. Raises StoreError."""
    file = folder / "handed" / f"{key_id}.json"
    try:
        found: list[dict[str, Any]] = json.loads(file.read_text())
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise StoreError(f"{file}: {one_line(error)}; expected what canary keys rotate wrote; put it back") from error
    return found


def write_handovers(folder: Path, key_id: str, found: list[dict[str, Any]]) -> None:
    """Write the handovers of a key, whole or not at all."""
    place = folder / "handed"
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=place, delete=False) as made:
        json.dump(found, made)
    os.replace(made.name, place / f"{key_id}.json")


def write_private(key: Ed25519PrivateKey, folder: Path, *, replace: bool) -> None:
    """Write a private key, whole or not at all; if several processes make the first key at once, one wins."""
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
        pass  # another process was faster: its key counts
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
    """The keys in these files. Raises UsageError for a file without a public key."""
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


def trusted() -> PublicKeys:
    """The keys that this account trusts. Raises UsageError for a file among them without a public key."""
    return load_public(public_files(key_folder()))
