"""Signatures of checkpoints and exported models, by OpenSSF's model-signing.

A signature covers every file of the folder by its SHA-256. Keys are on the curves P-256, P-384 or P-521:

    openssl ecparam -name prime256v1 -genkey -noout -out key.pem
    openssl ec -in key.pem -pubout -out pub.pem
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from schemas import SettingsError

SIGNATURE = "model.sig"
_KEYS = "make one by: openssl ecparam -name prime256v1 -genkey -noout -out key.pem; openssl ec -in key.pem -pubout"


class SignatureError(ValueError):
    """A model that is unsigned, altered, or signed with another key."""


class Signer:
    """Signs folders with a private key; raises SettingsError if `key` is not one."""

    def __init__(self, key: str) -> None:
        config = _package().signing.Config()
        try:
            self._config = config.use_elliptic_key_signer(private_key=Path(key))
        except Exception as error:  # of the packages model_signing and cryptography, or the file system
            raise SettingsError(f"sign_key: {key} is not a private key that can sign ({error}); {_KEYS}") from error

    def sign(self, folder: Path) -> None:
        """Write `model.sig`, the signature of every other file in `folder`."""
        self._config.set_hashing_config(_hashing()).sign(folder, folder / SIGNATURE)


class Verifier:
    """Checks folders against a public key; raises SettingsError if `key` is not one."""

    def __init__(self, key: str) -> None:
        self._key, config = key, _package().verifying.Config()
        try:
            self._config = config.use_elliptic_key_verifier(public_key=Path(key))
        except Exception as error:
            raise SettingsError(f"verify_key: {key} is not a public key that can verify ({error}); {_KEYS}") from error

    def check(self, folder: Path) -> None:
        """Raise SignatureError unless the key's owner signed exactly the files in `folder`."""
        if not (folder / SIGNATURE).is_file():
            raise SignatureError(f"{folder} is not signed: it has no {SIGNATURE}; sign it, or leave verify_key out")
        try:
            self._config.set_hashing_config(_hashing()).verify(folder, folder / SIGNATURE)
        except Exception as error:  # of several types
            raise SignatureError(f"{folder} is not what the owner of {self._key} signed: {error}") from error


def _hashing() -> Any:
    return _package().hashing.Config().set_ignored_paths(paths=[SIGNATURE], ignore_git_paths=False)


def _package() -> Any:
    try:
        import model_signing
        import model_signing.hashing
        import model_signing.signing
        import model_signing.verifying
    except ImportError as error:
        raise SettingsError(
            f"signatures need the packages of the extra sign ({error}): pip install model-signing pyOpenSSL"
        ) from error
    return model_signing
