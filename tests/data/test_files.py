from pathlib import Path

import pytest

from cutlayer.data.base import CorruptData, MissingData, find


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
