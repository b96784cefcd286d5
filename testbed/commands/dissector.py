"""`testbed dissector`: our packets in Wireshark and tshark."""

import argparse
import os
import pwd
import shutil
from pathlib import Path
from typing import Any

from testbed.capture import wireshark
from testbed.errors import TestbedError

_PLUGINS = Path(".local/lib/wireshark/plugins")


def add_parser(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "dissector",
        help="teach Wireshark and tshark our packets",
        description="Print where the Wireshark dissector is, or install it for the calling user.",
        epilog="example: testbed dissector --install && tshark -r runs/…/pcap/nyc.pcapng -Y tb.retransmitted",
    )
    parser.add_argument("--install", action="store_true", help=f"copy it to ~/{_PLUGINS}")
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    if not arguments.install:
        print(wireshark.DISSECTOR)
        return 0
    caller = os.environ.get("SUDO_UID")
    user = pwd.getpwuid(int(caller or os.getuid()))
    # Wireshark looks in $HOME as well, which sudo changes.
    directory = (Path(user.pw_dir) if caller else Path.home()) / _PLUGINS
    try:
        made = [each for each in (directory, *directory.parents) if not each.exists()]
        directory.mkdir(parents=True, exist_ok=True)
        copy = Path(shutil.copy(wireshark.DISSECTOR, directory))
        for each in (*made, copy):
            os.chown(each, user.pw_uid, user.pw_gid)
    except OSError as error:
        raise TestbedError(f"{directory}: {error.strerror}; copy {wireshark.DISSECTOR} to a plugin folder") from error
    print(copy)
    return 0
