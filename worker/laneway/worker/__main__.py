"""`python -m laneway.worker`: the same as `laneway worker`."""

from __future__ import annotations

import sys

from laneway.worker.app import main

sys.exit(main(sys.argv[1:]))
