"""The one way a command refuses: what was wrong, where, and what would be right, in one line."""

from __future__ import annotations

OK, CHECK_FAILED, USAGE = 0, 1, 2  # the exit codes of every command
INTERRUPTED = 130  # Ctrl-C, as shells report it; what was measured is kept


class UserError(Exception):
    """Wrong usage or bad input. Ends the command with exit code 2 and one line on stderr."""

    def __init__(self, where: str, what: str, right: str) -> None:
        super().__init__(one_line(f"{where}: {what}; {right}"))


def one_line(text: str) -> str:
    """`text` without line breaks or control characters: input from a file must not break the one-line promise."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def os_reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
