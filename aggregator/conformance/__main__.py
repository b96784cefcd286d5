"""`python -m aggregator.conformance --engine NAME|PATH`: exit 0 if the engine does as the reference, else 1."""

import argparse
import sys

from aggregator.conformance.runner import BATCH_SIZES, first_difference
from aggregator.conformance.traces import TRACES
from aggregator.engine import EngineError
from aggregator.engines import make_engine


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m aggregator.conformance",
        description="Run every recorded trace through an engine and through the reference, and compare all they do.",
        epilog="example: python -m aggregator.conformance --engine ./my_engine.so",
    )
    parser.add_argument("--engine", required=True, help="a name, or the path of a shared library with a / in it")
    parser.add_argument("--trace", action="append", choices=[trace.name for trace in TRACES], help="only this one")
    options = parser.parse_args()
    try:
        capabilities = make_engine(options.engine).capabilities()
    except EngineError as error:
        print(f"conformance: {error}", file=sys.stderr)
        return 2
    failures = 0
    for trace in TRACES:
        if options.trace and trace.name not in options.trace:
            continue
        config = trace.config
        if (
            config.number_format not in capabilities.number_formats
            or config.collision_policy not in capabilities.collision_policies
        ):
            print(f"{trace.name}: skipped, the engine says that it cannot")
            continue
        for batch_size in BATCH_SIZES:
            difference = first_difference(make_engine(options.engine), make_engine("numpy"), trace, batch_size)
            failures += difference is not None
            print(f"{trace.name}, batches of {batch_size}: {difference or 'same'}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
