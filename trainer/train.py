"""The command that trains a GPT-2: `python -m trainer.train --data WORKDIR/tokens --out RUN`.

Several processes: `torchrun --nproc-per-node=8 -m trainer.train CONFIG.toml`. A program imports the
function instead, by `from trainer import train`.
"""

from __future__ import annotations

import sys

from trainer.training import main

if __name__ == "__main__":
    sys.exit(main())
