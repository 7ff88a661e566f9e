"""A seal in a format that other tools read: OpenSSF model signing, version 1.0 of its statement.

An in-toto statement that names every file with its sha256, in a DSSE envelope, in a Sigstore bundle with an elliptic
curve key, as `model_signing sign key` of the package model-signing 1.1 writes it (Apache-2.0,
github.com/sigstore/model-transparency). Its verifiers do not accept ed25519, with which the ledger is signed: hence a
separate P-256 key beside the ledger's.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from canary_mlflow.errors import CannotWrite, StoreError, UsageError, one_line
from canary_mlflow.files.documents import parse_json, read_json
from canary_mlflow.files.source import read_bytes

PAYLOAD = "application/vnd.in-toto+json"
STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://model_signing/signature/v1.0"
BUNDLE = "application/vnd.dev.sigstore.bundle.v0.3+json"
PRIVATE, PUBLIC = "model-signing.pem", "model-signing.pub"  # in the folder of keys
LONGEST = 16 * 2**20  # bytes of a signature's file that are read
_HASHES: Mapping[int, type[hashes.HashAlgorithm]] = {256: hashes.SHA256, 384: hashes.SHA384, 521: hashes.SHA512}


def statement(name: str, files: Mapping[str, str]) -> dict[str, Any]:
    """The in-toto statement. `files`: relative name → sha256 in hex. Its root digest is the sha256 over all of them."""
    ordered = sorted(files.items())
    root = hashlib.sha256(b"".join(bytes.fromhex(found) for _, found in ordered)).hexdigest()
    return {
        "_type": STATEMENT,
        "subject": [{"name": name, "digest": {"sha256": root}}],
        "predicateType": PREDICATE,
        "predicate": {
            "serialization": {"method": "files", "hash_type": "sha256", "allow_symlinks": False},
            "resources": [{"name": file, "algorithm": "sha256", "digest": found} for file, found in ordered],
        },
    }


def bundle(name: str, files: Mapping[str, str], key: ec.EllipticCurvePrivateKey) -> str:
    """The signed statement as the content of the file that verifiers read."""
    payload = json.dumps(statement(name, files), sort_keys=True).encode()
    signature = key.sign(encoded(payload), ec.ECDSA(hash_of(key.public_key())))
    found = {
        "mediaType": BUNDLE,
        "verificationMaterial": {"publicKey": {"hint": hint(key.public_key())}, "tlogEntries": []},
        "dsseEnvelope": {
            "payload": base64.b64encode(payload).decode(),
            "payloadType": PAYLOAD,
            "signatures": [{"sig": base64.b64encode(signature).decode(), "keyid": ""}],
        },
    }
    return json.dumps(found, indent=1) + "\n"


def read_bundle(file: Path, public: Path) -> dict[str, str]:
    """Relative name → sha256, from a signature file that this key must have signed. Raises UsageError."""
    key = load_public(public)
    try:
        envelope = read_json(file, LONGEST)["dsseEnvelope"]
        payload = base64.b64decode(envelope["payload"], validate=True)
        signature = base64.b64decode(envelope["signatures"][0]["sig"], validate=True)
        key.verify(signature, encoded(payload), ec.ECDSA(hash_of(key)))
        return files_in(parse_json(payload))
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}; expected the file of a model's signature") from error
    except InvalidSignature as error:
        raise UsageError(f"{file}: not signed with the key of {public}; expected its signature") from error
    except (ValueError, KeyError, IndexError, TypeError, binascii.Error) as error:
        raise UsageError(f"{file}: no signature of model signing 1.0 ({one_line(error)}); expected one") from error


def files_in(found: Mapping[str, Any]) -> dict[str, str]:
    """The files that a statement names. Raises ValueError, KeyError or TypeError for another kind of statement."""
    predicate = found["predicate"]
    how = predicate["serialization"]
    kind = found["_type"], found["predicateType"], how["method"], how["hash_type"]
    if kind != (STATEMENT, PREDICATE, "files", "sha256"):
        raise ValueError(f"found {kind}; expected {(STATEMENT, PREDICATE, 'files', 'sha256')}")
    files = {str(one["name"]): str(one["digest"]) for one in predicate["resources"]}
    if statement("", files)["subject"][0]["digest"] != found["subject"][0]["digest"]:
        raise ValueError("its files are not those of its root")
    return files


def encoded(payload: bytes) -> bytes:
    """The bytes that DSSE signs: github.com/secure-systems-lab/dsse, protocol.md."""
    return f"DSSEv1 {len(PAYLOAD)} {PAYLOAD} {len(payload)} ".encode() + payload


def hash_of(key: ec.EllipticCurvePublicKey) -> hashes.HashAlgorithm:
    """The hash that goes with the curve. Raises ValueError for a curve that the format does not know."""
    if key.curve.key_size not in _HASHES:
        raise ValueError(f"curve {key.curve.name}; expected P-256, P-384 or P-521")
    return _HASHES[key.curve.key_size]()


def pem(key: ec.EllipticCurvePublicKey) -> bytes:
    """The public key as its file holds it."""
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def hint(key: ec.EllipticCurvePublicKey) -> str:
    """The hint by which a verifier sees that it has the right key."""
    return hashlib.sha256(pem(key)).hexdigest()


def load_public(file: Path) -> ec.EllipticCurvePublicKey:
    """The public key in a file. Raises UsageError for a file without such a key."""
    try:
        key = serialization.load_pem_public_key(read_bytes(file))
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}; expected a public key in PEM") from error
    except ValueError as error:
        raise UsageError(f"{file}: no public key in PEM; expected one that a signature was exported with") from error
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise UsageError(f"{file}: {type(key).__name__}; expected an elliptic curve key")
    return key


def load_signer(folder: Path) -> ec.EllipticCurvePrivateKey:
    """The key that signs exports; the first export makes it. Raises StoreError if others may read it."""
    file = folder / PRIVATE
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not file.exists():
            made = ec.generate_private_key(ec.SECP256R1()).private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
            with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
                stream.write(made)
        if (mode := file.stat().st_mode & 0o777) & 0o077:
            raise StoreError(f"{file}: mode {mode:o} lets others read it; expected 600; chmod 600 {file}")
        key = serialization.load_pem_private_key(read_bytes(file), password=None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise StoreError(f"{file}: {type(key).__name__}; expected an elliptic curve key; take it away")
        (folder / PUBLIC).write_bytes(pem(key.public_key()))
    except OSError as error:
        raise StoreError(f"{error.filename or file}: {error.strerror}; expected a folder for keys") from error
    except (ValueError, TypeError) as error:
        raise StoreError(f"{file}: {one_line(error)}; expected a private key without password") from error
    return key


def export(name: str, files: Mapping[str, str], folder: Path, to: Path) -> Path:
    """Write the signature of these files; returns the file of the public key. Raises CannotWrite, StoreError."""
    key = load_signer(folder)
    try:
        to.write_text(bundle(name, files, key))
    except OSError as error:
        raise CannotWrite(f"{to}: {error.strerror}; expected a place for the signature; name another") from error
    return folder / PUBLIC
