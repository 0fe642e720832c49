"""PASCAL VOC: photographs with a class for every pixel, from the official folders."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch

from .base import About, CorruptData, Loaded, Samples, Source, find
from .broken import sound
from .files import home
from .image_files import Frame, Listing, check_size
from .masks import CLASSES, Masks, with_maps

ROOT = "VOCdevkit/VOC2012"
LISTS = f"{ROOT}/ImageSets/Segmentation"
PICTURES, MASKS = f"{ROOT}/JPEGImages/", f"{ROOT}/SegmentationClass/"


@dataclass(frozen=True, repr=False)
class VOC(Source):
    """Photographs for segmentation, 3x513x513, 1,464 + 1,449, 21 classes a pixel; the folders in VOCdevkit/VOC2012/.

    Pictures and masks are cut to their central square and resized alike, masks without a mixture of classes. Pixels
    of the value 255, the outlines of things, have no class. `train` names another list of ImageSets/Segmentation and
    `masks` another folder, as for the 10,582 of "trainaug" with "SegmentationClassAug". The list val is the test set.
    """

    about: ClassVar[About] = About(
        name="PASCAL VOC 2012 segmentation",
        licence="the photographs are those of Flickr's users, under Flickr's terms",
        origin="The folders are those of VOCtrainval_11-May-2012.tar at host.robots.ox.ac.uk/pascal/VOC.",
        shape=(3, 513, 513),
        classes=len(CLASSES),
        sizes=((1_464, 1_449), (10_582, 1_449)),
        forms=((f"{LISTS}/train.txt", f"{LISTS}/val.txt", PICTURES, MASKS),),
    )

    size: int = 513
    train: str = "train"
    masks: str = "SegmentationClass"
    skip_broken: bool = False  # leave out pictures that do not decode, and say how many
    limit: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_size(self.size)

    def read(self, folder: Path | None) -> Loaded:
        lists = [find(folder, f"{LISTS}/{name}.txt", origin=self.about.origin) for name in (self.train, "val")]
        root, frame, notes = home(folder) / ROOT, Frame("RGB", self.size, self.size), list[str]()
        listed = []
        for place, path in enumerate(lists):
            names = path.read_text().split()
            if not names:
                raise CorruptData(path, "it names no picture")
            kept, told = sound(Listing(self._pictures(root, path, names), torch.arange(len(names))), self.skip_broken)
            kept = kept[self.keep(torch.zeros(len(kept.y)))] if place == 0 else kept
            notes += told
            listed.append((kept.paths, [root / self.masks / f"{names[row]}.png" for row in kept.y.tolist()]))
        pairs = with_maps([(x, Masks(y, x, frame, len(CLASSES))) for x, y in listed], frame)
        train, test = (Samples(*pair) for pair in pairs)
        return Loaded(train, test, CLASSES, notes=tuple(notes))

    def _pictures(self, root: Path, listing: Path, names: list[str]) -> list[Path]:
        """Of every name of a list; a picture or mask that is not there is named."""
        for where, end in (("JPEGImages", "jpg"), (self.masks, "png")):
            lost = [name for name in names if not (root / where / f"{name}.{end}").is_file()]
            if lost:
                raise CorruptData(
                    listing, f"it names {len(lost)} pictures that {where}/ has no file of, the first {lost[0]}.{end}"
                )
        return [root / "JPEGImages" / f"{name}.jpg" for name in names]
