"""``python -m draftgauge``."""

import sys

from draftgauge.cli.main import run

if __name__ == "__main__":
    sys.exit(run())
