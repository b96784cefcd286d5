"""What the documentation shows, as it stands there, for tests that try it."""

from pathlib import Path

PAGES = Path(__file__).parents[1] / "docs"


def python_block(page: str) -> str:
    """The first block of Python on a page."""
    return (PAGES / page).read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
