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

    return run()


if __name__ == "__main__":
    sys.exit(main())
