"""Your own pictures: a folder for each class."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from ..core.seeds import derive
from .base import About, Loaded, Source, carve
from .broken import sound
from .files import own_folder
from .image_files import SUFFIXES, Listing, Size, check_size, decode
from .paths import Paths


@dataclass(frozen=True, repr=False)
class ImageFolder(Source):
    """Your own pictures, one folder a class, in path/ or in path/train/ and path/test/ (or val/); size resizes.

    The classes are the folders in the order of their names; pictures may lie deeper inside. With `size` each picture
    is cut to its central square and resized (bilinear); without it all must have one size. Grey pictures alone stay
    grey. Without a test folder a tenth of every class is set aside. A picture that does not decode is an error;
    with `skip_broken` all are decoded once beforehand, and it is left out and counted.
    """

    about: ClassVar[About] = About(
        name="pictures of one's own",
        licence="yours",
        origin="One folder a class, of .jpg, .png, .webp, .bmp or .ppm.",
    )

    path: str
    size: Size | None = None
    skip_broken: bool = False
    limit: int | None = None
    augment: str = ""  # type: ignore[misc]  # a class variable elsewhere

    def __post_init__(self) -> None:
        super().__post_init__()
        check_size(self.size)

    def read(self, folder: Path | None) -> Loaded:
        root = own_folder(folder, self.path)
        held = [root / name for name in ("test", "val") if (root / name).is_dir()]
        if not (root / "train").is_dir():
            if held:
                raise ValueError(f"{root} has {held[0].name}/ but no train/: put the training classes there")
            pool, classes = by_folder(root)
            pool, notes = sound(pool, self.skip_broken)
            kept, left = carve(pool.y, derive(0, "folder", "test"))
            train, test = pool[kept], pool[left]
        else:
            train, classes = by_folder(root / "train")
            train, notes = sound(train, self.skip_broken)
            if held:
                test, more = sound(by_folder(held[0], classes)[0], self.skip_broken)
                notes += more
            else:
                kept, left = carve(train.y, derive(0, "folder", "test"))
                train, test = train[kept], train[left]
        return Loaded(*decode(train[self.keep(train.y)], test, self.size), classes, notes=notes)


def by_folder(root: Path, classes: Sequence[str] | None = None) -> tuple[Listing, tuple[str, ...]]:
    """The pictures below `root`, labelled by its folders; `classes` are those there may be, where they are known."""
    found = sorted(path.name for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not found:
        raise ValueError(
            f"{root} has no folders: put the pictures of each class in one of their own, e.g. cat/1.png; an "
            f"attacker's need no classes: Unlabelled({str(root)!r}), nor do those that `cutlayer predict` takes"
        )
    classes = tuple(found) if classes is None else tuple(classes)
    if unknown := sorted(set(found) - set(classes)):
        raise ValueError(f"{root} has a folder {unknown[0]!r}, which is none of the classes {', '.join(classes)}")
    paths: list[Paths] = []
    labels: list[Tensor] = []
    for name in found:
        inside = sorted(path for path in (root / name).rglob("[!.]*") if path.suffix.lower() in SUFFIXES)
        if not inside:
            raise ValueError(f"{root / name} holds no picture ({', '.join(SUFFIXES)}): fill the class or remove it")
        paths.append(Paths.of(inside))
        labels.append(torch.full((len(inside),), classes.index(name)))
    return Listing(Paths.joined(paths), torch.cat(labels)), classes
