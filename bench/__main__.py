"""`python -m bench [NAME…] [--full] [--quick]`: measure, print a table, write results.json."""

from __future__ import annotations

import argparse
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from bench.catalogue import CATALOGUE
from bench.environment import Environment, open_environment
from bench.measures import MEASURES
from bench.processes import ROOT
from bench.reading import Reading
from bench.report import make_table, write_results
from bench.scale import FULL, QUICK
from bench.steal import Steal


def main(arguments: Sequence[str] | None = None) -> int:
    options = _read(arguments)
    # Ended from outside as by Ctrl-C, which a shell's background job would ignore: everything
    # that was started is stopped on the way out.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    began = time.monotonic()
    try:
        with open_environment(QUICK if options.quick else FULL) as environment, Steal() as steal:
            fsync = "on" if environment.scale.fsync else "off"
            print(f"PostgreSQL {environment.server.major}, fsync {fsync}", flush=True)
            readings, failed = _measure(environment, options.names)
    except KeyboardInterrupt:
        print("\nInterrupted; nothing was written.", file=sys.stderr)
        return 130
    print(f"\n{make_table(readings)}\n")
    write_results(readings, options.output)
    print(f"{time.monotonic() - began:.0f} s; {steal}; written to {options.output}")
    if failed:
        print(f"Failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _read(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    only_full = [name for name, spec in CATALOGUE.items() if spec.only_full]
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"one of: {', '.join(CATALOGUE)}; default: all but {', '.join(only_full)}",
    )
    parser.add_argument("--full", action="store_true", help="all, also what takes minutes")
    parser.add_argument(
        "--quick", action="store_true", help="small and few: shows that it works, not how fast"
    )
    parser.add_argument(
        "--output", type=Path, default=ROOT / "bench" / "results.json", help="where the JSON goes"
    )
    options = parser.parse_args(arguments)
    for name in options.names:
        if name not in CATALOGUE:
            parser.error(f"there is no measure {name!r}; there are: {', '.join(CATALOGUE)}")
    if not options.names:
        options.names = [name for name in CATALOGUE if options.full or name not in only_full]
    return options


def _measure(
    environment: Environment, wanted: Sequence[str]
) -> tuple[dict[str, Reading], list[str]]:
    """Measure what is wanted; what fails is told and does not keep the rest from being measured."""
    readings: dict[str, Reading] = {}
    failed: list[str] = []
    for names, measure in MEASURES.items():
        chosen = [name for name in names if name in wanted]
        if not chosen:
            continue
        print(f"{', '.join(chosen)} … ", end="", flush=True)
        began = time.monotonic()
        try:
            found = measure(environment)
        except Exception:  # noqa: BLE001 - whatever it was, it is printed
            print("failed", flush=True)
            traceback.print_exc()
            failed += chosen
            continue
        readings |= {name: found[name] for name in chosen}
        print(f"{time.monotonic() - began:.0f} s", flush=True)
    return readings, failed


if __name__ == "__main__":
    sys.exit(main())
