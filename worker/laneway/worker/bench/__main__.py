"""`python -m laneway.worker.bench`: the same as `laneway bench`, also where the distribution is not installed."""

from __future__ import annotations

import argparse
import sys

from laneway.worker.bench.commands import configure, run

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m laneway.worker.bench")
    configure(parser)
    sys.exit(run(parser.parse_args()))
