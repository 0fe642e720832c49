import numpy as np
import pytest
import torch

from cutlayer.data import UTKFace
from cutlayer.data.base import CorruptData, MissingData

IMAGES = np.random.default_rng(0).integers(0, 256, (10, 3, 64, 64), dtype=np.uint8)
FACTS = {
    "age": [18, 29, 30, 39, 40, 49, 50, 59, 60, 105],
    "gender": [0, 1, 0, 1, 0, 1, 0, 1, 1, 1],
    "race": [0, 1, 2, 3, 4, 4, 3, 2, 1, 0],
}


@pytest.fixture
def folder(tmp_path, save_sheet):
    for name in ("train", "test"):
        save_sheet(tmp_path / "utkface64" / f"{name}.jpg", IMAGES, 5, **FACTS)
    return tmp_path


@pytest.mark.parametrize("target", ["gender", "race", "age_group"])
def test_the_target_is_chosen_and_all_facts_stay_with_the_picture(folder, target):
    loaded = UTKFace(target=target).load(folder)
    assert torch.equal(loaded.train.x, torch.from_numpy(IMAGES))
    assert {name: values.tolist() for name, values in loaded.test.s.items()} == FACTS
    assert loaded.train.identity is None
    wanted = FACTS | {"age_group": [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]}
    assert loaded.train.y.tolist() == wanted[target]
    assert len(loaded.classes) == {"gender": 2, "race": 5, "age_group": 5}[target]


def test_the_classes_have_names(folder):
    assert UTKFace().load(folder).classes == ("male", "female")
    assert UTKFace(target="race").load(folder).classes[2] == "Asian"
    assert UTKFace(target="age_group").load(folder).classes[4] == "60 and over"


def test_copies_are_left_out_when_asked(tmp_path, save_sheet):
    twice = np.concatenate([IMAGES[:4], IMAGES[:4], IMAGES[8:]])
    for name, images in (("train", twice), ("test", 255 - IMAGES)):
        save_sheet(tmp_path / "utkface64" / f"{name}.jpg", images, 5, **FACTS)
    assert len(UTKFace().load(tmp_path).train) == 10
    assert UTKFace(distinct=True).load(tmp_path).train.s["age"].tolist() == [18, 29, 30, 39, 60, 105]


def test_an_unknown_target_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match="one of gender, race, age_group; got 'age'"):
        UTKFace(target="age")


@pytest.mark.parametrize(("fact", "value", "most"), [("age", 120, 119), ("gender", 2, 1), ("race", 5, 4)])
def test_a_fact_out_of_range_is_refused(folder, save_sheet, fact, value, most):
    facts = FACTS | {fact: [value, *FACTS[fact][1:]]}
    save_sheet(folder / "utkface64" / "test.jpg", IMAGES, 5, **facts)
    with pytest.raises(CorruptData, match=rf"{fact} at row 0 should be 0\.\.{most}, it is {value}"):
        UTKFace().load(folder)


def test_a_missing_file_is_named(folder):
    (folder / "utkface64" / "test.json").unlink()
    with pytest.raises(MissingData, match=r"there is no utkface64/test\.json .*aligned"):
        UTKFace().load(folder)


def test_pictures_of_the_sheets_get_smaller_by_averages(folder):
    loaded = UTKFace(size=32).load(folder)
    assert loaded.train.x.shape == (10, 3, 32, 32) and loaded.train.x.dtype == torch.uint8
    of_four = torch.from_numpy(IMAGES).double().unflatten(2, (32, 2)).unflatten(4, (32, 2)).mean((3, 5))
    assert (loaded.train.x.double() - of_four).abs().max() <= 0.5


@pytest.mark.parametrize("size", [48, 128, (32, 32)])
def test_a_size_that_needs_the_folder_is_refused(folder, size):
    with pytest.raises(ValueError, match=r"holds pictures of 64x64, .* take a size that divides 64"):
        UTKFace(size=size).load(folder)
