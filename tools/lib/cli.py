"""tools/kvroof: the commands. Started by the shell file of that name, which sets up what they need."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parent))

from build import BuildError  # noqa: E402
from errors import INTERRUPTED, USAGE, UserError, one_line, os_reason  # noqa: E402

COMMANDS = (
    "sweep_command",
    "test_command",
    "verify",
    "report_command",
    "compare_command",
    "memory_command",
    "predict_command",
    "validate",
)


class Parser(argparse.ArgumentParser):
    """argparse with one-line errors: what, where, what would be right."""

    def error(self, message: str) -> NoReturn:
        sys.stderr.write(f"{one_line(f'{self.prog}: {message}; see {self.prog} --help')}\n")
        sys.exit(USAGE)


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="tools/kvroof",
        description="How fast can this machine read a KV cache, and how close does attention get to that?",
        epilog="Exit codes: 0 ok, 1 a check failed, 2 wrong usage or bad input.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Parser)
    for name in COMMANDS:
        __import__(name).add_parser(commands)
    return parser


def _drop_output() -> None:
    """What is still buffered cannot be written; at exit Python would try again and complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main(arguments: list[str]) -> int:
    args, rest = build_parser().parse_known_args(arguments)
    accepts = getattr(args, "accepts", None)
    unknown = [word for word in rest if accepts is None or not word.startswith(accepts)]
    try:
        if unknown:
            raise UserError(
                repr(unknown[0]),
                "unknown argument",
                f"see tools/kvroof {args.command} --help",
            )
        args.passed_through = rest
        code = int(args.run(args))
        sys.stdout.flush()  # a full disk behind the output must show here, not at exit
        return code
    except (UserError, BuildError) as error:
        sys.stderr.write(f"kvroof {args.command}: {error}\n")
        return USAGE
    except MemoryError:
        sys.stderr.write(f"kvroof {args.command}: out of memory; free some, or give fewer or smaller files\n")
        return USAGE
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output is gone, as with `| head`
        _drop_output()
        return 0
    except OSError as error:
        _drop_output()
        where = error.filename if isinstance(error.filename, str) else "output"
        line = one_line(f"{where}: {os_reason(error)}; make room, or name a place that can be used")
        sys.stderr.write(f"kvroof {args.command}: {line}\n")
        return USAGE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
