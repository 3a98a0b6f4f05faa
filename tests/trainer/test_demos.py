"""minGPT's demos, as the commands that the README names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from trainer.demos import addition, characters
from trainer.demos.addition import AdditionOptions, all_sums, learn, right


def test_the_sums_are_those_of_arithmetic() -> None:
    rows = ["".join(map(str, row)) for row in all_sums().tolist()]
    assert rows == [f"{a:02}{b:02}" + f"{a + b:03}"[::-1] for a in range(100) for b in range(100)]


def test_an_answer_is_right_when_each_of_its_digits_is() -> None:
    class Knows(torch.nn.Module):
        """Adds, but writes 9 for the last digit of 100 and more."""

        def __init__(self) -> None:
            super().__init__()
            self.wte = torch.nn.Embedding(10, 1)

        def forward(self, digits: torch.Tensor) -> torch.Tensor:
            sums = {tuple(row[:4]): row[4:] for row in all_sums().tolist()}
            logits = torch.zeros(*digits.shape, 10)
            for row, own in enumerate(digits.tolist()):
                answer = sums[tuple(own[:4])]
                wanted = answer[len(own) - 4]
                logits[row, -1, 9 if len(own) == 6 and answer[2] else wanted] = 1
            return logits

    asked = all_sums()[::37]
    assert right(Knows(), asked).tolist() == [row[6] == 0 for row in asked.tolist()]  # type: ignore[arg-type]


def test_a_few_steps_learn_the_form_of_an_answer_and_the_seed_decides_them() -> None:
    losses: list[str] = []
    first = learn(all_sums(), AdditionOptions(steps=12, device="cpu"), losses.append)
    again = learn(all_sums(), AdditionOptions(steps=12, device="cpu"), lambda line: None)
    values = [float(re.search(r"loss ([\d.]+)", line)[1]) for line in losses]  # type: ignore[index]
    assert values[-1] < values[0] - 0.3
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert right(first, all_sums()).double().mean() < 0.5


@pytest.mark.slow
@pytest.mark.long
def test_two_digit_addition_is_learned_by_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert addition.main(["--device", "cpu"]) == 0
    found = re.search(r"all +([\d,]+) of 10,000 sums right", capsys.readouterr().out)
    assert found is not None
    assert int(found[1].replace(",", "")) >= 9900


def test_untrained_addition_ends_with_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert addition.main(["--steps", "1", "--device", "cpu"]) == 1
    assert "wrong: 00 + 01, which is 1" in capsys.readouterr().out


def test_characters_are_learned_from_a_text_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "rhyme.txt"
    text.write_text("one, two, buckle my shoe\n" * 200)
    arguments = ["--data", str(text), "--steps", "60", "--characters", "40", "--device", "cpu"]
    assert characters.main(arguments) == 0
    said = capsys.readouterr().out
    loss = re.search(r"validation loss ([\d.]+)", said)
    assert loss is not None
    assert float(loss[1]) < 1.0  # 2.5 where each of the 17 characters is drawn by its frequency
    sample = said.splitlines()[-1]
    assert set(sample) <= set("one, two, buckle my shoe")
    assert len(said.split("(nanoGPT: ")[1].partition("\n")[2]) == 41


def test_the_validation_loss_is_that_of_every_window(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("abcdefghij" * 500)
    text = characters.Text.read(str(path))
    model = characters.learn(text, characters.CharactersOptions(steps=3, device="cpu"), lambda line: None)
    with torch.no_grad():
        windows = [text.validation[k : k + 65] for k in range(0, 500 - 64, 64)]
        losses = [model(own[None, :-1], own[None, 1:]).item() for own in windows]
    assert characters.validation_loss(model, text) == pytest.approx(sum(losses) / len(losses), rel=1e-5)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"no text given: add --data FILE. For tinyshakespeare:  curl -o input.txt https://"),
        (b"short", r"has 5 characters; at least 650 are needed"),
        (b"caf\xe9" * 400, r"is not UTF-8 at byte 3"),
    ],
)
def test_an_unusable_text_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, message: str
) -> None:
    arguments = []
    if content is not None:
        (tmp_path / "text.txt").write_bytes(content)
        arguments = ["--data", str(tmp_path / "text.txt")]
    assert characters.main(arguments) == 2
    assert re.search(message, capsys.readouterr().err)


@pytest.mark.slow
@pytest.mark.long
def test_tinyshakespeare_reaches_nanogpts_loss(testdata: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert characters.main(["--data", str(testdata / "text" / "tinyshakespeare.txt"), "--device", "cpu"]) == 0
    loss = re.search(r"validation loss ([\d.]+)", capsys.readouterr().out)
    assert loss is not None
    assert float(loss[1]) < characters.PUBLISHED
