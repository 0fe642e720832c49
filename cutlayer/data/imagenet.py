"""ImageNet: photographs of a thousand kinds of things, from folders named by synsets."""

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch

from .base import About, CorruptData, Loaded, MissingData, Source
from .broken import sound
from .files import home
from .image_files import Frame, Listing, check_size, framed
from .image_folder import by_folder

SIDE, KINDS = 224, 1000
ROOTS = ("imagenet", "ILSVRC/Data/CLS-LOC")  # as most people keep it, and as the challenge's archive unpacks
NAMES, INDEX, ANSWERS = "LOC_synset_mapping.txt", "imagenet_class_index.json", "LOC_val_solution.csv"
SHOWN = 3


@dataclass(frozen=True, repr=False)
class ImageNet(Source):
    """Photographs, 3x224x224, 1,281,167 + 50,000, 1,000 classes; folders of synsets in imagenet/train/ and val/.

    Or in ILSVRC/Data/CLS-LOC/, where val/ may be one folder with LOC_val_solution.csv. The validation part is the
    test set. Classes are in the order of their synsets, as published networks have them, and named by
    LOC_synset_mapping.txt or imagenet_class_index.json, if one is there. Each picture is cut to its central square,
    of which `crop` of the side is kept (0.875 is 224 of 256), and resized (bilinear).
    """

    about: ClassVar[About] = About(
        name="ImageNet (ILSVRC 2012)",
        licence="ImageNet's terms: research and education, not commercial",
        origin="The folders are those of ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar at image-net.org.",
        shape=(3, SIDE, SIDE),
        classes=KINDS,
        sizes=((1_281_167, 50_000),),
        forms=tuple((f"{root}/train/", f"{root}/val/") for root in ROOTS),
    )

    size: int = SIDE
    crop: float = 0.875
    skip_broken: bool = False  # leave out pictures that do not decode, and say how many
    limit: int | None = None
    augment: str = ""  # type: ignore[misc]  # a class variable elsewhere

    def __post_init__(self) -> None:
        super().__post_init__()
        check_size(self.size)
        if not 0 < self.crop <= 1:
            raise ValueError(
                f"crop is the share of the central square's side that is kept, in (0, 1]; got {self.crop}"
            )

    def read(self, folder: Path | None) -> Loaded:
        root = self._root(home(folder))
        train, codes = by_folder(root / "train")
        held = root / "val"
        if any(path.is_dir() for path in held.iterdir()):
            test, _ = by_folder(held, codes)
        else:
            test = _flat(held, _beside(root, ANSWERS), codes)
        present = set(test.y.unique().tolist())
        if lacking := [code for number, code in enumerate(codes) if number not in present]:
            raise CorruptData(
                held, f"it has no picture of {len(lacking)} of the {len(codes)} classes: {_few(lacking)}"
            )
        kept, told = sound(train, self.skip_broken)
        held_out, more = sound(test, self.skip_broken)
        frame = Frame("RGB", self.size, self.size, (1 - self.crop) / 2)
        both = framed(kept[self.keep(kept.y)], held_out, frame)
        return Loaded(*both, _named(root, codes), notes=told + more)

    def _root(self, folder: Path) -> Path:
        for name in ROOTS:
            if (folder / name / "train").is_dir():
                if not (folder / name / "val").is_dir():
                    raise MissingData(f"{folder / name} has train/ but no val/: put the validation pictures there")
                return folder / name
        raise MissingData(
            f"there is no {ROOTS[0]}/train/ in {folder.absolute()} (nor {ROOTS[1]}/train/): put the folders there, "
            "or point at the folder that holds them with --data-dir or the variable CUTLAYER_DATA. "
            f"{self.about.origin}"
        )


def _beside(root: Path, name: str) -> Path:
    """A list in the folder itself, or above it, where archives unpack it."""
    places = [root, *root.parents[:3]]
    for place in places:
        if (place / name).is_file():
            return place / name
    raise MissingData(f"{root / 'val'} has pictures but no class folders: put {name} into {root}, or sort them")


def _flat(folder: Path, answers: Path, codes: tuple[str, ...]) -> Listing:
    """Pictures of one folder, by a list of what is on each: a name, and a synset with boxes."""
    number = {code: place for place, code in enumerate(codes)}
    paths, labels = [], []
    with answers.open(newline="") as file:
        for row in csv.DictReader(file):
            name, code = row.get("ImageId"), (row.get("PredictionString") or "").partition(" ")[0]
            path = folder / f"{name}.JPEG"
            if name is None or code not in number or not path.is_file():
                raise CorruptData(answers, f"{name}.JPEG is not in val/, or {code!r} is no class of train/")
            paths.append(path)
            labels.append(number[code])
    if not paths:
        raise CorruptData(answers, "it names no picture")
    return Listing(paths, torch.tensor(labels))


def _named(root: Path, codes: tuple[str, ...]) -> tuple[str, ...]:
    """Classes by their first names, where a list tells them."""
    known: dict[str, str] = {}
    for place in (root, *root.parents[:3]):
        if (place / NAMES).is_file():
            lines = (line.partition(" ") for line in (place / NAMES).read_text("utf-8").splitlines())
            known = {code: names.partition(",")[0].strip() for code, _, names in lines}
        elif (place / INDEX).is_file():
            known = _index(place / INDEX)
        if known:
            break
    if known and (unknown := [code for code in codes if code not in known]):
        raise CorruptData(place, f"its list of classes does not name {len(unknown)} of train/: {_few(unknown)}")
    return tuple(known.get(code, code) for code in codes)


def _index(path: Path) -> dict[str, str]:
    try:
        return dict(json.loads(path.read_text("utf-8")).values())
    except (ValueError, AttributeError, TypeError) as error:
        raise CorruptData(path, "it should be an object of pairs: a synset and a name by class number") from error


def _few(names: list[str]) -> str:
    return ", ".join(names[:SHOWN]) + (", …" if len(names) > SHOWN else "")
