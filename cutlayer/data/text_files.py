"""Texts with labels as people keep them: lines of JSON, tables, and Hugging Face sets saved to disk."""

import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .csv_columns import NoColumn, read_columns
from .files import CorruptData, in_utf8
from .paths import Paths

FORM = 'write an object a line, as {"text": "…", "label": "…"}'
ARROW_LISTS = ("dataset_dict.json", "state.json")  # what save_to_disk leaves in a folder: several sets, or one


@dataclass(frozen=True)
class TextRows:
    """Texts of one file with their labels, as they are there; `place` says where a row stands, for complaints."""

    path: Path
    texts: list[str]
    labels: list[Any]  # empty where none were asked for
    lines: Sequence[int] | None = None  # where each row ends in the file, where not each line is one
    names: tuple[str, ...] = ()  # of the labels 0, 1, …, where the file has them
    files: list[Path] | None = None  # of each text, where each has one of its own

    @property
    def held_back(self) -> bool:
        """Whether whoever has the labels keeps them: -1 of every row, as Hugging Face has it."""
        return bool(self.names) and set(self.labels) == {-1}

    @property
    def places(self) -> Tensor | Paths:
        """Of all rows: the line, or the file."""
        if self.files is not None:
            return Paths.of(self.files)
        return torch.tensor(range(1, len(self.texts) + 1) if self.lines is None else self.lines)

    def place(self, row: int) -> str:
        if self.files is not None:
            return str(self.files[row])
        return f"{self.path}, line {row + 1 if self.lines is None else self.lines[row]}"


def read_texts(path: Path, text: str, label: str | None) -> TextRows:
    """The fields `text` and `label` of every row; None: labels are not asked for."""
    if path.suffix.lower() in (".csv", ".tsv"):
        table = read_columns(path)
        return TextRows(path, table.column(text), [] if label is None else table.column(label), table.lines)
    if path.name.removesuffix(".gz").rpartition(".")[2].lower() not in ("jsonl", "json", "ndjson"):
        raise ValueError(
            f"{path} is none of the forms that texts are read from: .jsonl, .jsonl.gz, .csv, .tsv, or a folder that "
            "Hugging Face's save_to_disk wrote"
        )
    lines = list[int]()
    rows = TextRows(path, [], [], lines)
    for number, line in enumerate(_lines(path), 1):
        if line.strip():  # many editors leave an empty line at the end
            _add(rows, number, line, text, label)
            lines.append(number)
    if not rows.texts:
        raise CorruptData(path, "it holds no line")
    return rows


def _lines(path: Path) -> Iterator[bytes]:
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rb") as file:
            yield from file
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise CorruptData(path, f"the gzip stream is damaged or cut short ({error})") from error


def _add(rows: TextRows, number: int, line: bytes, text: str, label: str | None) -> None:
    read = in_utf8(rows.path, line, number)
    try:
        content = json.loads(read)
    except (ValueError, RecursionError) as error:
        raise CorruptData(rows.path, f"line {number} is no JSON by itself ({error}): {FORM}") from error
    if not isinstance(content, dict):
        raise CorruptData(rows.path, f"line {number} has no fields with names: {FORM}")
    try:
        found = content[text]
        labels = [] if label is None else [content[label]]
    except KeyError as error:
        raise (ValueError if rows.texts else NoColumn)(  # where the first line has one, it was left out here
            f"{rows.path}, line {number}: there is no field {error}, only {', '.join(content)}: name the fields with "
            "text= and label="
        ) from error
    if not isinstance(found, str):
        raise ValueError(f"{rows.path}, line {number}: the field {text!r} holds {type(found).__name__}, not a text")
    rows.texts.append(found)
    rows.labels.extend(labels)


def is_saved_set(path: Path) -> bool:
    """Whether a folder is one that Hugging Face's save_to_disk wrote."""
    return any((path / name).is_file() for name in ARROW_LISTS)


def read_saved_set(path: Path, text: str, label: str | None) -> dict[str, TextRows]:
    """The sets of a folder by name ("train", "test"), or one without a name."""
    if not (path / "dataset_dict.json").is_file():
        return {"": _read_arrow(path, text, label)}
    listed = _json(path / "dataset_dict.json").get("splits")
    if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
        raise CorruptData(path / "dataset_dict.json", "it does not list the sets of its folder")
    return {name: _read_arrow(path / Path(name).name, text, label) for name in listed}


def _read_arrow(folder: Path, text: str, label: str | None) -> TextRows:
    try:
        import pyarrow
    except ImportError as error:
        raise ValueError(
            f"sets of Hugging Face are Arrow files, which need the package pyarrow ({error}): pip install "
            "'cutlayer[text]'"
        ) from error
    columns: dict[str, list[Any]] = {name: [] for name in (text, label) if name is not None}
    try:
        files = [folder / Path(one["filename"]).name for one in _json(folder / "state.json")["_data_files"]]
        for file in files:
            with pyarrow.memory_map(str(file)) as source, pyarrow.ipc.open_stream(source) as stream:
                table = stream.read_all()
                for name, values in columns.items():
                    if name not in table.column_names:
                        there = ", ".join(table.column_names)
                        raise NoColumn(f"{folder} has no column {name!r}, only {there}: name it with text= or label=")
                    values.extend(table.column(name).to_pylist())
    except (OSError, KeyError, TypeError, pyarrow.ArrowException) as error:
        raise CorruptData(folder, f"it is no set that save_to_disk wrote ({error})") from error
    rows = TextRows(folder, columns[text], columns[label] if label else [], names=_class_names(folder, label))
    for row, found in enumerate(rows.texts):
        if not isinstance(found, str):
            raise ValueError(f"{rows.place(row)}: the column {text!r} holds {type(found).__name__}, not a text")
    return rows


def _class_names(folder: Path, label: str | None) -> tuple[str, ...]:
    info = _json(folder / "dataset_info.json") if (folder / "dataset_info.json").is_file() else {}
    feature = (info.get("features") or {}).get(label) or {}
    names = feature.get("names") if isinstance(feature, dict) else None
    return tuple(map(str, names)) if isinstance(names, list) else ()


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise CorruptData(path, f"it is no JSON ({error})") from error
    if not isinstance(content, dict):
        raise CorruptData(path, "it is no JSON object")
    return content
