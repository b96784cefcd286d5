"""What pause, resume and stop have in common: one request, and one sentence about its answer."""

import argparse
import json

from testbed.client import connect


def conduct(arguments: argparse.Namespace, command: str, sentence: str, **fields: object) -> int:
    """Send a command to the run and say what comes of it: `sentence`, with the round of the answer, from 1, put in."""
    with connect(arguments.run) as run:
        answer = run.call(command, **fields)
    if arguments.json:
        print(json.dumps(answer, indent=2))
    else:
        [number] = answer.values()
        print(f"run {run.run_id}: {sentence.format(number + 1)}")
    return 0
