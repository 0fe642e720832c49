"""`check` reads what is there, believes nothing, and never falls over a damaged set."""

import hashlib
import json
import shutil

import numpy as np
import pytest

from cutlayer.core.spec import names
from cutlayer.data import MNIST, Npz, UTKFace
from cutlayer.data.base import About, MissingData
from cutlayer.data.check import check

FIELDS = {"name", "found", "ok", "detail", "train", "test", "shape"}
NAMED = {name for name, kind in names("data").items() if kind.about.forms}
IMAGES = np.zeros((3200, 3, 64, 64), np.uint8)


def by_name(folder):
    rows = check(folder)
    for row in rows:
        assert row.keys() == FIELDS
        assert "\n" not in row["detail"] and row["detail"]
        assert row["found"] or not row["ok"]
    json.dumps(rows)
    return {row["name"]: row for row in rows}


def sums(folder, *names, digest=None):
    lines = [f"{digest or hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n" for name in names]
    (folder / "SHA256SUMS").write_text("".join(lines))


@pytest.fixture
def faces(tmp_path, save_sheet):
    """A UTKFace of the right size (its pictures are black)."""
    for name, count in (("train", 3200), ("test", 800)):
        facts = {"age": [30] * count, "gender": [0, 1] * (count // 2), "race": [0] * count}
        save_sheet(tmp_path / "utkface64" / f"{name}.jpg", IMAGES[:count], 40, **facts)
    return tmp_path


def test_an_empty_folder_has_nothing_and_says_what_it_would_be(tmp_path):
    rows = by_name(tmp_path)
    assert rows.keys() == NAMED
    assert not any(row["found"] or row["ok"] for row in rows.values())
    assert rows["MNIST"]["detail"] == "not here: it would be mnist/train-images-idx3-ubyte.gz and 3 more"


def test_a_folder_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(MissingData, match=r"there is no folder .*nowhere"):
        check(tmp_path / "nowhere")


def test_a_good_set_is_described(faces):
    sums(faces, "utkface64/train.jpg", "utkface64/test.json")
    row = by_name(faces)["UTKFace"]
    assert row == {
        **{"name": "UTKFace", "found": True, "ok": True, "train": 3200, "test": 800, "shape": [3, 64, 64]},
        "detail": "3,200 + 800 samples of 3x64x64 in 2 classes; files as in SHA256SUMS",
    }


def test_damage_is_told_and_the_other_sets_are_still_read(faces):
    np.savez(faces / "mine.npz", x=IMAGES[:20], y=np.arange(20) % 2)
    np.savez(faces / "bad.npz", x=IMAGES[:20])
    (faces / "utkface64" / "train.jpg").write_bytes(b"")
    rows = by_name(faces)
    assert rows["UTKFace"]["found"] and not rows["UTKFace"]["ok"]
    assert "train.jpg is not usable" in rows["UTKFace"]["detail"]
    assert rows["UTKFace"]["train"] is None
    good, bad = rows[repr(Npz("mine.npz"))], rows[repr(Npz("bad.npz"))]
    assert good["ok"] and (good["train"], good["test"], good["shape"]) == (18, 2, [3, 64, 64])
    assert not bad["ok"] and "it has no array 'y'" in bad["detail"]


def test_a_missing_part_of_a_set_is_told(faces):
    (faces / "utkface64" / "test.json").unlink()
    row = by_name(faces)["UTKFace"]
    assert row["found"] and not row["ok"]
    assert "there is no utkface64/test.json" in row["detail"]


def test_other_counts_are_told(faces, save_sheet):
    facts = {"age": [30] * 8, "gender": [0, 1] * 4, "race": [0] * 8}
    save_sheet(faces / "utkface64" / "test.jpg", IMAGES[:8], 4, **facts)
    row = by_name(faces)["UTKFace"]
    assert row["detail"] == "it has 3,200 + 8 samples, it should have 3,200 + 800 or 21,335 + 2,370"
    assert (row["ok"], row["train"], row["test"]) == (False, 3200, 8)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"shape": (3, 32, 32)}, "its samples are 3x64x64, they should be 3x32x32"),
        ({"classes": 5}, "it has 2 classes, it should have 5"),
        ({"md5": {"train.json": "0" * 32}}, "utkface64/train.json is not the official one: its md5 is "),
    ],
)
def test_what_differs_from_the_facts_is_told(faces, monkeypatch, facts, words):
    known = UTKFace.about
    about = {"shape": known.shape, "classes": known.classes, "sizes": known.sizes, "forms": known.forms} | facts
    monkeypatch.setattr(UTKFace, "about", About("faces", "none", **about))
    row = by_name(faces)["UTKFace"]
    assert not row["ok"] and row["detail"].startswith(words)


def test_what_the_arrays_rebuild_is_compared_too(faces, monkeypatch):
    known = UTKFace.about
    monkeypatch.setattr(UTKFace, "rebuilt", lambda self, loaded: {"official.bin": "1" * 32})
    for published, ok in (("1" * 32, True), ("2" * 32, False)):
        monkeypatch.setattr(UTKFace, "about", About("f", "none", forms=known.forms, md5={"official.bin": published}))
        row = by_name(faces)["UTKFace"]
        assert row["ok"] is ok
        assert ("by md5" if ok else "official.bin is not the official one") in row["detail"]


def test_a_wrong_sha256_is_told_for_sets_and_for_other_files(faces):
    (faces / "weights.bin").write_bytes(b"weights")
    sums(faces, "utkface64/train.jpg", "weights.bin")
    rows = by_name(faces)
    assert rows["UTKFace"]["ok"] and rows["SHA256SUMS"]["ok"]
    assert rows["SHA256SUMS"]["detail"] == "the 1 other files it lists are as it says"
    sums(faces, "utkface64/train.jpg", "weights.bin", digest="0" * 64)
    rows = by_name(faces)
    assert "SHA256SUMS says 000000000000" in rows["UTKFace"]["detail"]
    assert "weights.bin is not usable: its sha256 is" in rows["SHA256SUMS"]["detail"]
    assert not rows["UTKFace"]["ok"] and not rows["SHA256SUMS"]["ok"]


def test_a_listed_file_that_is_gone_and_a_broken_list_are_told(faces):
    sums(faces, "gone.bin", digest="0" * 64)
    assert by_name(faces)["SHA256SUMS"]["detail"] == "it lists gone.bin, which is not here"
    (faces / "SHA256SUMS").write_text("nonsense\n")
    assert "line 1 is not a sha256 and a file name" in by_name(faces)["SHA256SUMS"]["detail"]


def test_an_error_nobody_foresaw_costs_one_row(faces, monkeypatch):
    def fall(self, folder):
        raise RuntimeError("first line\nsecond line")

    monkeypatch.setattr(UTKFace, "read", fall)
    row = by_name(faces)["UTKFace"]
    assert (row["found"], row["ok"], row["detail"]) == (True, False, "first line second line")


@pytest.mark.campaign
def test_the_real_folder_is_what_it_says(data_folder):
    rows = check(data_folder)
    found = [row for row in rows if row["found"]]
    if not found:
        pytest.skip(f"{data_folder} holds no data set")
    assert [row for row in found if not row["ok"]] == []
    for row in found:
        if row["name"] in ("MNIST", "FashionMNIST", "CIFAR10"):
            assert "the official ones, by md5" in row["detail"]


def test_one_changed_byte_of_a_real_set_is_found(data_folder, tmp_path):
    if not (data_folder / "mnist").is_dir():
        pytest.skip(f"{data_folder} holds no mnist/")
    shutil.copytree(data_folder / "mnist", tmp_path / "mnist")
    path = tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz"
    path.chmod(0o644)
    content = bytearray(path.read_bytes())
    content[4] ^= 1  # the time in the gzip head: everything still reads
    path.write_bytes(content)
    assert len(MNIST().load(tmp_path).test) == 10_000
    row = {row["name"]: row for row in check(tmp_path)}["MNIST"]
    assert row["detail"].startswith("mnist/t10k-labels-idx1-ubyte.gz is not the official one: its md5 is")
