"""The `phasegate` command, and `python -m phasegate`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line. Ctrl-C ends it quietly (exit code 130), even while it is loading."""
    try:
        from phasegate.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
