"""UTKFace: faces of adults with age, gender and race, from contact sheets."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch

from .base import About, Loaded, Samples, Source, distinct, find
from .sheets import read_sheet

SIDE, OLDEST = 64, 120
AGES = (30, 40, 50, 60)  # where the next age group begins
TARGETS = {
    "gender": ("male", "female"),
    "race": ("White", "Black", "Asian", "Indian", "Others"),
    "age_group": ("under 30", "30 to 39", "40 to 49", "50 to 59", "60 and over"),
}
FILES = ("utkface64/train.jpg", "utkface64/train.json", "utkface64/test.jpg", "utkface64/test.json")


@dataclass(frozen=True, repr=False)
class UTKFace(Source):
    """Faces, 3x64x64, 3,200 + 800; target gender, race or age_group; sheets in utkface64/; s: age, gender, race.

    Ages are in years. The labels are estimates taken from file names. Nobody is named, so there are no identities.
    Some thirty pictures are there twice, even with other labels: `distinct=True` leaves the copies out of the
    training part, as an audit needs it.
    """

    about: ClassVar[About] = About(
        name="UTKFace (adults)",
        licence="research only, not commercial; real people: keep their faces out of public artefacts",
        origin="For the original files, write their facts into a table and use Faces.",
        shape=(3, SIDE, SIDE),
        classes=2,
        sizes=((3_200, 800),),
        forms=(FILES,),
    )

    target: str = "gender"
    distinct: bool = False
    limit: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.target not in TARGETS:
            raise ValueError(f"target is what is learnt, one of {', '.join(TARGETS)}; got {self.target!r}")

    def read(self, folder: Path | None) -> Loaded:
        files = [find(folder, name, origin=self.about.origin) for name in FILES]
        loaded = Loaded(self._samples(*files[:2]), self._samples(*files[2:]), TARGETS[self.target])
        return distinct(loaded) if self.distinct else loaded

    def _samples(self, picture: Path, words: Path) -> Samples:
        x, meta = read_sheet(picture, words, SIDE)
        s = {
            "age": meta.column("age", OLDEST),
            "gender": meta.column("gender", len(TARGETS["gender"])),
            "race": meta.column("race", len(TARGETS["race"])),
        }
        y = s[self.target] if self.target in s else torch.bucketize(s["age"], torch.tensor(AGES), right=True)
        return Samples(x, y, s)
