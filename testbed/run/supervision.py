"""What a supervised process has been told, so that one that dies can be started again where it was."""

from collections.abc import Mapping
from dataclasses import dataclass, field

# The answer to each message of run control that an edge gets (docs/run-control.md).
_ANSWERS = {
    "setup": "hello",
    "epoch": "epoch_ready",
    "leave": "left",
    "probe_report": "probe_report",
    "arm": "armed",
    "retire": "retired",
    "account": "accounted",
}
_EPOCHS_KEPT = 2


@dataclass
class Request:
    """One message to a process, and whether it has answered."""

    kind: str
    fields: Mapping[str, object]
    answered: bool = False

    @property
    def answer(self) -> str:
        return _ANSWERS[self.kind]


@dataclass(frozen=True)
class Restart:
    """A process that has ended (`how`) and was started again; `outage_s`: until it had been told everything."""

    process: str
    how: str
    outage_s: float


@dataclass
class Script:
    """The messages that bring a fresh process to where its predecessor was: set-up, epochs in force, open rounds."""

    requests: list[Request] = field(default_factory=list)

    def sent(self, kind: str, fields: Mapping[str, object]) -> None:
        """Note a message that is about to be sent."""
        if kind in _ANSWERS:
            self.requests.append(Request(kind, fields))

    def received(self, kind: str) -> None:
        """Note an answer, and forget what it has made history."""
        for request in self.requests:
            if request.answer == kind and not request.answered:
                request.answered = True
                break
        retired = {
            request.fields["round"] for request in self.requests if request.kind == "retire" and request.answered
        }
        left = {request.fields["epoch"] for request in self.requests if request.kind == "leave" and request.answered}
        epochs = [
            request
            for request in self.requests
            if request.kind == "epoch" and request.answered and request.fields["epoch"] not in left
        ]
        self.requests = [
            request
            for request in self.requests
            if not request.answered
            or request.kind == "setup"
            or (request.kind == "arm" and request.fields["round"] not in retired)
            or request in epochs[-_EPOCHS_KEPT:]
        ]

    @property
    def set_up(self) -> bool:
        """Whether the process has said hello: one that never did is not worth starting again."""
        return any(request.kind == "setup" and request.answered for request in self.requests)
