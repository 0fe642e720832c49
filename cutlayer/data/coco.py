"""COCO: photographs with outlines of things, read as a class for every pixel."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from .base import About, CorruptData, Loaded, Samples, Source, find
from .broken import sound
from .files import home
from .image_files import Frame, Listing, check_size
from .json_stream import read_lists
from .masks import CLASSES, with_maps
from .outlines import Drawn, Outlines, Packed
from .paths import Paths

ROOT = "coco"
ANNOTATIONS = tuple(f"{ROOT}/annotations/instances_{part}2017.json" for part in ("train", "val"))
PICTURES = tuple(f"{ROOT}/{part}2017/" for part in ("train", "val"))
# What COCO calls the classes of PASCAL VOC, where it has another name for them.
OTHER_NAMES = {
    "aeroplane": "airplane",
    "diningtable": "dining table",
    "motorbike": "motorcycle",
    "pottedplant": "potted plant",
    "sofa": "couch",
    "tvmonitor": "tv",
}


class _Part(NamedTuple):
    """One file of outlines: pictures with width and height, and how much of each the things fill."""

    names: Paths
    sizes: np.ndarray
    outlines: Packed
    areas: np.ndarray


@dataclass(frozen=True, repr=False)
class COCO(Source):
    """Photographs for segmentation, 3x513x513, 118,287 + 5,000, 21 classes of VOC a pixel; folders in coco/.

    instances_train2017.json and instances_val2017.json in annotations/, pictures in train2017/ and val2017/; val is
    the test set. Things of other classes are background, and pixels of two things have no class. Training pictures in
    which the classes fill fewer than `least` pixels are left out (torchvision's recipe: 1001). Pictures and maps are
    cut to their central square and resized alike.
    """

    about: ClassVar[About] = About(
        name="COCO 2017 segmentation, classes of PASCAL VOC",
        licence="annotations CC BY 4.0; the photographs are those of Flickr's users, under Flickr's terms",
        origin="The files: train2017.zip, val2017.zip and annotations_trainval2017.zip at cocodataset.org.",
        shape=(3, 513, 513),
        classes=len(CLASSES),
        sizes=((118_287, 5_000),),
        forms=((*ANNOTATIONS, *PICTURES),),
    )

    size: int = 513
    least: int = 0
    skip_broken: bool = False  # leave out pictures that do not decode, and say how many
    limit: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_size(self.size)
        if type(self.least) is not int or self.least < 0:
            raise ValueError(f"least is how many pixels the classes fill in a training picture; got {self.least!r}")

    def read(self, folder: Path | None) -> Loaded:
        files = [find(folder, name, origin=self.about.origin) for name in ANNOTATIONS]
        frame, notes, sets = Frame("RGB", self.size, self.size), list[str](), []
        for place, (path, pictures) in enumerate(zip(files, PICTURES, strict=True)):
            part = _read(path)
            rows = torch.from_numpy(np.flatnonzero(part.areas >= (self.least if place == 0 else 0)))
            if not len(rows):
                raise CorruptData(path, f"the classes fill least={self.least} pixels in none of its pictures")
            here = Paths.of(home(folder) / pictures / name.name for name in part.names.at(rows))
            if lost := [one for one in here if not one.is_file()]:
                raise CorruptData(path, f"it names {len(lost)} pictures that are not there, the first {lost[0]}")
            kept, told = sound(Listing(here, rows), self.skip_broken)
            kept = kept[self.keep(torch.zeros(len(kept.y)))] if place == 0 else kept
            notes += told
            maps = Drawn(part.outlines, kept.y, kept.paths, part.sizes[kept.y.numpy()], frame)
            sets.append((kept.paths, maps))
        train, test = (Samples(*pair) for pair in with_maps(sets, frame))
        return Loaded(train, test, CLASSES, notes=tuple(notes))


def _read(path: Path) -> _Part:
    names, sizes, number = list[str](), list[tuple[int, int]](), dict[int, int]()
    classes, outlines, later = dict[int, int](), Outlines(), list[tuple[int, int, float]]()
    wanted = {OTHER_NAMES.get(name, name): label for label, name in enumerate(CLASSES) if label}

    def picture(entry: Mapping[str, Any]) -> None:
        number[entry["id"]] = len(names)
        names.append(Path(entry["file_name"]).name)
        sizes.append((entry["width"], entry["height"]))

    def category(entry: Mapping[str, Any]) -> None:
        if entry["name"] in wanted:
            classes[entry["id"]] = wanted[entry["name"]]

    def thing(entry: Mapping[str, Any]) -> None:
        if (label := classes.get(entry["category_id"])) is not None:
            of = number[entry["image_id"]]
            outlines.add(of, len(later), label, entry["segmentation"])
            later.append((of, label, entry["area"]))

    # Categories come last in the official files, and are needed first.
    read_lists(path, {"categories": category, "images": picture})
    if lost := sorted(set(wanted.values()) - set(classes.values())):
        raise CorruptData(path, f"its categories lack {CLASSES[lost[0]]!r}")
    read_lists(path, {"annotations": thing})
    areas = np.zeros(len(names))
    for of, _, area in later:
        areas[of] += area
    return _Part(Paths.of(names), np.asarray(sizes, np.int64).reshape(-1, 2), outlines.packed(len(names)), areas)
