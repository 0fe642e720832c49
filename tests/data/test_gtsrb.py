import numpy as np
import pytest
import torch

from cutlayer.data import GTSRB
from cutlayer.data.base import CorruptData, MissingData
from cutlayer.data.gtsrb import CLASSES

RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.integers(0, 256, (60, 3, 32, 32), dtype=np.uint8)
LABELS = [number % 43 for number in range(60)]


def test_the_43_signs_have_names_in_the_official_order():
    assert len(CLASSES) == len(set(CLASSES)) == 43
    # Numbers of the benchmark's own list.
    for number, name in ((0, "speed limit 20"), (6, "end of speed limit 80"), (8, "speed limit 120"), (14, "stop")):
        assert CLASSES[number] == name
    assert CLASSES[12:14] == ("priority road", "give way")
    assert CLASSES[17:19] == ("no entry", "danger")
    assert CLASSES[32:36] == ("end of all limits", "turn right", "turn left", "straight on")
    assert CLASSES[40] == "roundabout"


def test_sheets_read_back(tmp_path, save_sheet):
    save_sheet(tmp_path / "gtsrb32" / "train.jpg", IMAGES, 7, labels=LABELS)
    save_sheet(tmp_path / "gtsrb32" / "test.jpg", IMAGES[::-1], 10, labels=LABELS[::-1])
    loaded = GTSRB().load(tmp_path)
    assert torch.equal(loaded.train.x, torch.from_numpy(IMAGES))
    assert torch.equal(loaded.test.x, torch.from_numpy(IMAGES).flip(0))
    assert loaded.train.y.tolist() == LABELS
    assert loaded.test.y.tolist() == LABELS[::-1]


def official(root, save_picture, training="GTSRB/Final_Training/Images", answers="GTSRB/GT-final_test.csv"):
    """Three signs of each class to learn and one of each second class to test on, in three sizes."""
    for number in range(43):
        for track, side in enumerate((32, 40, 64)):
            pixels = np.full((side, side, 3), number, np.uint8)
            save_picture(root / training / f"{number:05d}" / f"00000_{track:05d}.ppm", pixels)
        (root / training / f"{number:05d}" / f"GT-{number:05d}.csv").write_text("Filename;ClassId\n")
    lines = ["Filename;Width;Height;Roi.X1;Roi.Y1;Roi.X2;Roi.Y2;ClassId"]
    for number in range(0, 43, 2):
        save_picture(root / "GTSRB/Final_Test/Images" / f"{number:05d}.ppm", np.full((50, 48, 3), number, np.uint8))
        lines.append(f"{number:05d}.ppm;48;50;5;5;40;40;{number}")
    (root / answers).write_text("\r\n".join(lines))


@pytest.mark.parametrize("training", ["GTSRB/Final_Training/Images", "GTSRB/Training"])
@pytest.mark.parametrize(
    "answers", ["GTSRB/GT-final_test.csv", "GT-final_test.csv", "GTSRB/Final_Test/Images/GT-final_test.csv"]
)
def test_the_folders_of_the_benchmark_are_read(tmp_path, save_picture, training, answers):
    official(tmp_path, save_picture, training, answers)
    loaded = GTSRB().load(tmp_path)
    assert loaded.train.x.shape == (129, 3, 32, 32)
    assert loaded.train.y.bincount().tolist() == [3] * 43
    assert loaded.test.y.tolist() == list(range(0, 43, 2))
    for samples in (loaded.train, loaded.test):
        assert torch.equal(samples.x.flatten(1).long(), samples.y[:, None].expand(-1, 3072))


def test_a_limit_leaves_the_other_folders_unread(tmp_path, save_picture):
    official(tmp_path, save_picture)
    (tmp_path / "GTSRB/Final_Training/Images/00000/broken.ppm").write_bytes(b"")
    with pytest.raises(CorruptData, match=r"broken\.ppm is not usable"):
        GTSRB().load(tmp_path)
    loaded = GTSRB(limit=43).load(tmp_path)
    assert loaded.train.y.tolist() == list(range(43))
    assert len(loaded.test) == 22


def test_sheets_come_first_where_both_lie(tmp_path, save_picture, save_sheet):
    official(tmp_path, save_picture)
    for name in ("train", "test"):
        save_sheet(tmp_path / "gtsrb32" / f"{name}.jpg", IMAGES, 7, labels=LABELS)
    assert len(GTSRB().load(tmp_path).train) == 60


def test_what_is_missing_is_named(tmp_path, save_picture):
    with pytest.raises(MissingData, match=r"there is no gtsrb32/train\.jpg .*GTSRB_Final_Training_Images"):
        GTSRB().load(tmp_path)
    official(tmp_path, save_picture)
    (tmp_path / "GTSRB/Final_Test/Images/00002.ppm").unlink()
    with pytest.raises(CorruptData, match=r"it names 1 pictures that are not there, the first .*00002\.ppm"):
        GTSRB().load(tmp_path)
    (tmp_path / "GTSRB/GT-final_test.csv").unlink()
    with pytest.raises(MissingData, match=r"there is no GTSRB/GT-final_test\.csv"):
        GTSRB().load(tmp_path)
