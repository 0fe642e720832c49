"""GTSRB: traffic signs of 43 kinds, from contact sheets or the benchmark's own folders."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from .base import About, CorruptData, Loaded, Samples, Source, find
from .csv_columns import read_columns
from .files import home
from .image_files import Listing, decode
from .image_folder import by_folder
from .sheets import read_sheet

SIDE = 32
CLASSES = (
    *(f"speed limit {speed}" for speed in (20, 30, 50, 60, 70, 80)),
    "end of speed limit 80",
    *(f"speed limit {speed}" for speed in (100, 120)),
    *("no passing", "no passing for lorries", "right of way at the crossing", "priority road", "give way", "stop"),
    *("no vehicles", "no lorries", "no entry", "danger", "bend to the left", "bend to the right", "double bend"),
    *("bumpy road", "slippery road", "road narrows on the right", "road works", "traffic lights", "pedestrians"),
    *("children", "bicycles", "ice or snow", "wild animals", "end of all limits", "turn right", "turn left"),
    *("straight on", "straight on or right", "straight on or left", "keep right", "keep left", "roundabout"),
    *("end of no passing", "end of no passing for lorries"),
)
SHEETS = ("gtsrb32/train.jpg", "gtsrb32/train.json", "gtsrb32/test.jpg", "gtsrb32/test.json")
# The training folders of the full set and of the earlier, smaller one, and where the answers are unpacked.
TRAINING = ("GTSRB/Final_Training/Images/", "GTSRB/Training/")
TESTING = "GTSRB/Final_Test/Images/"
ANSWERS = ("GTSRB/GT-final_test.csv", "GT-final_test.csv", f"{TESTING}GT-final_test.csv")


@dataclass(frozen=True, repr=False)
class GTSRB(Source):
    """Traffic signs, 3x32x32, 2,580 + 860, 43 classes; sheets in gtsrb32/, or the benchmark's folders in GTSRB/.

    The benchmark's folders hold 39,209 + 12,630 signs of many sizes: each is cut to its central square and resized.
    """

    about: ClassVar[About] = About(
        name="German Traffic Sign Recognition Benchmark",
        licence="none stated with the files; public for research (Stallkamp et al., 2012)",
        origin=(
            "Or GTSRB/Final_Training/Images/, GTSRB/Final_Test/Images/ and GTSRB/GT-final_test.csv, out of "
            "GTSRB_Final_Training_Images.zip, GTSRB_Final_Test_Images.zip and GTSRB_Final_Test_GT.zip at "
            "benchmark.ini.rub.de."
        ),
        shape=(3, SIDE, SIDE),
        classes=len(CLASSES),
        sizes=((2_580, 860), (39_209, 12_630), (26_640, 12_630)),
        forms=(SHEETS, *((training, TESTING, answers) for training in TRAINING for answers in ANSWERS)),
    )

    limit: int | None = None
    augment: str = ""  # type: ignore[misc]  # a class variable elsewhere
    mirrors: ClassVar[bool] = False  # "keep left" would be "keep right"

    def read(self, folder: Path | None) -> Loaded:
        root = home(folder)
        folders = [root / name for name in TRAINING if (root / name).is_dir()]
        if folders and not (root / SHEETS[0]).is_file():
            return self._read_folders(folders[0], root / TESTING, find(folder, *ANSWERS, origin=self.about.origin))
        files = [find(folder, name, origin=self.about.origin) for name in SHEETS]
        return Loaded(_read_sheet(*files[:2]), _read_sheet(*files[2:]), CLASSES)

    def _read_folders(self, training: Path, testing: Path, answers: Path) -> Loaded:
        train, _ = by_folder(training, [f"{number:05d}" for number in range(len(CLASSES))])
        table = read_columns(answers)
        paths = [testing / name for name in table.column("Filename")]
        if missing := [path for path in paths if not path.is_file()]:
            raise CorruptData(answers, f"it names {len(missing)} pictures that are not there, the first {missing[0]}")
        test = Listing(paths, table.whole("ClassId"))
        return Loaded(*decode(train[self.keep(train.y)], test, SIDE), CLASSES)


def _read_sheet(picture: Path, words: Path) -> Samples:
    x, meta = read_sheet(picture, words, SIDE)
    return Samples(x, meta.column("labels", len(CLASSES)))
