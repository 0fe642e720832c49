"""Your own faces: a folder of pictures and a table of what is known about each."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ..core.seeds import derive
from .base import About, Loaded, MissingData, Source, carve
from .broken import sound
from .csv_columns import read_columns
from .files import own_file, own_folder
from .image_files import Listing, Size, check_size, decode
from .spaced_lists import has_count, read_attributes


@dataclass(frozen=True, repr=False)
class Faces(Source):
    """Your own faces: pictures in path/, a .csv table of file names, target and attributes (or a list as CelebA's).

    The first column of the table names the pictures. `target` is the column to learn, `attributes` are columns that
    must not leak, `identity` is the column that says who is shown. Two values -1 and 1 become 0 and 1, texts are
    numbered in the order of the alphabet. Each picture is cut to its central square and resized to `size` (bilinear),
    or to `size=(height, width)`. A tenth of every class is set aside for testing. Pictures that the table does not
    name are left alone.
    """

    about: ClassVar[About] = About(
        name="faces of one's own",
        licence="that of the set",
        origin="A folder of pictures and a table whose first column names them.",
    )

    path: str
    table: str
    target: str
    attributes: tuple[str, ...] = ()
    identity: str | None = None
    size: Size = 64
    skip_broken: bool = False  # leave out pictures that do not decode, and say how many
    limit: int | None = None
    augment: str = ""  # type: ignore[misc]  # a class variable elsewhere

    def __post_init__(self) -> None:
        super().__post_init__()
        check_size(self.size)
        check_attributes(self.attributes)

    def read(self, folder: Path | None) -> Loaded:
        root, path = own_folder(folder, self.path), own_file(folder, self.table)
        table = read_attributes(path) if has_count(path) else read_columns(path)
        y, classes = table.classes(self.target)
        s = {name: table.attribute(name) for name in self.attributes}
        who = None if self.identity is None else table.classes(self.identity)[0]
        paths = pictures_of(root, table.column(table.names[0]), path)
        pool, notes = sound(Listing(paths, y, s, who), self.skip_broken)
        kept, held = carve(pool.y, derive(0, "faces", "test"))
        train = pool[kept]
        return Loaded(*decode(train[self.keep(train.y)], pool[held], self.size), classes, notes=notes)


def pictures_of(root: Path, names: Sequence[str], table: Path) -> list[Path]:
    """Where the pictures are that a table names."""
    paths = [root / name for name in names]
    if missing := [path for path in paths if not path.is_file()]:
        raise MissingData(
            f"{len(missing)} of the {len(paths)} pictures that {table} names are not in {root}, the first "
            f"{missing[0].name}: put them there, or take their rows out"
        )
    return paths


def check_attributes(names: object) -> None:
    if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"attributes is a tuple of column names, e.g. ('Male',); got {names!r}")
