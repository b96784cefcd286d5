"""The control socket of a run, as both ends see it (docs/control.md)."""

import json
from pathlib import Path
from typing import Any

PROTOCOL = 1
EVENTS = "events.jsonl"  # in the run directory, which `status` names
MAX_REQUEST_BYTES = 1 << 16
MAX_ANSWER_BYTES = 1 << 20
_SOCKET_NAME = "control"


def socket_path(state_directory: Path) -> Path:
    """Where a run's control socket is, in its state directory."""
    return state_directory / _SOCKET_NAME


def encode(message: dict[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode()
