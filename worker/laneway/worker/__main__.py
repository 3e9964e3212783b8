"""`python -m laneway.worker`: the same as `laneway worker`."""

from __future__ import annotations

import sys

from laneway.worker.app import main
from laneway.worker.watchdog import EXIT_S, exit_within

if __name__ == "__main__":
    code = main(sys.argv[1:])
    exit_within(EXIT_S, code)
    sys.exit(code)
