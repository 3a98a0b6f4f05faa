"""Signatures of checkpoints and exported models, by OpenSSF's model-signing.

A signature is of every file of a folder by its SHA-256.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from schemas import SettingsError

SIGNATURE = "model.sig"
_HOW_TO_MAKE_KEYS = (
    "make one by: openssl ecparam -name prime256v1 -genkey -noout -out key.pem; openssl ec -in "
    "key.pem -pubout"
)


class SignatureError(ValueError):
    """A model that is unsigned, altered, or signed with another key."""


def signer_of(key: str) -> Callable[[Path], None]:
    """Return what writes `model.sig`, the signature of every other file in a folder.

    Raises SettingsError if `key` is not a private key.
    """
    package = _package()
    try:
        config = package.signing.Config().use_elliptic_key_signer(private_key=Path(key))
    # Errors of the packages model_signing and cryptography, or of the file system.
    except Exception as error:
        raise SettingsError(
            f"sign_key: {key} is not a private key that can sign ({error}); {_HOW_TO_MAKE_KEYS}"
        ) from error
    return partial(_sign, config)


def _sign(config: Any, folder: Path) -> None:
    config.set_hashing_config(_hashing()).sign(folder, folder / SIGNATURE)


def verifier_of(key: str) -> Callable[[Path], None]:
    """Return what raises SignatureError unless the key's owner signed exactly a folder's files.

    Raises SettingsError if `key` is not a public key.
    """
    package = _package()
    try:
        config = package.verifying.Config().use_elliptic_key_verifier(public_key=Path(key))
    except Exception as error:
        raise SettingsError(
            f"verify_key: {key} is not a public key that can verify ({error}); {_HOW_TO_MAKE_KEYS}"
        ) from error
    return partial(_verify, config, key)


def _verify(config: Any, key: str, folder: Path) -> None:
    signature = folder / SIGNATURE
    if not signature.is_file():
        raise SignatureError(
            f"{folder} is not signed: it has no {SIGNATURE}; sign it, or leave verify_key out"
        )
    try:
        config.set_hashing_config(_hashing()).verify(folder, signature)
    # Errors of several types.
    except Exception as error:
        raise SignatureError(f"{folder} is not what the owner of {key} signed: {error}") from error


def _hashing() -> Any:
    """Return the settings of hashing: all files except the signature, also those of git."""
    config = _package().hashing.Config()
    return config.set_ignored_paths(paths=[SIGNATURE], ignore_git_paths=False)


def _package() -> Any:
    try:
        import model_signing
        import model_signing.hashing
        import model_signing.signing
        import model_signing.verifying
    except ImportError as error:
        raise SettingsError(
            f"signatures need the extra sign ({error}): pip install model-signing pyOpenSSL"
        ) from error
    return model_signing
