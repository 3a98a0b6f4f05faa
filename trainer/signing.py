"""Signatures of checkpoints and exported models, by OpenSSF's model-signing.

A signature is of every file of a folder by its SHA-256.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from schemas import SettingsError

SIGNATURE = "model.sig"


class SignatureError(ValueError):
    """A model that is unsigned, altered, or signed with another key."""


def signer_of(key: str) -> Callable[[Path], None]:
    """Return what writes `model.sig`, the signature of every other file in a folder.

    Raises SettingsError if `key` is not a private key.
    """
    with _reading_key(f"sign_key: {key} is not a private key that can sign"):
        from model_signing import hashing, signing

        all_files = hashing.Config().set_ignored_paths(paths=[SIGNATURE], ignore_git_paths=False)
        signer = signing.Config().use_elliptic_key_signer(private_key=Path(key))
        signer.set_hashing_config(all_files)
    return partial(_sign, signer)


def _sign(signer: Any, folder: Path) -> None:
    signer.sign(folder, folder / SIGNATURE)


def verifier_of(key: str) -> Callable[[Path], None]:
    """Return what raises SignatureError unless the key's owner signed exactly a folder's files.

    Raises SettingsError if `key` is not a public key.
    """
    with _reading_key(f"verify_key: {key} is not a public key that can verify"):
        from model_signing import verifying

        verifier = verifying.Config().use_elliptic_key_verifier(public_key=Path(key))
    return partial(_verify, verifier, key)


def _verify(verifier: Any, key: str, folder: Path) -> None:
    if not (folder / SIGNATURE).is_file():
        raise SignatureError(
            f"{folder} is not signed: it has no {SIGNATURE}; sign it, or leave verify_key out"
        )
    try:
        verifier.verify(folder, folder / SIGNATURE)
    # Errors of several types.
    except Exception as error:
        raise SignatureError(f"{folder} is not what the owner of {key} signed: {error}") from error


@contextmanager
def _reading_key(problem: str) -> Iterator[None]:
    """Raise SettingsError, which begins with `problem`, for any error of the packages."""
    try:
        yield
    except ImportError as error:
        raise SettingsError(
            f"signatures need the extra sign ({error}): pip install model-signing pyOpenSSL"
        ) from error
    # Errors of the packages model_signing and cryptography, or of the file system.
    except Exception as error:
        raise SettingsError(
            f"{problem} ({error}); make one by: openssl ecparam -name prime256v1 -genkey -noout "
            f"-out key.pem; openssl ec -in key.pem -pubout"
        ) from error
