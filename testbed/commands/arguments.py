"""Argument types that several commands share: a bad value is refused with what it should have been."""

import argparse
import math
from collections.abc import Callable
from typing import Any

from testbed.errors import TestbedError
from testbed.live.settings import NUMBERS, LinkSetting, check
from testbed.scale import Scale

_NO_DEFAULT: tuple[object, ...] = (None, (), [])


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Help that names each default, where there is one and the text does not name it already."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        named = "(default:" in (action.help or "")
        if named or action.default in _NO_DEFAULT or isinstance(action.default, bool):
            return action.help
        return super()._get_help_string(action)


def number(at_least: float | None = None, above: float | None = None) -> Callable[[str], float]:
    """A finite number within bounds."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or (at_least is not None and value < at_least):
            raise argparse.ArgumentTypeError(f"{text!r} is not a number" + _bound(at_least, above))
        if above is not None and value <= above:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number" + _bound(at_least, above))
        return value

    return parse


def whole_number(at_least: int) -> Callable[[str], int]:
    """A whole number of at least `at_least`."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = at_least - 1
        if value < at_least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {at_least}")
        return value

    return parse


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """The options of commands that act on a running experiment."""
    parser.add_argument("--run", metavar="ID", help="which run, when there are several")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def add_capture_bytes(parser: argparse._ActionsContainer) -> None:
    """How much of each frame a recording keeps."""
    parser.add_argument(
        "--capture-bytes",
        type=whole_number(0),
        default=128,
        metavar="N",
        help="how much of each frame is recorded; our headers take 106 bytes; 0: whole frames (default: 128)",
    )


def add_network_options(parser: argparse.ArgumentParser) -> None:
    """The options that say which network is built, and how it is scaled."""
    option = parser.add_argument
    option("--topology", default="nine-city", metavar="NAME|FILE", help="built-in topology or a topology file")
    option("--links", default="auto", metavar="KIND", help="how links are emulated: auto, netem or delayline")
    option(
        "--rate-scale",
        type=number(above=0),
        default=Scale().rate_scale,
        help="factor on rates, payload and memory, so that they fit this machine",
    )
    option(
        "--time-dilation",
        type=number(at_least=1),
        default=Scale().time_dilation,
        help="factor on all times, for slow machines; results are printed undilated",
    )
    option("--seed", type=whole_number(0), default=1, help="seed of everything random")
    add_impairment_options(parser)


def add_impairment_options(parser: argparse._ActionsContainer) -> None:
    """What to add to links of the topology; each option may be repeated, and all end in `link_settings`."""
    for option, example, meaning in (
        ("--loss", "A-B=1%", "lose frames: A-B both directions, A>B one, access all access links"),
        ("--bursts", "A-B=enter=0.1%,leave=25%", "lose frames in bursts (Gilbert-Elliott)"),
        ("--duplicate", "A-B=1%", "send frames twice"),
        ("--corrupt", "A-B=1%", "flip a bit of frames"),
        ("--jitter-ms", "A-B=2", "vary the one-way delay by up to this, both ways, without overtaking"),
        ("--reorder", "A-B", "let frames with jitter overtake each other"),
    ):
        parser.add_argument(
            option,
            dest="link_settings",
            action="append",
            default=[],
            type=_link_setting(option.removeprefix("--").replace("-", "_")),
            metavar=example,
            help=meaning,
        )


def _link_setting(key: str) -> Callable[[str], LinkSetting]:
    """LINK=VALUE, or LINK alone for what is either so or not."""

    def parse(text: str) -> LinkSetting:
        link, equals, value = text.partition("=")
        if not link or (key == "reorder") == bool(equals):
            form = "LINK" if key == "reorder" else "LINK=VALUE"
            raise argparse.ArgumentTypeError(f"{text!r} is not {form}")
        values: dict[str, Any] = {key: value}
        if key == "reorder":
            values = {key: True}
        elif key in NUMBERS:
            values = {key: number(at_least=0)(value)}
        try:
            check(values, Scale())
        except TestbedError as error:
            raise argparse.ArgumentTypeError(str(error)) from error
        return LinkSetting(link, values)

    return parse


def _bound(at_least: float | None, above: float | None) -> str:
    if above is not None:
        return f" above {above:g}"
    return "" if at_least is None else f" of at least {at_least:g}"
