"""The ``draftgauge`` command, and ``python -m draftgauge``."""

import os
import signal
import sys
from types import FrameType

INTERRUPTED = 130


def _stop(number: int, frame: FrameType | None) -> None:
    os.write(2, b"interrupted.\n")
    os._exit(INTERRUPTED)


def main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    from draftgauge.cli.main import run

    return run()


if __name__ == "__main__":
    sys.exit(main())
