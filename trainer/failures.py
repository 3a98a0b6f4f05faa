"""What a run says as it ends before its last step: by a signal, or by an error with advice."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from schemas import SettingsError
from schemas.quantities import pluralize
from trainer.checkpoint import Saver
from trainer.command_line import first_line, is_out_of_memory
from trainer.config import TrainConfig
from trainer.data.loader import Loader
from trainer.device import is_compiler_error
from trainer.distributed import StopSignals
from trainer.metrics import Diverged
from trainer.model import GPT

# What torchrun prints when a rank ends by a signal looks like a failure.
_TORCHRUN_NOTE = " (a traceback of torchrun after this is its report of the signal, not an error)"


def end_stopped(step: int, stop: StopSignals, say: Callable[[str], None]) -> None:
    """Report that a run has stopped; raise InterruptedError if another rank received the signal.

    When nodes join or leave, each agent of torchrun signals its own ranks. An agent takes a rank
    that exits with 0 before the agent's own signal for one that has finished its training.
    """
    message = f"stopped by {stop.received or 'a signal'} "
    if step:
        message += f"at step {step}, saved; the same command continues here"
    else:
        message += "in the first step, with nothing to save; the same command starts again"
    if "TORCHELASTIC_RUN_ID" in os.environ:
        message += _TORCHRUN_NOTE
    say(message)
    if not stop.wait(10):
        raise InterruptedError(f"stopped at step {step} because another rank received a signal")


@contextmanager
def explain_failures(
    config: TrainConfig, model: GPT, loader: Loader, saver: Saver
) -> Iterator[None]:
    """Turn errors of the loop into the errors of `train`, which have advice."""
    try:
        yield
    except Diverged as error:
        raise Diverged(_explain_divergence(config, saver, error), error.step) from error
    except Exception as error:
        if is_out_of_memory(error):
            raise MemoryError(_explain_memory(model, loader.device_batch_size, error)) from error
        if is_compiler_error(error):
            raise SettingsError(
                f"torch.compile failed ({first_line(error)}): install the compiler that it "
                f"names, or give --no_compile"
            ) from error
        raise


def _explain_divergence(config: TrainConfig, saver: Saver, error: Diverged) -> str:
    """Return where the run can continue, and how to look at the step's documents."""
    # The last good checkpoint may still be in writing.
    saver.wait()
    newest = saver.path_of(saver.last_saved)
    if not saver.last_saved:
        origin = "there is no checkpoint before it"
    elif saver.last_saved >= error.step - 1:
        origin = (
            f"the weights in {newest} may be the cause: delete that folder to continue from the "
            f"checkpoint before"
        )
    else:
        origin = f"the last good checkpoint is {newest}"
    tool = ["python", "-m", "trainer.data.documents", config.out]
    tool += ["--max_steps", str(config.max_steps), "--step", str(error.step)]
    return (
        f"{error}; {origin}. Look at the step's documents ({shlex.join(tool)}), try a lower "
        f"learning_rate or more warm-up"
    )


def _explain_memory(model: GPT, device_batch_size: int, error: Exception) -> str:
    """Return what to change when a forward or backward pass does not fit."""
    place = "memory"
    if isinstance(error, torch.OutOfMemoryError):
        place = "the GPU's memory"
    remedies = []
    if device_batch_size > 1:
        remedies.append("a smaller --device_batch_size")
    if not model.checkpoint_activations:
        remedies.append("--checkpoint_activations")
    if not remedies:
        remedies.append("a smaller --preset or --block_size")
    return (
        f"a forward pass of {pluralize(device_batch_size, 'window')} does not fit in {place}: give "
        f"{', or '.join(remedies)} ({first_line(error).partition('.')[0]})"
    )
