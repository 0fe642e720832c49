"""README and docs as tests read them: blocks of code, and the commands in them."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, *languages: str) -> Iterator[tuple[int, str]]:
    """(line of the page, text) of each block in one of `languages`."""
    text = page.read_text()
    for found in BLOCK.finditer(text):
        if found[1] in languages:
            yield text.count("\n", 0, found.start(2)), found[2]


def files_of(page: Path) -> dict[str, str]:
    """Files that a page has its reader write: blocks of `py` that begin with their name."""
    named = (re.match(r"# (\w+\.py)\n", text) for _, text in blocks(page, "py"))
    texts = (text for _, text in blocks(page, "py"))
    return {found[1]: text for found, text in zip(named, texts, strict=True) if found}


def commands_of(page: Path, *languages: str) -> list[list[str]]:
    """The words of each line that starts with `cutlayer`."""
    lines = [line.removeprefix("$ ") for _, text in blocks(page, *languages) for line in text.splitlines()]
    return [shlex.split(line) for line in lines if line.startswith("cutlayer ")]
