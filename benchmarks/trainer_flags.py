"""The trainer's flags for tests and benchmarks, and the settings of the smallest run."""

from __future__ import annotations

# A step of it takes milliseconds on a CPU.
TINY = {"preset": "tiny", "n_embd": 32, "block_size": 32, "batch_tokens": 256}


def flags_of(**settings: object) -> list[str]:
    """Return settings as the trainer's flags: `--n_embd 32`, or `--no_compile` for False."""
    flags = []
    for name, value in settings.items():
        if value is True:
            flags.append(f"--{name}")
        elif value is False:
            flags.append(f"--no_{name}")
        else:
            flags += [f"--{name}", str(value)]
    return flags
