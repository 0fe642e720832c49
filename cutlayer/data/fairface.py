"""FairFace: faces with age, gender and race in seven groups, from its folders and label tables."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch

from .base import About, CorruptData, Loaded, Source, find
from .broken import sound
from .csv_columns import read_columns
from .faces import pictures_of
from .files import home
from .image_files import Listing, Size, check_size, decode

FOLDER = "fairface"
TABLES = ("fairface/fairface_label_train.csv", "fairface/fairface_label_val.csv")
FACTS = {
    "gender": ("Female", "Male"),
    "race": ("Black", "East Asian", "Indian", "Latino_Hispanic", "Middle Eastern", "Southeast Asian", "White"),
    "age": ("0-2", "3-9", "10-19", "20-29", "30-39", "40-49", "50-59", "60-69", "more than 70"),
}


@dataclass(frozen=True, repr=False)
class FairFace(Source):
    """Faces, 3x64x64, 86,744 + 10,954; target gender, race or age (a group); s: all three; folders in fairface/.

    The files are the official ones: fairface/train/, fairface/val/ and a label table for each. The validation part is
    the test set. Each picture is cut to its central square and resized to `size` (bilinear).
    """

    about: ClassVar[About] = About(
        name="FairFace",
        licence="CC BY 4.0; real people: keep their faces out of public artefacts",
        origin="Tables and pictures (either padding) are those of github.com/joojs/fairface.",
        shape=(3, 64, 64),
        classes=2,
        sizes=((86_744, 10_954),),
        forms=(("fairface/train/", "fairface/val/", *TABLES),),
    )

    target: str = "gender"
    size: Size = 64
    skip_broken: bool = False  # leave out pictures that do not decode, and say how many
    limit: int | None = None
    augment: str = ""  # type: ignore[misc]  # a class variable elsewhere

    def __post_init__(self) -> None:
        super().__post_init__()
        check_size(self.size)
        if self.target not in FACTS:
            raise ValueError(f"target is what is learnt, one of {', '.join(FACTS)}; got {self.target!r}")

    def read(self, folder: Path | None) -> Loaded:
        (train, told), (held, more) = (sound(self._listing(folder, name), self.skip_broken) for name in TABLES)
        return Loaded(*decode(train[self.keep(train.y)], held, self.size), FACTS[self.target], notes=told + more)

    def _listing(self, folder: Path | None, name: str) -> Listing:
        path = find(folder, name, origin=self.about.origin)
        table = read_columns(path)
        s = {}
        for fact, known in FACTS.items():
            texts = table.column(fact)
            if strange := sorted(set(texts) - set(known)):
                raise CorruptData(path, f"its {fact} {strange[0]!r} is none of {', '.join(known)}")
            s[fact] = torch.tensor([known.index(text) for text in texts])
        paths = pictures_of(home(folder) / FOLDER, table.column("file"), path)
        return Listing(paths, s[self.target], s)
