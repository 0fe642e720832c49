import numpy as np
import pytest
import torch

from cutlayer.data import Faces
from cutlayer.data.base import CorruptData, MissingData, overlap
from cutlayer.data.partitions import ByIdentity

ROWS = 40


def celeba(number):
    return f"{number:06d}.jpg,{1 if number % 2 else -1},{1 if number % 3 else -1},{number // 4},{20 + number}"


@pytest.fixture
def folder(tmp_path, save_picture):
    """Forty faces of ten people, 8 wide and 10 high; every byte of a face is five times its number."""
    for number in range(ROWS):
        save_picture(tmp_path / "faces" / f"{number:06d}.jpg", np.full((10, 8, 3), 5 * number, np.uint8))
    lines = ["image_id,Smiling,Male,person,age", *map(celeba, range(ROWS))]
    (tmp_path / "list.csv").write_text("\n".join(lines))
    return tmp_path


def source(**changes):
    return Faces(**({"path": "faces", "table": "list.csv", "target": "Smiling", "size": 6} | changes))


def numbers(samples):
    return (samples.x.flatten(1).double().mean(1) / 5).round().long()


def test_pictures_target_attributes_and_identity_stay_together(folder):
    loaded = source(attributes=("Male", "age"), identity="person").load(folder)
    assert loaded.classes == ("not Smiling", "Smiling")
    assert loaded.train.x.shape == (36, 3, 6, 6)
    assert loaded.test.y.bincount().tolist() == [2, 2]
    together = torch.cat([numbers(loaded.train), numbers(loaded.test)])
    assert together.sort().values.tolist() == list(range(ROWS))
    for samples in (loaded.train, loaded.test):
        number = numbers(samples)
        assert torch.equal(samples.y, number % 2)
        assert torch.equal(samples.s["Male"], (number % 3 > 0).long())
        assert torch.equal(samples.s["age"], 20 + number)
        assert torch.equal(samples.identity, number // 4)
    assert overlap(loaded.train, loaded.test) == 0


def test_people_can_be_dealt_out_to_clients(folder):
    train = source(identity="person").load(folder).train
    people = [set(train.identity[rows].tolist()) for rows in ByIdentity().assign(train, 3, seed=0)]
    assert sum(map(len, people)) == 10 and len(set.union(*people)) == 10
    assert source().load(folder).train.identity is None


def test_numbers_and_texts_may_be_the_target(folder):
    (folder / "list.csv").write_text(
        "file,gender,race\n" + "".join(f"{n:06d}.jpg,{n % 2},{'ab'[n % 2]}\n" for n in range(20))
    )
    assert source(target="gender").load(folder).classes == ("0", "1")
    loaded = source(target="race", attributes=("race", "gender")).load(folder)
    assert loaded.classes == ("a", "b")
    assert torch.equal(loaded.train.s["race"], loaded.train.y)
    assert torch.equal(loaded.train.s["gender"], loaded.train.y)


def test_a_limit_keeps_classes_balanced_and_leaves_the_rest_unread(folder):
    loaded = source(limit=10).load(folder)
    assert loaded.train.y.bincount().tolist() == [5, 5]
    kept = {*numbers(loaded.train).tolist(), *numbers(loaded.test).tolist()}
    for number in set(range(ROWS)) - kept:
        (folder / "faces" / f"{number:06d}.jpg").write_bytes(b"")
    assert torch.equal(source(limit=10).load(folder).train.x, loaded.train.x)
    with pytest.raises(CorruptData, match=r"\.jpg is not usable"):
        source().load(folder)


@pytest.mark.parametrize("field", ["target", "identity", "attributes"])
def test_a_missing_column_is_named_with_those_there_are(folder, field):
    with pytest.raises(ValueError, match=r"no column 'smile'.* it has image_id, Smiling, Male, person, age"):
        source(**{field: ("smile",) if field == "attributes" else "smile"}).load(folder)


def test_missing_pictures_are_counted_and_the_first_is_named(folder):
    for number in (7, 3):
        (folder / "faces" / f"{number:06d}.jpg").unlink()
    with pytest.raises(
        MissingData, match=r"2 of the 40 pictures that .*list\.csv names are not in .*, the first 000003"
    ):
        source().load(folder)


def test_a_missing_folder_or_table_is_named(folder):
    with pytest.raises(MissingData, match="there is no folder nowhere"):
        source(path="nowhere").load(folder)
    with pytest.raises(MissingData, match=r"there is no other\.csv in"):
        source(table="other.csv").load(folder)


@pytest.mark.parametrize("names", ["Male", ["Male"], (1,)])
def test_attributes_are_a_tuple_of_names(names):
    with pytest.raises(ValueError, match=r"attributes is a tuple of column names, e\.g\. \('Male',\); got"):
        source(attributes=names)


def test_a_size_is_a_positive_whole_number():
    with pytest.raises(ValueError, match="size is the width"):
        source(size=0)
