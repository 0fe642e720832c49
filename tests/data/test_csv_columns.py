import pytest
import torch

from cutlayer.data.base import CorruptData
from cutlayer.data.csv_columns import read_columns


@pytest.fixture
def table(tmp_path):
    def make(content):
        path = tmp_path / "a.csv"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return read_columns(path)

    return make


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_fields_are_separated_by_what_separates_the_header(table, separator, end):
    lines = [["name", "age"], ["a b", "7"], ["c", " 8 "]]
    read = table(end.join(separator.join(line) for line in lines))
    assert read.columns == {"name": ["a b", "c"], "age": ["7", "8"]}


def test_quotes_blank_lines_and_a_byte_order_mark(table):
    read = table(b'\xef\xbb\xbfname,words\n\n"x, y","two\nlines"\nz,"say ""no""\xe2\x80\xa8"\n')
    assert read.columns == {"name": ["x, y", "z"], "words": ["two\nlines", 'say "no"']}


def test_a_column_of_numbers_is_one_of_numbers(table):
    read = table("a,b,c\n1,0.5,x\n-2,1e3,y\n")
    assert read.numbers("a").tolist() == [1, -2]
    assert read.numbers("b").tolist() == [0.5, 1000]
    assert read.numbers("c") is None
    assert read.whole("a").dtype == torch.int64


def test_classes_follow_the_alphabet_or_the_size(table):
    read = table("text,number,sign,one\nb,10,-1,4\na,9,1,4\nB,10,1,4\n")
    for name, labels, names in (
        ("text", [2, 1, 0], ("B", "a", "b")),
        ("number", [1, 0, 1], ("9", "10")),
        ("sign", [0, 1, 1], ("not sign", "sign")),
        ("one", [0, 0, 0], ("4",)),
    ):
        y, classes = read.classes(name)
        assert (y.tolist(), classes) == (labels, names)
        assert y.dtype == torch.int64


def test_attributes_keep_their_numbers(table):
    read = table("text,age,sign,binary,share\nb,31,-1,0,0.5\na,19,1,1,1\n")
    for name, values, kind in (
        ("text", [1, 0], torch.int64),
        ("age", [31, 19], torch.int64),
        ("sign", [0, 1], torch.int64),
        ("binary", [0, 1], torch.int64),
        ("share", [0.5, 1], torch.float32),
    ):
        assert read.attribute(name).tolist() == values
        assert read.attribute(name).dtype == kind


def test_a_missing_column_is_named_with_those_there_are(table):
    read = table("name,Smiling,Male\na,1,1\n")
    with pytest.raises(
        ValueError, match=r"has no column 'Smilng', did you mean 'Smiling'\? it has name, Smiling, Male"
    ):
        read.column("Smilng")
    with pytest.raises(ValueError, match="has no column 'xyz'; it has name, Smiling, Male"):
        read.column("xyz")


@pytest.mark.parametrize("hole", ["", " ", "?", "NA", "nan", "n/a", "NULL"])
def test_a_missing_value_is_named_by_row_and_column(table, hole):
    # A blank line and a field of two lines stand before it: the number is that of the file.
    read = table(f'name,age\n\n"a\nb",3\nc,{hole}\n')
    with pytest.raises(ValueError, match=r"a\.csv, row 5, column 'age': the value is missing .* fill it in or drop"):
        read.numbers("age")


@pytest.mark.parametrize("slip", ["x", "inf", "1_000", "3,5"])
def test_a_slip_among_numbers_is_named(table, slip):
    read = table(f'age\n1\n2\n"{slip}"\n')
    with pytest.raises(ValueError, match=rf"row 4, column 'age': '{slip}' is not a finite number, as most"):
        read.numbers("age")


def test_numbers_among_texts_are_texts(table):
    assert table("code\na1\n7\nb2\n").classes("code")[1] == ("7", "a1", "b2")


@pytest.mark.parametrize("values", ["0.5\n1\n", "a\nb\n"])
def test_whole_numbers_are_whole(table, values):
    with pytest.raises(ValueError, match=r"the column 'y' of .* must hold whole numbers"):
        table("y\n" + values).whole("y")


def test_a_text_may_be_as_long_as_a_book(table):
    assert len(table(b"a,b\n1," + b"long " * 40_000 + b"\n").column("b")[0]) == 199_999


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "it should have a header and at least one row"),
        (b"a,b\n", "it should have a header and at least one row"),
        (b"a,b\n1,2\n3\n", "row 3 has 1 fields, the header 2"),
        (b"a,b\n1,2,3\n", "row 2 has 3 fields, the header 2"),
        (b",a\n0,1\n", r"column 1 has no name \(is it a row number"),
        (b"a,b,a\n1,2,3\n", "the column 'a' is there twice"),
        (b"a,b\n\xff\xfe,2\n", "line 2 is no text in UTF-8: save it as UTF-8"),
        ("a,b\n1,2\n".encode("utf-16"), "line 1 is no text in UTF-8: save it as UTF-8"),
        (b'a,b\n0,1\n\n1,"2\n3,4\n', "the row that begins in line 4 .*: .* each quote inside it twice"),
        (b'a,b\n1,"2"3\n', "the row that begins in line 2 .*: .* each quote inside it twice"),
    ],
)
def test_what_is_no_table_is_refused(table, content, words):
    with pytest.raises(CorruptData, match=words):
        table(content)
