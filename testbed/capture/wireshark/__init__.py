"""The Wireshark dissector, which is written in Lua."""

from pathlib import Path

DISSECTOR = Path(__file__).with_name("testbed.lua")
