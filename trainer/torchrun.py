"""torchrun without tracebacks:  python -m trainer.torchrun --standalone --nproc-per-node=8 -m trainer.train …

torchrun itself prints a traceback after SIGTERM and when a rank has failed. The arguments are those of torchrun.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import parse_args, run

from schemas.settings import ExitCode
from trainer.command_line import note


def main(arguments: Sequence[str] | None = None) -> int:
    """Run torchrun; returns 0, 1 if a rank failed, or 143 after SIGTERM, once the ranks have saved and ended."""
    try:
        run(parse_args(sys.argv[1:] if arguments is None else arguments))
    except SignalException as error:
        note(f"trainer.torchrun: ended by {error.sigval.name}; the same command continues where the ranks saved")
        return ExitCode.TERMINATED
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        note(f"trainer.torchrun: rank {rank} failed first, with exit code {failure.exitcode}; its own output says why")
        return ExitCode.ERROR
    return ExitCode.DONE


if __name__ == "__main__":
    sys.exit(main())
