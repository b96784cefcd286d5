"""What tests/vm/run does."""

import sys

from tests.vm.image import ImageError, Unavailable, cached_image
from tests.vm.machine import LIFE_LIMIT_S, Machine, MachineError, shell, to_terminal


def main(argv: list[str]) -> int:
    """Run a command, or a shell, in a virtual machine. Returns the exit status."""
    try:
        image = cached_image(_log)
        if not argv:
            return shell(image)
        with Machine(image) as machine:
            _log(f"booted in {machine.boot_seconds:.0f} s")
            return machine.run(argv, LIFE_LIMIT_S, to_terminal).status
    except (Unavailable, ImageError, MachineError) as error:
        _log(str(error))
        return 2
    except KeyboardInterrupt:
        return 130


def _log(message: str) -> None:
    print(f"vm: {message}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
