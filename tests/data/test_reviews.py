import gzip
import json
import math
import zlib

import numpy as np
import pytest
import torch

from cutlayer.data import Reviews
from cutlayer.data.base import CorruptData, MissingData

LINES = [
    {"label": 1, "text": "Good, GOOD film!<br /><br />It's good."},
    {"label": 0, "text": "bad"},
    {"label": 0, "text": "..."},
]


def write(folder, content=None, name="train"):
    (folder / "imdb").mkdir(exist_ok=True)
    path = folder / "imdb" / f"{name}.jsonl.gz"
    lines = "".join(json.dumps(line) + "\n" for line in LINES).encode() if content is None else content
    path.write_bytes(gzip.compress(lines))
    return path


@pytest.fixture
def folder(tmp_path):
    write(tmp_path)
    write(tmp_path, name="test")
    return tmp_path


def test_a_text_is_a_bag_of_hashed_words_of_length_one(folder):
    loaded = Reviews(features=50).load(folder)
    counts = {"good": 3, "film": 1, "it's": 1}
    wanted = np.zeros(50)
    for word, count in counts.items():
        wanted[zlib.crc32(word.encode()) % 50] += count
    wanted = np.log1p(wanted)
    torch.testing.assert_close(loaded.train.x[0].double(), torch.from_numpy(wanted / np.linalg.norm(wanted)))
    assert loaded.train.x[1, zlib.crc32(b"bad") % 50] == 1
    assert loaded.train.x[1].count_nonzero() == 1
    assert loaded.train.y.tolist() == [1, 0, 0]
    assert loaded.classes == ("negative", "positive")


def test_a_text_without_words_is_nought_and_not_nan(folder):
    assert Reviews(features=50).load(folder).train.x[2].tolist() == [0] * 50


def test_rows_have_the_documented_form(folder):
    loaded = Reviews().load(folder)
    assert loaded.train.x.shape == (3, 2048)
    assert loaded.train.x.dtype == torch.float32
    assert math.isclose(loaded.test.x[0].norm().item(), 1, abs_tol=1e-6)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "it holds no line"),
        (b'{"label": 1, "text": "a"}\n{"label": 1, "te', "line 2 is not a text and its label"),
        (b'{"label": 1}\n', r"line 1 is not a text and its label \('text'\)"),
        (b"[1, 2]\n", "line 1 is not a text and its label"),
        (b'{"label": 2, "text": "a"}\n', "line 1 should have a text and a label 0 or 1, the label is 2"),
        (b'{"label": "pos", "text": "a"}\n', "the label is 'pos'"),
        (b'{"label": 1, "text": 5}\n', "line 1 should have a text"),
        (b"\xff\n", "line 1 is not a text and its label"),
    ],
)
def test_bad_lines_are_named(folder, content, words):
    write(folder, content, name="test")
    with pytest.raises(CorruptData, match=words):
        Reviews().load(folder)


def test_a_damaged_file_is_refused(folder):
    path = write(folder)
    whole = path.read_bytes()
    for content in (whole[:-9], whole[:30], b"hello", whole[:20] + bytes(9) + whole[29:]):
        path.write_bytes(content)
        with pytest.raises(CorruptData, match="the gzip stream is damaged or cut short"):
            Reviews().load(folder)
    path.unlink()
    with pytest.raises(MissingData, match=r"there is no imdb/train\.jsonl\.gz"):
        Reviews().load(folder)


@pytest.mark.parametrize("features", [0, 2.0, "9"])
def test_features_is_a_positive_whole_number(features):
    with pytest.raises(ValueError, match="features is how many numbers describe a text, at least 1; got"):
        Reviews(features=features)
