"""CelebA, FairFace, UTKFace's folder and pictures without classes, from small files in the official layouts."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from cutlayer.core.batch import Task
from cutlayer.data import FFHQ, CelebA, Faces, FairFace, ImageFolder, Unlabelled, UTKFace
from cutlayer.data.auxiliary import Auxiliary
from cutlayer.data.base import CorruptData, Loaded, MissingData, Samples, parts
from cutlayer.data.check import check

COUNT = 24
ATTRIBUTES = ("Male", "Smiling", "Young")


def grey(number, height=12, width=10):
    return np.full((height, width, 3), 10 * number, np.uint8)


def numbers(samples):
    return (samples.x.flatten(1).double().mean(1) / 10).round().long()


def listed(number):
    """1-based as in the official list: who smiles is odd, who is male a multiple of three."""
    return f"{number:06d}.jpg {1 if number % 3 == 0 else -1:2d} {1 if number % 2 else -1:2d}  1"


@pytest.fixture
def celeba(tmp_path, save_picture):
    """Twenty-four pictures of six people: sixteen to learn, four to validate, four to test."""
    root = tmp_path / "celeba"
    every = range(1, COUNT + 1)
    for number in every:
        save_picture(root / "img_align_celeba" / f"{number:06d}.jpg", grey(number))
    rows = "\n".join(map(listed, every))
    (root / "list_attr_celeba.txt").write_text(f"{COUNT}\n{' '.join(ATTRIBUTES)} \n{rows}\n")
    part = {number: 0 if number <= 16 else 1 if number <= 20 else 2 for number in every}
    (root / "list_eval_partition.txt").write_text("".join(f"{n:06d}.jpg {part[n]}\n" for n in every))
    (root / "identity_CelebA.txt").write_text("".join(f"{n:06d}.jpg {(n - 1) // 4 + 100}\n" for n in every))
    return tmp_path


def test_celeba_is_read_from_its_official_files(celeba):
    loaded = CelebA(size=8).load(celeba)
    assert loaded.classes == ("not Smiling", "Smiling")
    assert numbers(loaded.train).tolist() == list(range(1, 17))
    assert numbers(loaded.test).tolist() == list(range(21, 25))
    assert numbers(CelebA(size=8, held="valid").load(celeba).test).tolist() == list(range(17, 21))
    for samples in (loaded.train, loaded.test):
        number = numbers(samples)
        assert torch.equal(samples.y, number % 2)
        assert torch.equal(samples.s["Male"], (number % 3 == 0).long())
        assert torch.equal(samples.identity, (number - 1) // 4 + 100)


def test_sizes_may_be_rectangles_and_no_picture_is_stretched(celeba, save_picture):
    wide = np.zeros((12, 10, 3), np.uint8)
    wide[:, 5:] = 255
    save_picture(celeba / "celeba" / "img_align_celeba" / "000001.png", wide)
    (celeba / "celeba" / "img_align_celeba" / "000001.png").rename(
        celeba / "celeba" / "img_align_celeba" / "000001.jpg"
    )
    whole = CelebA(size=(12, 10)).load(celeba).train
    assert whole.x.shape[1:] == (3, 12, 10)
    assert torch.equal(whole.x[0], torch.from_numpy(wide).permute(2, 0, 1)), "as it is: nothing was resampled"
    assert CelebA(size=(6, 5)).load(celeba).train.x.shape[1:] == (3, 6, 5)
    assert CelebA(size=5).load(celeba).train.x.shape[1:] == (3, 5, 5)
    for size in (0, (8,), (8, 0), (8, 8, 8), "8"):
        with pytest.raises(
            ValueError, match=r"size is the width and height .*; got .*: give a number, or \(height, width\)"
        ):
            CelebA(size=size)


def test_a_limit_leaves_the_other_pictures_unread(celeba):
    loaded = CelebA(size=8, limit=4).load(celeba)
    assert loaded.train.y.bincount().tolist() == [2, 2] and len(loaded.test) == 4
    used = {*numbers(loaded.train).tolist(), *numbers(loaded.test).tolist()}
    for number in set(range(1, COUNT + 1)) - used:
        (celeba / "celeba" / "img_align_celeba" / f"{number:06d}.jpg").write_bytes(b"")
    assert torch.equal(CelebA(size=8, limit=4).load(celeba).train.x, loaded.train.x)
    with pytest.raises(CorruptData, match=r"img_align_celeba.0000\d\d\.jpg is not usable: not a picture"):
        CelebA(size=8).load(celeba)


def test_an_attribute_that_is_not_there_is_told_with_the_nearest(celeba):
    for wrong in (CelebA(target="smiling"), CelebA(attributes=("smiling",))):
        with pytest.raises(ValueError, match=r"no column 'smiling', did you mean 'Smiling'.* it has image_id, Male"):
            wrong.load(celeba)


@pytest.mark.parametrize("name", ["list_attr_celeba.txt", "list_eval_partition.txt", "identity_CelebA.txt"])
def test_a_missing_list_is_named(celeba, name):
    (celeba / "celeba" / name).unlink()
    with pytest.raises(MissingData, match=rf"there is no celeba/{name} .* mmlab"):
        CelebA().load(celeba)


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        (
            "list_attr_celeba.txt",
            lambda text: text.replace("24\n", "25\n", 1),
            "should list 25 pictures, it lists 24",
        ),
        ("list_attr_celeba.txt", lambda text: text.replace("24\n", "", 1), "should have the number of pictures"),
        ("list_attr_celeba.txt", lambda text: text.replace("000003.jpg  1", "000003.jpg"), "line 5 has 3 fields"),
        ("list_eval_partition.txt", lambda text: text.replace("000003.jpg 0\n", ""), "says nothing of 000003.jpg"),
        ("list_eval_partition.txt", lambda text: text.replace(" 2\n", " 1\n"), r"no picture is of the part 'test'"),
        ("identity_CelebA.txt", lambda text: "", "should list some pictures, it lists 0"),
    ],
)
def test_a_damaged_list_is_told_in_a_sentence(celeba, name, change, words):
    path = celeba / "celeba" / name
    path.write_text(change(path.read_text()))
    with pytest.raises(CorruptData, match=rf"{name} is not usable: .*{words}"):
        CelebA(size=8).load(celeba)


def test_lists_in_another_order_belong_together_by_name(celeba):
    path = celeba / "celeba" / "identity_CelebA.txt"
    path.write_text("\n".join(reversed(path.read_text().splitlines())))
    train = CelebA(size=8).load(celeba).train
    assert torch.equal(train.identity, (numbers(train) - 1) // 4 + 100)


def test_pictures_that_are_missing_are_counted(celeba):
    (celeba / "celeba" / "img_align_celeba" / "000002.jpg").unlink()
    with pytest.raises(MissingData, match=r"1 of the 16 pictures that .*list_attr_celeba.txt names .* 000002.jpg"):
        CelebA(size=8).load(celeba)


def test_the_official_list_is_also_a_table_of_faces(celeba):
    source = Faces("celeba/img_align_celeba", "celeba/list_attr_celeba.txt", "Smiling", ("Male",), size=8)
    loaded = source.load(celeba)
    assert len(loaded.train) + len(loaded.test) == COUNT
    assert torch.equal(loaded.train.y, numbers(loaded.train) % 2)


RACES = ("East Asian", "White", "Latino_Hispanic", "Southeast Asian", "Black", "Indian", "Middle Eastern")


@pytest.fixture
def fairface(tmp_path, save_picture):
    for part, count in (("train", 14), ("val", 7)):
        lines = ["file,age,gender,race,service_test"]
        for number in range(1, count + 1):
            save_picture(tmp_path / "fairface" / part / f"{number}.jpg", grey(number, 10, 10))
            gender = ("Female", "Male")[number % 2]
            lines.append(
                f"{part}/{number}.jpg,{('3-9', 'more than 70')[number % 2]},{gender},{RACES[number % 7]},True"
            )
        (tmp_path / "fairface" / f"fairface_label_{part}.csv").write_text("\n".join(lines))
    return tmp_path


def test_fairface_is_read_from_both_of_its_tables(fairface):
    loaded = FairFace(size=8).load(fairface)
    assert loaded.classes == ("Female", "Male")
    assert (len(loaded.train), len(loaded.test)) == (14, 7)
    for samples in (loaded.train, loaded.test):
        assert torch.equal(samples.y, numbers(samples) % 2)
        assert samples.s["age"].unique().tolist() == [1, 8]
        races = FairFace(target="race", size=8).load(fairface).classes
        assert [races[race] for race in samples.s["race"]] == [RACES[n % 7] for n in numbers(samples).tolist()]
    with pytest.raises(ValueError, match="target is what is learnt, one of gender, race, age; got 'Race'"):
        FairFace(target="Race")


def test_a_word_that_fairface_has_not_is_told(fairface):
    path = fairface / "fairface" / "fairface_label_val.csv"
    path.write_text(path.read_text().replace("Indian", "Martian"))
    with pytest.raises(CorruptData, match="its race 'Martian' is none of Black, East Asian"):
        FairFace(size=8).load(fairface)
    path.unlink()
    with pytest.raises(MissingData, match=r"there is no fairface/fairface_label_val\.csv"):
        FairFace(size=8).load(fairface)


@pytest.fixture
def utkface(tmp_path, save_picture):
    """Twenty faces named as in the original folder, and three whose names lack the race, as some there do."""
    for number in range(1, 21):
        name = f"{number}_{number % 2}_{number % 5}_2017010915055733{number}.jpg.chip.jpg"
        save_picture(tmp_path / "UTKFace" / name, grey(number))
    for number in range(3):
        save_picture(tmp_path / "UTKFace" / f"6{number}_1_20170109150557335.jpg.chip.jpg", grey(0))
    return tmp_path


def test_utkface_is_read_from_the_names_of_its_original_files(utkface):
    loaded = UTKFace(size=8).load(utkface)
    assert (len(loaded.train), len(loaded.test)) == (18, 2)
    assert torch.equal(loaded.train.s["age"], numbers(loaded.train))
    assert torch.equal(loaded.train.y, numbers(loaded.train) % 2)
    assert torch.equal(loaded.train.s["race"], numbers(loaded.train) % 5)
    (note,) = loaded.notes
    assert note.startswith("3 pictures of") and "do not say age, gender and race" in note
    assert UTKFace(target="race", size=(9, 7)).load(utkface).train.x.shape[1:] == (3, 9, 7)


def test_a_folder_whose_names_say_nothing_is_refused(utkface):
    for path in (utkface / "UTKFace").iterdir():
        path.rename(path.with_name("x" + path.name))
    with pytest.raises(ValueError, match=r"0 of the 23 pictures in .* have names that say age, gender and race"):
        UTKFace(size=8).load(utkface)


@pytest.fixture
def ffhq(tmp_path, save_picture):
    for number in range(12):
        folder = tmp_path / "ffhq" / "thumbnails128x128" / f"{number // 6 * 1000:05d}"
        save_picture(folder / f"{number:05d}.png", grey(number, 10, 10))
    return tmp_path


@pytest.mark.parametrize("source", [FFHQ(size=8, limit=5), Unlabelled("ffhq", size=8, limit=5)], ids=repr)
def test_pictures_without_classes_are_an_attackers(ffhq, source):
    loaded = source.load(ffhq)
    assert len(loaded.train) == 5 and len(loaded.test) == 1
    assert len(set(numbers(loaded.train).tolist())) == 5, "no picture is there twice"
    with pytest.raises(ValueError, match=r"no classes, so there is nothing to learn: .*--aux-data.*ImageFolder"):
        parts(loaded, aux=0, val=0, seed=0)
    x = torch.randint(0, 255, (20, 1, 6, 6), dtype=torch.uint8)
    private = parts(
        Loaded(Samples(x, torch.arange(20) % 2), Samples(x[:1], torch.tensor([0])), ("a", "b")), aux=4, val=0, seed=0
    )
    aux = Auxiliary(loaded, name="x").apply(private, Task((1, 6, 6), 2)).aux
    assert aux.x.shape == (4, 1, 6, 6)


def test_a_folder_without_classes_is_told_what_reads_it(ffhq):
    with pytest.raises(ValueError, match=r"an attacker's need no classes: Unlabelled\('"):
        ImageFolder("ffhq/thumbnails128x128/00000").load(ffhq)
    (ffhq / "empty").mkdir()
    with pytest.raises(ValueError, match=r"holds 0 pictures .* two are the least"):
        Unlabelled("empty").load(ffhq)
    with pytest.raises(MissingData, match="there is no ffhq/thumbnails128x128/"):
        FFHQ().load(ffhq / "empty")


@pytest.mark.parametrize(
    ("source", "name", "of"),
    [
        (CelebA(size=8), "celeba/img_align_celeba/000003.jpg", 16),
        (FairFace(size=8), "fairface/val/2.jpg", 7),
        (UTKFace(size=8), "UTKFace/4_0_4_20170109150557334.jpg.chip.jpg", 20),
        (
            Faces("celeba/img_align_celeba", "celeba/list_attr_celeba.txt", "Smiling", size=8),
            "celeba/img_align_celeba/000005.jpg",
            24,
        ),
        (FFHQ(size=8), "ffhq/thumbnails128x128/01000/00007.png", 12),
        (Unlabelled("ffhq", size=8), "ffhq/thumbnails128x128/00000/00002.png", 12),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_face_that_does_not_decode_is_named_and_left_out_only_on_request(
    celeba, fairface, utkface, ffhq, source, name, of
):
    whole, bad = source.load(celeba), celeba / name
    bad.write_bytes(bad.read_bytes()[:30])
    with pytest.raises(CorruptData, match=rf"{bad.name} is not usable: not a picture that can be read"):
        source.load(celeba)
    loaded = replace(source, skip_broken=True).load(celeba)
    assert loaded.notes[-1] == f"1 of {of} pictures do not decode and were left out: {bad}"
    kept = [numbers(samples) for samples in (loaded.train, loaded.test)]
    assert sum(map(len, kept)) == len(whole.train) + len(whole.test) - 1
    for samples, number in zip((loaded.train, loaded.test), kept, strict=True):
        if isinstance(source, (CelebA, FairFace, UTKFace, Faces)):
            assert torch.equal(samples.y, number % 2), "labels stay with their pictures"
    limited = replace(source, skip_broken=True, limit=6).load(celeba)
    assert len(limited.train) == 6, "a limit is of those that decode"


def test_data_check_knows_the_layouts(celeba, fairface, utkface, ffhq):
    rows = {row["name"]: row for row in check(celeba)}
    for name, sizes in {"CelebA": (16, 4), "FairFace": (14, 7), "UTKFace": (18, 2), "FFHQ": (11, 1)}.items():
        row = rows[name]
        assert row["found"] and (row["train"], row["test"], row["shape"]) == (*sizes, [3, 64, 64])
        assert not row["ok"] and row["detail"].startswith(f"it has {sizes[0]} + {sizes[1]} samples, it should have ")
