"""Pickles are read as data: arrays come back, code never runs."""

import io
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest

from cutlayer.data.base import CorruptData
from cutlayer.data.pickles import read_pickle

DATA = np.random.default_rng(0).integers(0, 256, (6, 5), dtype=np.uint8)


def text(value):
    """A string as Python 2 wrote it."""
    return b"T" + struct.pack("<i", len(value)) + value


def python_2(data=DATA, labels=(3, 1, 2)):
    """A batch as the official files have it: protocol 2, old strings, numpy's old module names."""
    dtype = (
        b"cnumpy\ndtype\n"
        + text(b"u1")
        + b"K\x00K\x01\x87R"
        + b"(K\x03"
        + text(b"|")
        + b"NNN"
        + b"J\xff\xff\xff\xff" * 2
    )
    dtype += b"K\x00tb"
    shape = b"".join(b"K" + bytes([side]) for side in data.shape) + b"\x86"
    array = b"cnumpy.core.multiarray\n_reconstruct\n" + b"cnumpy\nndarray\n" + b"K\x00\x85" + text(b"b") + b"\x87R"
    array += b"(K\x01" + shape + dtype + b"\x89" + text(data.tobytes()) + b"tb"
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\x02}(" + text(b"data") + array + text(b"labels") + numbers + b"u."


def write(folder: Path, content: bytes) -> Path:
    (folder / "batch").write_bytes(content)
    return folder / "batch"


def test_what_python_2_wrote_reads_back(tmp_path):
    # The stock reader agrees that this is such a file.
    stock = pickle.load(io.BytesIO(python_2()), encoding="bytes")
    assert np.array_equal(stock[b"data"], DATA)
    content = read_pickle(write(tmp_path, python_2()))
    assert np.array_equal(content["data"], DATA)
    assert content["data"].dtype == np.uint8
    assert content["labels"] == [3, 1, 2]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize(
    "array",
    [DATA, np.asfortranarray(DATA), DATA[:0], np.arange(6.0).reshape(1, 2, 3), np.arange(4, dtype=">i4")],
    ids=["bytes", "columns first", "empty", "floats", "big endian"],
)
def test_every_protocol_reads_back(tmp_path, protocol, array):
    content = {"data": array, b"names": [b"a", "b", 3, 0.5, None], "nested": {"none": b""}}
    read = read_pickle(write(tmp_path, pickle.dumps(content, protocol=protocol)))
    assert read["data"].dtype == array.dtype
    assert np.array_equal(read["data"], array)
    assert read["names"] == [b"a", "b", 3, 0.5, None]
    assert read["nested"] == {"none": b""}


class Calls:
    """A value whose pickle asks for a call."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", [0, 2, 4], ids=repr)
def test_code_in_a_pickle_is_refused_and_does_not_run(tmp_path, protocol):
    for function, arguments, name in (
        (os.mkdir, (str(tmp_path / "ran"),), "mkdir"),
        (eval, ("__import__('pathlib').Path('ran').touch()",), "eval"),
        (exec, ("import pathlib; pathlib.Path('ran').touch()",), "exec"),
        (open, (str(tmp_path / "ran"), "w"), "open"),
        (np.load, (str(tmp_path / "ran"),), "numpy"),
        (getattr, (DATA, "tofile"), "getattr"),
    ):
        bad = pickle.dumps({"data": DATA, "labels": [1], "more": Calls(function, *arguments)}, protocol=protocol)
        with pytest.raises(CorruptData, match=rf"the pickle asks for \S*{name}\S*, .* nothing in it was run"):
            read_pickle(write(tmp_path, bad))
        assert not (tmp_path / "ran").exists()
        assert not Path("ran").exists()


@pytest.mark.parametrize(
    "content",
    [
        b"cos\nsystem\n(S'touch ran'\ntR.",
        b"(S'touch ran'\nios\nsystem\n.",  # INST
        b"\x80\x04\x8c\x05numpy\x8c\x0endarray.tofile\x93.",  # an attribute of an allowed name
        b"cnumpy.core.multiarray\nscalar\n.",
        b"cbuiltins\nbytes\n(J\xff\xff\xff\x7ftR.",
        b"\x80\x02\x82\x01.",  # a registered extension
        b"Pname\n.",  # a persistent id
    ],
)
def test_no_other_way_leads_out(tmp_path, content):
    with pytest.raises(CorruptData):
        read_pickle(write(tmp_path, content))


def test_bytes_are_read_and_no_other_codec_is_asked(tmp_path):
    for codec, words in ((b"latin1", None), (b"zlib", "the pickle asks for the codec zlib")):
        path = write(tmp_path, b"}(Vdata\nc_codecs\nencode\n(Vabc\nV" + codec + b"\ntRu.")
        if words is None:
            assert read_pickle(path) == {"data": b"abc"}
        else:
            with pytest.raises(CorruptData, match=words):
                read_pickle(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not a pickle of plain arrays"),
        (b"hello", "not a pickle of plain arrays"),
        (pickle.dumps([1, 2]), "it holds a list, not a dictionary"),
        (pickle.dumps({"data": np.array([{}, None], dtype=object)}), "'O8' is not one of plain numbers"),
        (pickle.dumps({"data": np.array(["a", "b"])}), "'U1' is not one of plain numbers"),
        (pickle.dumps({"data": np.zeros(2, "u1,f4")}), "is not one of plain numbers"),
        (python_2(DATA).replace(b"K\x06K\x05", b"K\x07K\x05"), r"shape \(7, 5\) has not the bytes it needs"),
    ],
)
def test_what_is_no_dictionary_of_arrays_is_refused(tmp_path, content, words):
    with pytest.raises(CorruptData, match=words):
        read_pickle(write(tmp_path, content))


@pytest.mark.parametrize("whole", [python_2(), pickle.dumps({"data": DATA})], ids=["python 2", "python 3"])
def test_a_pickle_cut_anywhere_is_refused(tmp_path, whole):
    for end in range(len(whole)):
        with pytest.raises(CorruptData):
            read_pickle(write(tmp_path, whole[:end]))
