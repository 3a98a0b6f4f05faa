"""The learning rate as a function of the step."""

from __future__ import annotations

import math

SCHEDULES = ("cosine", "linear", "wsd", "constant")


def learning_rate(
    step: int, schedule: str, warmup_steps: int, max_steps: int, decay_fraction: float = 0.2
) -> float:
    """The learning rate of step 0 … max_steps−1, as a fraction of its peak.

    Linear warm-up; then `cosine` or `linear` down to a tenth at the last step, `wsd` (warm-up,
    stable, decay: constant, then linear to zero over the last `decay_fraction` of the steps; Hu et
    al., 2024), or `constant`.
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    start, last = warmup_steps, 0.1
    if schedule == "wsd":
        start, last = max(warmup_steps, round(max_steps * (1 - decay_fraction))), 0.0
    if schedule == "constant" or step < start:
        return 1.0
    progress = min(1.0, (step - start + 1) / max(1, max_steps - start + (schedule == "wsd")))
    fall = (1 - math.cos(math.pi * progress)) / 2 if schedule == "cosine" else progress
    return 1 - (1 - last) * fall
