"""``python -m draftgauge``."""

from draftgauge.cli.main import run

if __name__ == "__main__":
    run()
