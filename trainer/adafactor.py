"""Adafactor with a decay relative to each parameter, and one rate for all that it does."""

from __future__ import annotations

import math
from typing import Any

import torch


class Adafactor(torch.optim.Adafactor):
    """torch's Adafactor with weight decay relative to each parameter's RMS, as in transformers.

    In torch's, a decay of 0.1 at the usual rate of 3e-2 is fifty times AdamW's at 6e-4. Unlike
    transformers', it damps a gradient below 1.2e-7: the keys' biases have one that is only
    rounding. The rate is at most 1/√step, as published. `step` lowers the groups' `lr` to it, so
    that the weights, their decay and whoever reads `lr` have one rate.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            steps = [self.state[p]["step"].item() for p in group["params"] if self.state[p]]
            next_step = max(steps, default=0) + 1
            group["lr"] = min(group["lr"], 1 / math.sqrt(next_step))
            if not group["relative_decay"]:
                continue
            min_rms = group["eps"][1]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                rms = (parameter.norm() / math.sqrt(parameter.numel())).clamp_min(min_rms)
                parameter.mul_(1 - group["lr"] * group["relative_decay"] * rms)
        return super().step(closure)
