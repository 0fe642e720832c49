import hashlib
from pathlib import Path

import pytest

from cutlayer.data.base import CorruptData, MissingData, find
from cutlayer.data.files import own_file, own_folder, read_sums


def put(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")
    return path


def test_the_first_name_that_exists_is_taken(tmp_path):
    second = put(tmp_path / "b" / "file")
    assert find(tmp_path, "a/file", "b/file") == second
    first = put(tmp_path / "a" / "file")
    assert find(tmp_path, "a/file", "b/file") == first


def test_the_folder_then_the_variable_then_data_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CUTLAYER_DATA", raising=False)
    here = put(tmp_path / "data" / "file")
    assert find(None, "file").absolute() == here
    named = put(tmp_path / "elsewhere" / "file")
    monkeypatch.setenv("CUTLAYER_DATA", str(named.parent))
    assert find(None, "file") == named
    given = put(tmp_path / "given" / "file")
    assert find(given.parent, "file") == given


def test_a_folder_that_was_named_is_never_replaced_by_another(tmp_path, monkeypatch):
    put(tmp_path / "elsewhere" / "file")
    monkeypatch.setenv("CUTLAYER_DATA", str(tmp_path / "elsewhere"))
    with pytest.raises(MissingData):
        find(tmp_path / "empty", "file")


def test_a_missing_file_says_what_to_put_where(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        find(tmp_path, "mnist/a.gz", "mnist/a", origin="Ask LeCun.")
    for words in ("mnist/a.gz", "(or mnist/a)", str(tmp_path), "--data-dir", "CUTLAYER_DATA", "Ask LeCun."):
        assert words in str(caught.value)


def test_a_folder_does_not_pass_for_a_file(tmp_path):
    (tmp_path / "file").mkdir()
    with pytest.raises(MissingData, match="there is no file"):
        find(tmp_path, "file")


def test_a_corrupt_file_is_named():
    with pytest.raises(ValueError, match=r"a\.gz is not usable: cut short; fetch or write the file again"):
        raise CorruptData(Path("a.gz"), "cut short")


def listed(folder, content, name="a/file", digest=None, between="  "):
    put(folder / name).write_bytes(content)
    (folder / "SHA256SUMS").write_text(f"{digest or hashlib.sha256(content).hexdigest()}{between}{name}\n\n")


def test_a_file_is_compared_with_the_list_of_its_folder(tmp_path):
    listed(tmp_path, b"right")
    assert find(tmp_path, "a/file").read_bytes() == b"right"
    (tmp_path / "a" / "file").write_bytes(b"wrong")
    with pytest.raises(CorruptData, match=r"file is not usable: its sha256 is 8810ad581e59…, SHA256SUMS says 27042f"):
        find(tmp_path, "a/file")
    # A file that is not in the list has nothing to be compared with.
    assert find(tmp_path, put(tmp_path / "b").name)


@pytest.mark.parametrize(("between", "shown"), [("  ", "a/file"), (" *", "a/file"), ("  ./", "a/file")])
def test_the_usual_forms_of_the_list_are_read(tmp_path, between, shown):
    listed(tmp_path, b"x", digest="AB" * 32, between=between)
    assert read_sums(tmp_path) == {shown: "ab" * 32}


def test_a_list_that_is_none_is_refused(tmp_path):
    listed(tmp_path, b"x", digest="abc")
    with pytest.raises(CorruptData, match="SHA256SUMS is not usable: line 1 is not a sha256 and a file name"):
        find(tmp_path, "a/file")
    assert read_sums(tmp_path / "a") == {}


def test_ones_own_are_meant_from_here_or_from_the_data_folder(tmp_path, monkeypatch):
    put(tmp_path / "data" / "sub" / "file")
    monkeypatch.chdir(tmp_path)
    for typed in ("data/sub/file", "sub/file"):
        assert own_file(tmp_path / "data", typed).is_file()
    for typed in ("data/sub", "sub"):
        assert own_folder(tmp_path / "data", typed).is_dir()
    with pytest.raises(MissingData, match=r"no folder sub/file, neither here nor in .*data: give its path"):
        own_folder(tmp_path / "data", "sub/file")
