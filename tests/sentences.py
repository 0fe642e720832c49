"""Sentences for tests from a small grammar: learnable labels, names and numbers, and words worth guessing."""

import itertools
import json
from pathlib import Path

GOOD, BAD = ("lovely", "clever", "moving"), ("dull", "clumsy", "noisy")
NAMES, FILMS, YEARS = (
    ("anna", "boris", "carla", "dmitri"),
    ("harbour", "orchard", "lantern"),
    ("1931", "1954", "1987"),
)


def sentences() -> list[tuple[str, str]]:
    """216 texts with "good" or "bad": long and short ones."""
    rows = []
    for number, (name, film, year) in enumerate(itertools.product(NAMES, FILMS, YEARS)):
        for label, adjectives in (("good", GOOD), ("bad", BAD)):
            for place, adjective in enumerate(adjectives):
                more = f" {name} saw it in {year}." if (number + place) % 2 else ""
                rows.append((f"The {film} is a {adjective} film, said {name}.{more}", label))
    return rows


def write(path: Path, rows: list[tuple[str, str]] | None = None) -> Path:
    """A .jsonl file of them."""
    told = sentences() if rows is None else rows
    path.write_text("".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in told))
    return path
