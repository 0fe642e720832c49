import json

import numpy as np
import pytest
import torch

from cutlayer.data.base import CorruptData
from cutlayer.data.sheets import read_sheet

IMAGES = np.random.default_rng(0).integers(0, 256, (11, 3, 8, 8), dtype=np.uint8)
LABELS = [3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1]


@pytest.fixture
def sheet(tmp_path, save_sheet):
    def make(**facts):
        return save_sheet(tmp_path / "a.jpg", IMAGES, 4, labels=LABELS, names=["a", "b"], **facts)

    return make


def read(path):
    return read_sheet(path, path.with_suffix(".json"), 8)


def read_all(path):
    x, words = read(path)
    return x, words.column("labels", 4), words.texts("names")


def test_a_sheet_is_cut_row_by_row(sheet):
    x, labels, names = read_all(sheet())
    assert torch.equal(x, torch.from_numpy(IMAGES))
    assert labels.tolist() == LABELS
    assert names == ("a", "b")


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"n": None}, "it has no n, only tile, cols, labels, names"),
        ({"n": 13}, "32x24 pixels cannot hold 13 pictures of 8, 4 a row"),
        ({"n": 0}, "n should be a whole number above 0, it is 0"),
        ({"n": 11.0}, "n should be a whole number above 0, it is 11.0"),
        ({"cols": 5}, "32x24 pixels cannot hold 11 pictures of 8, 5 a row"),
        ({"tile": 9}, "its pictures are 9 pixels wide, they should be 8"),
        ({"labels": LABELS[:9]}, "labels should be a list of 11 numbers"),
        ({"labels": "all"}, "labels should be a list of 11 numbers"),
        ({"labels": [4, *LABELS[1:]]}, r"labels at row 0 should be 0\.\.3, it is 4"),
        ({"labels": [*LABELS[:10], -1]}, r"labels at row 10 should be 0\.\.3, it is -1"),
        ({"labels": [*LABELS[:10], "1"]}, r"labels at row 10 should be 0\.\.3, it is '1'"),
        ({"names": [1]}, "names should be a list of texts"),
    ],
)
def test_facts_that_do_not_fit_are_refused(tmp_path, save_sheet, facts, words):
    path = save_sheet(tmp_path / "a.jpg", IMAGES, 4, **({"labels": LABELS, "names": ["a"]} | facts))
    with pytest.raises(CorruptData, match=words):
        read_all(path)


@pytest.mark.parametrize("content", [b"", b'{"n": 11, "ti', b"[1, 2]", b"\xff\xfe", b"[" * 100_000])
def test_a_damaged_description_is_refused(sheet, content):
    path = sheet()
    path.with_suffix(".json").write_bytes(content)
    with pytest.raises(CorruptData, match=r"a\.json is not usable: (not a JSON file|it should describe a sheet)"):
        read(path)


def test_a_damaged_picture_is_refused(sheet):
    path = sheet()
    whole = path.read_bytes()
    for content in (b"", b"hello", whole[:60], whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(CorruptData, match=r"a\.jpg is not usable: not a picture that can be read"):
            read(path)


def test_a_description_may_say_more_than_is_needed(sheet):
    path = sheet()
    words = json.loads(path.with_suffix(".json").read_text())
    path.with_suffix(".json").write_text(json.dumps({**words, "files": ["a"]}))
    assert len(read(path)[0]) == 11
