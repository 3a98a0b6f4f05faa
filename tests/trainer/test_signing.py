"""--sign_key and --verify_key: a model is taken as its owner signed it, or not at all."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from schemas import SettingsError
from tests.trainer.conftest import Capture, small_config
from trainer import evaluate, export, sample
from trainer.config import TrainConfig
from trainer.loop import train
from trainer.pretrained import resolve
from trainer.signing import SIGNATURE, SignatureError, signer_of, verifier_of

pytest.importorskip("model_signing", reason="an extra: pip install model-signing pyOpenSSL")


def key_pair(folder: Path, name: str) -> tuple[str, str]:
    """Return the private and the public file of a new key on P-256."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    private = ec.generate_private_key(ec.SECP256R1())
    paths = folder / f"{name}.pem", folder / f"{name}.pub"
    no_password = serialization.NoEncryption()
    form = serialization.PrivateFormat.PKCS8
    paths[0].write_bytes(private.private_bytes(serialization.Encoding.PEM, form, no_password))
    public = serialization.PublicFormat.SubjectPublicKeyInfo
    paths[1].write_bytes(private.public_key().public_bytes(serialization.Encoding.PEM, public))
    return str(paths[0]), str(paths[1])


@pytest.fixture
def keys(tmp_path: Path) -> tuple[str, str]:
    return key_pair(tmp_path, "key")


def config(text_tokens: Path, out: Path, **settings: object) -> TrainConfig:
    defaults = {"n_embd": 16, "block_size": 16, "batch_tokens": 64, "max_steps": 2, "eval_every": 0}
    return small_config(text_tokens, out, **defaults | settings)


def altered(folder: Path, file: str, place: Path) -> Path:
    """Return a copy of `folder` at `place` with one byte of `file` changed."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(folder, place)
    content = bytearray((place / file).read_bytes())
    content[len(content) // 2] ^= 1
    (place / file).write_bytes(content)
    return place


def test_signed_models_are_accepted_unless_a_byte_is_altered(
    tmp_path: Path, text_tokens: Path, keys: tuple[str, str]
) -> None:
    private, public = keys
    train(config(text_tokens, tmp_path / "run", sign_key=private, verify_key=public))
    signed = resolve(tmp_path / "run")
    folder = tmp_path / "exported"
    assert (
        export.main([str(signed), str(folder), "--verify_key", public, "--sign_key", private]) == 0
    )
    check = verifier_of(public)
    for source in (signed, folder):
        check(source)
        files = sorted(
            path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()
        )
        assert {SIGNATURE, "model.safetensors", "tokenizer.json"} < set(files)
        for file in files:
            with pytest.raises(SignatureError, match=r"is not what the owner of .*key.pub signed"):
                check(altered(source, file, tmp_path / "altered"))
            (tmp_path / "altered" / file).unlink()
            with pytest.raises(SignatureError, match="is not"):
                check(tmp_path / "altered")
        shutil.copytree(source, tmp_path / f"more-{source.name}")
        (tmp_path / f"more-{source.name}" / "pytorch_model.bin").write_bytes(b"another model")
        with pytest.raises(SignatureError, match=r"pytorch_model\.bin"):
            check(tmp_path / f"more-{source.name}")


def test_every_command_refuses_a_model_of_another_key(
    tmp_path: Path, text_tokens: Path, keys: tuple[str, str], capsys: Capture
) -> None:
    private, public = keys
    _, other_key = key_pair(tmp_path, "other")
    runs = {"unsigned": (tmp_path / "unsigned", public, "is not signed: it has no model.sig")}
    train(config(text_tokens, tmp_path / "unsigned"))
    train(config(text_tokens, tmp_path / "signed", sign_key=private))
    runs["another"] = (tmp_path / "signed", other_key, "is not what the owner of")
    for run, key, message in runs.values():
        flags = [str(run), "--verify_key", key]
        commands = [
            evaluate.main([*flags, "--data", str(text_tokens), "--device", "cpu"]),
            sample.main([*flags, "--device", "cpu"]),
            export.main([str(run), str(tmp_path / "never"), "--verify_key", key]),
        ]
        output = capsys.readouterr()
        assert commands == [1, 1, 1]
        assert output.err.count(message) == 3
        assert not output.out.strip().startswith("{")
        # A resumed run refuses it, too.
        with pytest.raises(SignatureError, match=message):
            train(config(text_tokens, run, max_steps=4, verify_key=key))
        with pytest.raises(SignatureError, match=message):
            train(config(text_tokens, tmp_path / "tuned", init_from=str(run), verify_key=key))
    assert not (tmp_path / "never").exists()
    assert (
        evaluate.main(
            [str(tmp_path / "signed"), "--verify_key", public, "--data", str(text_tokens)]
        )
        == 0
    )
    train(
        config(text_tokens, tmp_path / "signed", max_steps=4, sign_key=private, verify_key=public)
    )


def test_a_file_that_is_not_a_key_is_one_line_before_training(
    tmp_path: Path, text_tokens: Path, keys: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text.pem").write_text("no key")
    for wrong in (str(tmp_path / "text.pem"), str(tmp_path / "missing.pem"), keys[1]):
        with pytest.raises(
            SettingsError, match=r"sign_key: .* is not a private key that can sign .*openssl"
        ):
            signer_of(wrong)
    for wrong in (str(tmp_path / "text.pem"), str(tmp_path / "missing.pem"), keys[0]):
        with pytest.raises(
            SettingsError, match=r"verify_key: .* is not a public key that can verify .*openssl"
        ):
            verifier_of(wrong)
    with pytest.raises(SettingsError, match="sign_key"):
        train(config(text_tokens, tmp_path / "run", sign_key=str(tmp_path / "missing.pem")))
    monkeypatch.setitem(sys.modules, "model_signing", None)
    with pytest.raises(
        SettingsError,
        match=r"signatures need the extra sign .*: pip install model-signing pyOpenSSL",
    ):
        verifier_of("pub.pem")
