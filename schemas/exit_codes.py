"""The exit codes of every command, of the pipeline and of the trainer."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What a command's exit status says; `meaning` is one line for the help and the documentation."""

    meaning: str

    def __new__(cls, code: int, meaning: str) -> ExitCode:
        member = int.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        return member

    DONE = 0, "done; of verify: everything holds"
    ERROR = 1, "an error, in one line; of verify: something does not hold"
    USAGE = 2, "wrong usage: an unknown command, flag or setting, or a value that it does not take"
    NOT_FOUND = 3, "not found: the URL does not appear in the run, or there is no such dataset or document"
    INTERRUPTED = 130, "interrupted (Ctrl-C); the same command continues where it stopped"
    NO_READER = 141, "the output has no reader any more, as in `owt inspect ... | head`"
    TERMINATED = 143, "terminated (SIGTERM); the same command continues where it stopped"
