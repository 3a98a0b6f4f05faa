"""The learning rate as a function of the step."""

from __future__ import annotations

import math

SCHEDULES = ("cosine", "linear", "wsd", "constant")

# The share of the peak at the last step of `cosine` and `linear`.
_LAST_SHARE = 0.1


def learning_rate(
    step: int, schedule: str, warmup_steps: int, max_steps: int, decay_fraction: float = 0.2
) -> float:
    """Return the learning rate of step 0 … max_steps−1, as a fraction of its peak.

    Linear warm-up; then `cosine` or `linear` down to a tenth at the last step, `wsd` (warm-up,
    stable, decay: constant, then linear to zero over the last `decay_fraction` of the steps; Hu et
    al., 2024), or `constant`.
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    if schedule == "constant":
        return 1.0
    if schedule == "wsd":
        decay_start = max(warmup_steps, round(max_steps * (1 - decay_fraction)))
        if step < decay_start:
            return 1.0
        # Zero would be reached one step after the last, which would do nothing with it.
        return 1 - _progress(step, decay_start, max_steps + 1)
    progress = _progress(step, warmup_steps, max_steps)
    if schedule == "cosine":
        progress = (1 - math.cos(math.pi * progress)) / 2
    return 1 - (1 - _LAST_SHARE) * progress


def _progress(step: int, start: int, end: int) -> float:
    """Return how far a decay from step `start` on is after this step; 1 at step `end` − 1."""
    return min(1.0, (step - start + 1) / max(1, end - start))
