"""`python -m aggregator`: one edge without a run, for use outside the testbed (docs/aggregator.md)."""

import argparse
import ipaddress
import json
import sys

from aggregator.deadlines import DEADLINE_POLICIES
from aggregator.edge import EdgeSetup
from aggregator.engine import EngineError
from aggregator.engines import default_engine
from aggregator.standalone import Standalone
from aggregator.wire.packet import CONTRIBUTION_PORT, RESULT_PORT, values_per_frame
from aggregator.wire.realtime import become_realtime

_EXAMPLE = """example, three contributors and one host:
  sudo python -m aggregator --address 10.9.0.2 --host 10.9.0.10 --values 418018 \\
      --flow 232.1.0.21,10.9.0.21,1 --flow 232.1.0.22,10.9.0.22,2 --flow 232.1.0.23,10.9.0.23,5
"""


def parse_flow(text: str) -> tuple[str, str, int]:
    """GROUP,SOURCE,ID: a multicast group, the source address that sends to it, and its contributor id."""
    try:
        group, source, contributor = text.split(",")
        number = int(contributor)
        if not ipaddress.IPv4Address(group).is_multicast or not 0 <= number < 64:
            raise ValueError
        return group, str(ipaddress.IPv4Address(source)), number
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not GROUP,SOURCE,ID: a multicast group, an IPv4 address, a contributor id from 0 to 63"
        ) from None


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m aggregator",
        description=f"Sum contributions (UDP port {CONTRIBUTION_PORT}) of known sources and send the sums to hosts "
        f"(port {RESULT_PORT}), until interrupted. Then print what was counted, as JSON.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    option = parser.add_argument
    option("--address", required=True, help="this machine's address, on the interface of sources and hosts")
    option(
        "--flow",
        required=True,
        action="append",
        type=parse_flow,
        metavar="GROUP,SOURCE,ID",
        help="one for each contributor",
    )
    option(
        "--host", required=True, action="append", metavar="ADDRESS", help="the host of each shard, which gets its sums"
    )
    option("--values", required=True, action="append", type=int, help="values in each shard, in the order of --host")
    option(
        "--values-per-chunk", type=int, default=values_per_frame(9000), help="values in a packet (default: %(default)s)"
    )
    option("--job", type=int, default=0, help="job in the packets (default: %(default)s)")
    option("--island-id", type=int, default=0, help="source id in the results (default: %(default)s)")
    option("--first-round", type=int, default=0, help="the first round that is admitted (default: %(default)s)")
    option("--slots", type=int, default=4096, help="partial sums that fit the memory (default: %(default)s)")
    option("--slots-per-source", type=int, help="slots that one contributor may take (default: all)")
    option("--deadline-ms", type=float, default=1000.0, help="how long a sum waits at most (default: %(default)s)")
    option("--deadline", choices=tuple(DEADLINE_POLICIES), default="fixed", help="as given, or less as arrivals show")
    option(
        "--collision", choices=("bypass-new", "evict-old"), default="bypass-new", help="who gives way, without a slot"
    )
    option("--late", choices=("bypass", "drop"), default="bypass", help="what becomes of late contributions")
    option("--number-format", type=int, choices=(0, 1), default=0, help="0: fixed point; 1: f32 (default: %(default)s)")
    option("--line-rate-gbps", type=float, default=1.0, help="rate towards the hosts (default: %(default)s)")
    option("--resend-window-ms", type=float, default=500.0, help="how long sums are kept, to be sent again on request")
    option("--resend-memory-mb", type=float, default=0.0, help="memory for that (default: %(default)s: none are kept)")
    option("--tag-key", default="", metavar="HEX", help="32 hexadecimal digits: packets must have tags of this key")
    option("--engine", default=default_engine(), metavar="NAME|PATH", help="(default: %(default)s)")
    option("--seconds", type=float, help="end after so long")
    return parser


def main() -> int:
    parser = build_parser()
    options = parser.parse_args()
    if len(options.values) != len(options.host):
        parser.error(f"--values is given {len(options.values)} times for {len(options.host)} times --host")
    if options.seconds is not None and not 0 < options.seconds < float("inf"):
        parser.error(f"--seconds {options.seconds:g}: give a number above 0, or leave it out")
    contributors = {source: contributor for _, source, contributor in options.flow}
    setup = EdgeSetup(
        island_id=options.island_id,
        job=options.job,
        values_per_chunk=options.values_per_chunk,
        shard_values=options.values,
        host_addresses=options.host,
        address=options.address,
        contributors=contributors,
        slots=options.slots,
        engine=options.engine,
        line_rate_bps=options.line_rate_gbps * 1e9,
        number_format=options.number_format,
        collision_policy=options.collision,
        late_policy=options.late,
        deadline_policy=options.deadline,
        slots_per_source=options.slots_per_source,
        resend_window_ns=round(options.resend_window_ms * 1e6),
        resend_bytes=round(options.resend_memory_mb * 1e6),
        tag_key=options.tag_key,
    )
    try:
        flows = [(group, source) for group, source, _ in options.flow]
        standalone = Standalone(setup, flows, options.deadline_ms, options.first_round)
        realtime = become_realtime()
        print(
            f"engine {options.engine}, {len(flows)} flows, {options.slots} slots"
            + ("" if realtime else "; without real-time priority, which is not allowed here"),
            file=sys.stderr,
        )
        try:
            standalone.serve(options.seconds)
        finally:
            counts = standalone.close()
    except (OSError, EngineError, ValueError) as error:
        print(f"aggregator: {error}", file=sys.stderr)
        return 2
    print(json.dumps(counts, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
