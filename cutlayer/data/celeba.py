"""CelebA: celebrities with forty attributes, identities and the official parts, from its own files."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from .base import About, CorruptData, Loaded, Source, find
from .broken import sound
from .faces import check_attributes, pictures_of
from .files import home
from .image_files import Listing, Size, check_size, decode
from .spaced_lists import read_attributes, read_pairs

FOLDER = "celeba/img_align_celeba/"
LISTS = ("celeba/list_attr_celeba.txt", "celeba/list_eval_partition.txt", "celeba/identity_CelebA.txt")
PARTS = {"train": 0, "valid": 1, "test": 2}  # numbers of list_eval_partition.txt


@dataclass(frozen=True, repr=False)
class CelebA(Source):
    """Celebrities, 3x64x64, 162,770 + 19,962; target and attributes are columns of its list; who: identities.

    The files are the official ones, in celeba/: img_align_celeba/, list_attr_celeba.txt, list_eval_partition.txt and
    identity_CelebA.txt. `held` is the official part that is tested on, "test" or "valid"; nobody is in two parts.
    `size=(218, 178)` leaves the aligned pictures as they are; a number cuts each to its central square and
    resizes it (bilinear). Pictures of parts that are not used stay unread.
    """

    about: ClassVar[About] = About(
        name="CelebA (aligned)",
        licence="research only, not commercial; real people: keep their faces out of public artefacts",
        origin="Lists and pictures (img_align_celeba.zip) are those of mmlab.ie.cuhk.edu.hk/projects/CelebA.html.",
        shape=(3, 64, 64),
        classes=2,
        sizes=((162_770, 19_962),),
        forms=((FOLDER, *LISTS),),
    )

    target: str = "Smiling"
    attributes: tuple[str, ...] = ("Male",)
    size: Size = 64
    held: str = "test"
    skip_broken: bool = False  # leave out pictures that do not decode, and say how many
    limit: int | None = None
    augment: str = ""  # type: ignore[misc]  # a class variable elsewhere

    def __post_init__(self) -> None:
        super().__post_init__()
        check_size(self.size)
        check_attributes(self.attributes)
        if self.held not in ("test", "valid"):
            raise ValueError(f"held is the official part that is tested on, 'test' or 'valid'; got {self.held!r}")

    def read(self, folder: Path | None) -> Loaded:
        facts, parts, who = (find(folder, name, origin=self.about.origin) for name in LISTS)
        table = read_attributes(facts)
        names = table.column(table.names[0])
        part, identity = (_numbers(path, word, names) for path, word in ((parts, "part"), (who, "identity")))
        y, classes = table.classes(self.target)
        s = {name: table.attribute(name) for name in self.attributes}
        sides, notes = list[Listing](), tuple[str, ...]()
        for chosen in ("train", self.held):
            rows = (part == PARTS[chosen]).nonzero().flatten()
            if not len(rows):
                raise CorruptData(parts, f"no picture is of the part {chosen!r} ({PARTS[chosen]})")
            if chosen == "train" and not self.skip_broken:  # pictures that are not drawn may be missing, too
                rows = rows[self.keep(y[rows])]
            of = {name: values[rows] for name, values in s.items()}
            paths = pictures_of(home(folder) / FOLDER, [names[row] for row in rows.tolist()], facts)
            side, told = sound(Listing(paths, y[rows], of, identity[rows]), self.skip_broken)
            sides.append(side)
            notes += told
        train, held = sides
        return Loaded(*decode(train[self.keep(train.y)], held, self.size), classes, notes=notes)


def _numbers(path: Path, what: str, names: list[str]) -> Tensor:
    """The numbers of a list for the pictures of another, in their order; official lists have the same order."""
    table = read_pairs(path, what)
    listed = table.column(table.names[0])
    numbers = table.whole(what)
    if listed == names:
        return numbers
    places = {name: place for place, name in enumerate(listed)}
    if missing := [name for name in names if name not in places]:
        raise CorruptData(path, f"it says nothing of {missing[0]}, as of {len(missing)} pictures of the other lists")
    return numbers[torch.tensor([places[name] for name in names])]
