"""The ``draftgauge`` command, and ``python -m draftgauge``."""

import os
import signal
import sys
from types import FrameType

INTERRUPTED = 130


def _stop(number: int, frame: FrameType | None) -> None:
    """Ctrl-C while libraries load: nothing has begun, so there is nothing to end."""
    os.write(2, b"interrupted.\n")
    os._exit(INTERRUPTED)


def main() -> int:
    """Run the command line; returns the exit code."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    from draftgauge.cli.main import run

    code = run()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # pressed again while the interpreter ends
    return code


if __name__ == "__main__":
    sys.exit(main())
