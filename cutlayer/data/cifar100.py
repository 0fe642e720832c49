"""CIFAR-100: 60,000 small photographs in 100 classes of 20 kinds, from the official binary or pickled files."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from .base import About, Loaded, Samples, Source, find
from .cifar_forms import SHAPE, read_pickled, read_records

HOMES = ("cifar100/{}.bin", "cifar-100-binary/{}.bin", "cifar-100-python/{}")
COARSE_NAMES = (
    "aquatic_mammals fish flowers food_containers fruit_and_vegetables household_electrical_devices "
    "household_furniture insects large_carnivores large_man-made_outdoor_things large_natural_outdoor_scenes "
    "large_omnivores_and_herbivores medium_mammals non-insect_invertebrates people reptiles small_mammals trees "
    "vehicles_1 vehicles_2"
)
FINE_NAMES = (
    "apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can "
    "castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin "
    "elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster "
    "man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck "
    "pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk "
    "skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger "
    "tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm"
)
COARSE, FINE = tuple(COARSE_NAMES.split()), tuple(FINE_NAMES.split())


@dataclass(frozen=True, repr=False)
class CIFAR100(Source):
    """Photographs, 3x32x32, 50,000 + 10,000, 100 classes, or their 20 kinds with fine=False; .bin or pickled.

    The files lie in cifar100/, cifar-100-binary/ or cifar-100-python/.
    """

    about: ClassVar[About] = About(
        name="CIFAR-100",
        licence="none stated by its authors (Krizhevsky, 2009)",
        origin=(
            "The files are those of cifar-100-binary.tar.gz or cifar-100-python.tar.gz at "
            "www.cs.toronto.edu/~kriz/cifar.html; the pickled ones are read without running what is in them."
        ),
        shape=SHAPE,
        classes=100,
        sizes=((50_000, 10_000),),
        forms=tuple(tuple(place.format(name) for name in ("train", "test")) for place in HOMES),
        md5={"train": "16019d7e3df5f24257cddd939b257f8d", "test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
    )

    fine: bool = True
    limit: int | None = None
    augment: str = ""  # type: ignore[misc]  # a class variable elsewhere

    def read(self, folder: Path | None) -> Loaded:
        # Both are found before either is read, so a missing test file is reported at once.
        train, test = (find(folder, *self.about.places(at), origin=self.about.origin) for at in (0, 1))
        return Loaded(
            train=read_file(train, 50_000, self.fine),
            test=read_file(test, 10_000, self.fine),
            classes=FINE if self.fine else COARSE,
        )


def read_file(path: Path, count: int, fine: bool) -> Samples:
    """`count` images with their class, or the kind their class belongs to."""
    x, y = np.empty((count, *SHAPE), np.uint8), np.empty(count, np.uint8)
    if path.suffix == ".bin":
        read_records(path, x, y, at=int(fine), bytes_before=2)
    else:
        read_pickled(path, x, y, "fine_labels" if fine else "coarse_labels")
    return Samples(torch.from_numpy(x), torch.from_numpy(y).long())
