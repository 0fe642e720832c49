"""The film reviews of IMDB as they lie on disk: gzipped lines of JSON, or the folders of the official archive."""

import gzip
import json
import zlib
from pathlib import Path

from .base import CorruptData, find
from .files import home, in_utf8
from .text_files import TextRows

LICENCE = "none stated (Maas et al., 2011); the texts belong to their writers"
ORIGIN = (
    'A line is {"label": 0 or 1, "text": "..."}. Or unpack the official aclImdb_v1.tar.gz there: its folder aclImdb/ '
    "has a file for each review in train/neg, train/pos, test/neg and test/pos."
)
CLASSES = ("negative", "positive")
SIZES = ((8_000, 4_000), (25_000, 25_000))
PARTS, KINDS = ("train", "test"), ("neg", "pos")  # a kind's place is its label
FILES = tuple(f"imdb/{part}.jsonl.gz" for part in PARTS)
FOLDERS = tuple(f"aclImdb/{part}/{kind}/" for part in PARTS for kind in KINDS)
FORMS = (FILES, FOLDERS)


def read_reviews(folder: Path | None) -> tuple[TextRows, TextRows]:
    """Training and test reviews with their labels, 0 or 1."""
    root = home(folder)
    if not (root / FILES[0]).is_file() and (root / FOLDERS[0]).is_dir():
        train, test = (_read_folders(root / "aclImdb" / part) for part in PARTS)
    else:
        train, test = (_read_lines(find(folder, name, origin=ORIGIN)) for name in FILES)
    return train, test


def _read_folders(path: Path) -> TextRows:
    rows = TextRows(path, [], [], files=[])
    assert rows.files is not None
    for label, kind in enumerate(KINDS):
        found = sorted((path / kind).glob("*.txt"))
        if not found:
            raise CorruptData(path / kind, "it holds no review (a file NUMBER_STARS.txt each)")
        for file in found:
            rows.texts.append(in_utf8(file, file.read_bytes()))
        rows.labels.extend([label] * len(found))
        rows.files.extend(found)
    return rows


def _read_lines(path: Path) -> TextRows:
    rows = TextRows(path, [], [])
    try:
        with gzip.open(path) as file:
            for number, line in enumerate(file, 1):
                text, label = _line(path, number, line)
                rows.texts.append(text)
                rows.labels.append(label)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise CorruptData(path, f"the gzip stream is damaged or cut short ({error})") from error
    if not rows.texts:
        raise CorruptData(path, "it holds no line")
    return rows


def _line(path: Path, number: int, line: bytes) -> tuple[str, int]:
    try:
        content = json.loads(line)
        text, label = content["text"], content["label"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CorruptData(path, f"line {number} is not a text and its label ({error})") from error
    if not isinstance(text, str) or label not in (0, 1):
        raise CorruptData(path, f"line {number} should have a text and a label 0 or 1, the label is {label!r}")
    return text, int(label)
