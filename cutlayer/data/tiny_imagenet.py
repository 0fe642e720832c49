"""Tiny-ImageNet: photographs of 200 kinds of things, from a contact sheet or the official folders."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch

from ..core.seeds import derive
from .base import About, CorruptData, Loaded, Samples, Source, carve, find
from .files import home
from .image_files import Listing, check_size, decode
from .image_folder import by_folder
from .sheets import read_sheet

SIDE, KINDS = 32, 200
SHEET = ("tinyimagenet32/aux.jpg", "tinyimagenet32/aux.json")
OFFICIAL = "tiny-imagenet-200"
FOLDERS = tuple(f"{OFFICIAL}/{name}" for name in ("train/", "val/images/", "val/val_annotations.txt", "words.txt"))


@dataclass(frozen=True, repr=False)
class TinyImageNet(Source):
    """Photographs, 3x32x32, 7,200 + 800, 200 classes; a sheet in tinyimagenet32/, or folders in tiny-imagenet-200/.

    The sheet is a training set alone: a tenth of every class is set aside for testing. The official folders hold
    100,000 + 10,000 (the validation part is the test set) of 64x64, resized unless `size=64` is asked for.
    """

    about: ClassVar[About] = About(
        name="Tiny-ImageNet",
        licence="ImageNet's terms: research and education, not commercial",
        origin="Or tiny-imagenet-200/, the folder of tiny-imagenet-200.zip at cs231n.stanford.edu.",
        shape=(3, SIDE, SIDE),
        classes=KINDS,
        sizes=((7_200, 800), (100_000, 10_000)),
        forms=(SHEET, FOLDERS),
    )

    size: int = SIDE
    limit: int | None = None
    augment: str = ""  # type: ignore[misc]  # a class variable elsewhere

    def __post_init__(self) -> None:
        super().__post_init__()
        check_size(self.size)

    def read(self, folder: Path | None) -> Loaded:
        root = home(folder)
        sheet = (root / SHEET[0]).is_file() and self.size == SIDE
        if (root / FOLDERS[0]).is_dir() and not sheet:
            return self._read_folders(root / OFFICIAL, find(folder, FOLDERS[2]), find(folder, FOLDERS[3]))
        picture, facts = (find(folder, name, origin=self.about.origin) for name in SHEET)
        if self.size != SIDE:
            raise ValueError(f"{picture} holds pictures of {SIDE}x{SIDE}: size={self.size} needs {OFFICIAL}/")
        x, meta = read_sheet(picture, facts, SIDE)
        pool = Samples(x, meta.column("labels", KINDS))
        classes = meta.texts("classes")
        if len(classes) != KINDS:
            raise CorruptData(facts, f"classes should name {KINDS} kinds, it names {len(classes)}")
        kept, held = carve(pool.y, derive(0, "tinyimagenet", "test"))
        return Loaded(pool[kept], pool[held], classes)

    def _read_folders(self, root: Path, answers: Path, words: Path) -> Loaded:
        train, codes = by_folder(root / "train")
        # A line of the answers is a file, a code, and a box; one of the words is a code and its names.
        names = dict(line[:2] for line in _lines(words, 2))
        rows = [line[:2] for line in _lines(answers, 2)]
        paths = [root / "val" / "images" / file for file, _ in rows]
        wrong = [
            file for (file, code), path in zip(rows, paths, strict=True) if code not in codes or not path.is_file()
        ]
        if wrong:
            raise CorruptData(answers, f"{wrong[0]} is not there, or of a kind that the training part has not")
        test = Listing(paths, torch.tensor([codes.index(code) for _, code in rows]))
        classes = tuple(names.get(code, code) for code in codes)
        return Loaded(*decode(train[self.keep(train.y)], test, self.size), classes)


def _lines(path: Path, least: int) -> list[list[str]]:
    lines = [line.split("\t") for line in path.read_text("utf-8", errors="replace").splitlines() if line]
    if not lines or min(map(len, lines)) < least:
        raise CorruptData(path, f"its lines should have {least} or more fields, separated by tabs")
    return lines
