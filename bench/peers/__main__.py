"""`python -m bench.peers [SYSTEM…] [--quick]`: compare, print a table, renew docs/benchmarks."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.environment import SERVER_SETTINGS
from bench.peers.comparing import Comparison
from bench.peers.installing import HOME
from bench.peers.publishing import merge, publish, read_results
from bench.peers.rounds import QUICK, Sizes
from bench.peers.systems import SYSTEMS
from bench.peers.table import make_text
from bench.processes import ROOT
from tests.postgres_binaries import find_system
from tests.servers import PostgresServer


def main(arguments: Sequence[str] | None = None) -> int:
    options = _read(arguments)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    began = time.monotonic()
    try:
        with (
            tempfile.TemporaryDirectory(prefix="duetime-peers-") as directory,
            PostgresServer(
                find_system(), fsync=not options.quick, settings=SERVER_SETTINGS
            ) as server,
        ):
            results = Comparison(
                {name: SYSTEMS[name] for name in options.systems},
                server,
                Path(directory),
                QUICK if options.quick else Sizes(),
                options.rounds,
            ).run()
    except KeyboardInterrupt:
        print("\nInterrupted; nothing was written.", file=sys.stderr)
        return 130
    merged = merge(read_results(options.output), results, list(SYSTEMS))
    publish(merged, options.output)
    print(f"\n{make_text(merged)}\n")
    print(f"{time.monotonic() - began:.0f} s; written to {options.output}")
    return 1 if any(one["failed"] for one in results["systems"].values()) else 0


def _read(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument(
        "systems", nargs="*", metavar="SYSTEM", help=f"default: all of {', '.join(SYSTEMS)}"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--quick", action="store_true", help="small, on a server that forgets: shows that it works"
    )
    parser.add_argument(
        "--output",
        type=Path,
        help="where figures and charts go; default: docs/benchmarks, with --quick .peers/quick",
    )
    options = parser.parse_args(arguments)
    for name in options.systems:
        if name not in SYSTEMS:
            parser.error(f"there is no system {name!r}; there are: {', '.join(SYSTEMS)}")
    options.systems = options.systems or list(SYSTEMS)
    # Figures that mean nothing do not replace those of the manual.
    options.output = options.output or (
        HOME / "quick" if options.quick else ROOT / "docs" / "benchmarks"
    )
    return options


if __name__ == "__main__":
    sys.exit(main())
