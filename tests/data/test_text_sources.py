import gzip
import json
import sys

import pytest
import torch
from sentences import sentences, write

from cutlayer import Plan
from cutlayer.core.batch import NO_LABEL, PAD
from cutlayer.data import IMDB, Reviews, Texts
from cutlayer.data.base import CorruptData, Loaded, Samples
from cutlayer.data.check import check
from cutlayer.data.tokenizer import WordTokenizer, built_from
from cutlayer.engines.local import start
from cutlayer.engines.predict import Inputs, predict
from cutlayer.nets import TextEncoder


@pytest.fixture
def file(tmp_path):
    return write(tmp_path / "texts.jsonl")


def test_texts_are_rows_of_ids_of_one_length_padded_at_the_end(file):
    loaded = Texts(str(file), length=12, vocabulary=40).load()
    assert loaded.train.x.dtype == torch.int64 and loaded.train.x.shape[1] == 12
    assert loaded.classes == ("bad", "good") and loaded.vocabulary == 40
    assert len(loaded.train) + len(loaded.test) == len(sentences())
    told = {text for text, _ in sentences()}
    short = loaded.train.x[(loaded.train.x[:, -1] == PAD).nonzero()[0, 0]]
    assert loaded.tokenizer.decode(short.tolist()) in {text.lower() for text in told}
    assert ((loaded.train.x == PAD).int().diff(dim=1) >= 0).all()  # nothing after the first padding


def test_each_text_knows_its_line(file):
    loaded, lines = Texts(str(file), length=12, vocabulary=40).load(), file.read_text().splitlines()
    for part in (loaded.train, loaded.test):
        told = [json.loads(lines[line - 1])["label"] for line in part.places.tolist()]
        assert told == [loaded.classes[label] for label in part.y]


def test_the_words_are_those_of_the_training_texts_alone(tmp_path):
    write(tmp_path / "train.jsonl", [("red one", "a"), ("red two", "b")])
    write(tmp_path / "test.jsonl", [("blue one", "a")])
    loaded = Texts("train.jsonl", test="test.jsonl", length=3, vocabulary=9).load(tmp_path)
    assert set(loaded.tokenizer.words[2:]) == {"red", "one", "two"}
    assert loaded.tokenizer.decode(loaded.test.x[0].tolist()) == "[UNK] one"


def test_what_is_cut_padded_and_unknown_is_said(tmp_path):
    write(tmp_path / "a.jsonl", [("x x x x", "a"), ("x y", "b"), ("x x", "a"), ("x x", "b")])
    write(tmp_path / "b.jsonl", [("x", "a")])
    said = Texts("a.jsonl", test="b.jsonl", length=3, vocabulary=3).load(tmp_path).notes
    assert "1 of 5 texts have more than 3 tokens and are cut there" in said[0] and "33% of all" in said[0]
    assert said[1].startswith("10.0% of their tokens are outside the vocabulary of 3")


def test_the_unknown_word_is_the_one_that_the_tokenizer_names(tmp_path):
    pytest.importorskip("tokenizers")
    ids = {word: place for place, word in enumerate(["<pad>", "x", "<unk>"])}
    model = {"type": "WordLevel", "vocab": ids, "unk_token": "<unk>"}
    content = {"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"}, "model": model}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    write(tmp_path / "a.jsonl", [("x x x x", "a"), ("x y", "b")])
    source = Texts("a.jsonl", test="a.jsonl", length=4, vocabulary=3, words="tokenizer.json")
    assert source.load(tmp_path).notes[1].startswith("16.7% of their tokens are outside")


def test_the_beginning_of_a_long_text_is_kept_and_one_that_fits_is_not_called_long(tmp_path):
    write(tmp_path / "a.jsonl", [("one two three four", "a"), ("one two three", "b")])
    loaded = Texts("a.jsonl", test="a.jsonl", length=3, vocabulary=9).load(tmp_path)
    assert {loaded.tokenizer.decode(row.tolist()) for row in loaded.train.x} == {"one two three"}
    assert loaded.notes[0].startswith("2 of 4 texts have more than 3")


def test_the_next_token_is_the_label_and_padding_has_none(file):
    loaded = Texts(str(file), length=12, vocabulary=40, next_token=True).load()
    x, y = loaded.train.x, loaded.train.y
    assert y.shape == x.shape and len(loaded.classes) == 40
    inside = x[:, 1:] != PAD
    assert torch.equal(y[:, :-1][inside], x[:, 1:][inside])
    assert (y[:, :-1][~inside] == NO_LABEL).all()
    assert (y[:, -1][x[:, -1] == PAD] == NO_LABEL).all()
    long = Texts(str(file), length=5, vocabulary=40, next_token=True).load().train
    assert (long.y[:, -1] != NO_LABEL).all()  # the word after the last one that is read


def test_a_file_of_words_serves_every_client_alike(file, tmp_path):
    (tmp_path / "words.txt").write_text(built_from(["the film"], 9).as_text())
    loaded = Texts(str(file), length=6, vocabulary=9, words=str(tmp_path / "words.txt")).load()
    assert loaded.tokenizer.words == ("[PAD]", "[UNK]", "film", "the")
    assert loaded.vocabulary == 9
    with pytest.raises(ValueError, match=r"has 4 token ids and vocabulary is 3: give data and network vocabulary=4"):
        Texts(str(file), vocabulary=3, words=str(tmp_path / "words.txt")).load()


def test_tables_and_gzipped_lines_read_alike(tmp_path):
    rows = sentences()[:20]
    write(tmp_path / "a.jsonl", rows)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress((tmp_path / "a.jsonl").read_bytes()))
    table = "who,said\n" + "".join(f'{label},"{text}"\n' for text, label in rows)
    (tmp_path / "c.csv").write_text(table)
    plain = Texts("a.jsonl", vocabulary=50).load(tmp_path).train
    for other in (Texts("b.jsonl.gz", vocabulary=50), Texts("c.csv", vocabulary=50, text="said", label="who")):
        found = other.load(tmp_path).train
        assert torch.equal(found.x, plain.x) and torch.equal(found.y, plain.y)


def test_numbers_are_classes_in_their_order(tmp_path):
    write(tmp_path / "a.jsonl", [(f"word{n}", n) for n in (10, 9, 10, 9)])
    write(tmp_path / "b.jsonl", [("word", 9)])
    loaded = Texts("a.jsonl", test="b.jsonl").load(tmp_path)
    assert loaded.classes == ("9", "10") and loaded.train.y.tolist() == [1, 0, 1, 0]


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([("", "a"), ("x", "b")], "line 1: the text '' has not a word: leave that row out"),
        ([("x", "a"), (" <br /> ", "b")], "line 2: the text"),
        (
            [("x", "a"), ("y", "it was the best film that I have seen in a great many years, I think")],
            "is a sentence",
        ),
        ([("x", ""), ("y", "b")], "a label is a whole number or a short text"),
        ([("x", 0.5), ("y", 1)], "a label is a whole number or a short text"),
        ([("x", None), ("y", 1)], "a label is a whole number or a short text"),
        ([(3, "a"), ("y", "b")], "holds int, not a text"),
        ([("x", f"kind {n}") for n in range(300)], "has 300 different values"),
        ([("x", "a"), ("y", "a")], "one class only"),
    ],
)
def test_bad_rows_are_one_sentence(tmp_path, rows, why):
    write(tmp_path / "a.jsonl", rows)
    write(tmp_path / "b.jsonl", [("y", rows[0][1])])
    with pytest.raises(ValueError, match=why) as told:
        Texts("a.jsonl", test="b.jsonl").load(tmp_path)
    assert "\n" not in str(told.value)


def test_a_text_of_one_word_has_no_next(tmp_path):
    write(tmp_path / "a.jsonl", [("one two", "a"), ("one", "a")])
    with pytest.raises(ValueError, match=r"line 2: the text 'one' has not two words"):
        Texts("a.jsonl", next_token=True).load(tmp_path)


def test_nothing_is_no_text_though_a_tokenizer_puts_signs_around_it(tmp_path, monkeypatch):
    write(tmp_path / "a.jsonl", [("x", "a"), ("", "b")])
    monkeypatch.setattr(WordTokenizer, "encode", lambda self, text, most=None: [1, *map(len, text.split()), 1])
    with pytest.raises(ValueError, match="line 2: the text '' has not a word"):
        Texts("a.jsonl", test="a.jsonl").load(tmp_path)


def test_fields_that_are_not_there_are_named(tmp_path):
    write(tmp_path / "a.jsonl")
    with pytest.raises(ValueError, match=r"no field 'review', only text, label: name the fields with text="):
        Texts("a.jsonl", text="review").load(tmp_path)
    (tmp_path / "a.jsonl").write_text("{")
    with pytest.raises(CorruptData, match="line 1 is no JSON"):
        Texts("a.jsonl").load(tmp_path)
    (tmp_path / "a.docx").write_text("{")
    with pytest.raises(ValueError, match=r"none of the forms that texts are read from"):
        Texts("a.docx").load(tmp_path)


@pytest.mark.parametrize(("field", "value"), [("length", 1), ("length", 2.0), ("vocabulary", 2)])
def test_settings_out_of_range(field, value):
    with pytest.raises(ValueError, match=f"{field} is how many"):
        Texts("a.jsonl", **{field: value})


def test_labels_out_of_range_are_refused_but_not_those_of_padding():
    x = torch.ones(2, 3, dtype=torch.int64)
    y = torch.tensor([[1, 2, NO_LABEL]] * 2)
    words = tuple("abc")
    Loaded(Samples(x, y, vocabulary=3), Samples(x, y, vocabulary=3), words)
    with pytest.raises(ValueError, match="out of range"):
        Loaded(Samples(x, y + 1, vocabulary=3), Samples(x, y, vocabulary=3), words)


# ---------------------------------------------------------------------- Hugging Face, saved to disk
def save(folder, rows, names=()):
    """As save_to_disk of the library datasets writes a set: Arrow's stream format, and what the columns are."""
    pyarrow = pytest.importorskip("pyarrow")
    folder.mkdir(parents=True)
    table = pyarrow.table({"text": [text for text, _ in rows], "label": [label for _, label in rows]})
    with pyarrow.ipc.new_stream(str(folder / "data-00000-of-00001.arrow"), table.schema) as stream:
        stream.write_table(table)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))
    label = {"names": list(names), "_type": "ClassLabel"} if names else {"dtype": "int64", "_type": "Value"}
    (folder / "dataset_info.json").write_text(json.dumps({"features": {"label": label}}))


def test_a_saved_set_reads_as_the_file_does(tmp_path):
    rows = [(text, int(label == "good")) for text, label in sentences()[:20]]
    save(tmp_path / "set" / "train", rows, names=("bad", "good"))
    save(tmp_path / "set" / "test", rows[:4], names=("bad", "good"))
    (tmp_path / "set" / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    write(tmp_path / "a.jsonl", rows)
    write(tmp_path / "b.jsonl", rows[:4])
    saved, plain = Texts("set").load(tmp_path), Texts("a.jsonl", test="b.jsonl").load(tmp_path)
    assert torch.equal(saved.train.x, plain.train.x) and torch.equal(saved.test.y, plain.test.y)
    assert saved.classes == ("bad", "good")
    alone = Texts("set/train").load(tmp_path)
    assert len(alone.train) == 18 and len(alone.test) == 2


def test_a_test_file_beside_a_saved_set_is_refused_and_not_ignored(tmp_path):
    save(tmp_path / "set", [("one two", 0), ("two", 1)] * 4)
    write(tmp_path / "b.jsonl")
    with pytest.raises(ValueError, match=r"set is a saved set, .* leave test='b.jsonl' out"):
        Texts("set", test="b.jsonl").load(tmp_path)


def test_a_test_set_whose_labels_are_held_back_is_not_tested_on(tmp_path, classifier):
    """-1 of every row, as in the sets of GLUE: whoever has the labels keeps them."""
    told = [(text, int(label == "good")) for text, label in sentences()[:20]]
    for name, rows in (("train", told), ("validation", told[:4]), ("test", [(text, -1) for text, _ in told[:9]])):
        save(tmp_path / "set" / name, rows, names=("bad", "good"))
    for names in (["train", "validation", "test"], ["train", "test"]):
        (tmp_path / "set" / "dataset_dict.json").write_text(json.dumps({"splits": names}))
        loaded = Texts("set").load(tmp_path)
        assert len(loaded.test) == (4 if "validation" in names else 2) and loaded.test.y.min() == 0
        assert loaded.notes[-1] == f"{tmp_path / 'set' / 'test'} has -1 for every label, so it is not tested on"
    data = Texts(str(tmp_path / "set" / "test"), length=8, vocabulary=40)
    assert len(predict(classifier, Inputs(data)).found) == 9


def test_a_damaged_saved_set_is_refused(tmp_path):
    save(tmp_path / "set", [("x", 0), ("y", 1)])
    with pytest.raises(ValueError, match=r"has no column 'review', only text, label"):
        Texts("set", text="review").load(tmp_path)
    (tmp_path / "set" / "data-00000-of-00001.arrow").write_bytes(b"nothing")
    with pytest.raises(CorruptData, match="no set that save_to_disk wrote"):
        Texts("set").load(tmp_path)


def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch):
    save(tmp_path / "set", [("x", 0), ("y", 1)])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ValueError, match=r"pip install 'cutlayer\[text\]'"):
        Texts("set").load(tmp_path)


# ---------------------------------------------------------------------- reviews
def test_reviews_are_ids_with_the_labels_of_the_file(tmp_path):
    (tmp_path / "imdb").mkdir()
    for name in ("train", "test"):
        lines = [{"label": 1, "text": "Good film<br />"}, {"label": 0, "text": "bad, bad film"}]
        content = "".join(json.dumps(line) + "\n" for line in lines).encode()
        (tmp_path / "imdb" / f"{name}.jsonl.gz").write_bytes(gzip.compress(content))
    loaded = IMDB(length=4, vocabulary=9).load(tmp_path)
    assert loaded.tokenizer.decode(loaded.train.x[0].tolist()) == "good film"
    assert loaded.train.y.tolist() == [1, 0] and loaded.classes == ("negative", "positive")


def official(folder, texts):
    """The folders of the official archive: a file for each review."""
    for place, text in texts.items():
        path = folder / "aclImdb" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


OFFICIAL = {
    "train/neg/0_2.txt": "bad, bad film", "train/pos/0_9.txt": "Good film<br />", "train/pos/1_10.txt": "naïve",
    "test/neg/0_1.txt": "bad", "test/pos/0_7.txt": "good",
}  # fmt: skip


def test_the_folders_of_the_official_archive_are_read_and_data_check_knows_them(tmp_path):
    official(tmp_path, OFFICIAL)
    (tmp_path / "aclImdb/train/urls_neg.txt").write_text("not a review")
    loaded = IMDB(length=4, vocabulary=9).load(tmp_path)
    read = [loaded.tokenizer.decode(row.tolist()) for row in loaded.train.x]
    assert read == ["bad, bad film", "good film", "naïve"]
    assert loaded.train.y.tolist() == [0, 1, 1] and loaded.test.y.tolist() == [0, 1]
    assert Reviews(features=50).load(tmp_path).train.y.tolist() == [0, 1, 1], "bags of words are of the same files"
    told = {row["name"]: row for row in check(tmp_path)}["IMDB"]
    assert (
        told["found"] and not told["ok"] and told["detail"].startswith("it has 3 + 2 samples, it should have 8,000")
    )


@pytest.mark.parametrize(
    ("place", "content", "said"),
    [
        ("train/pos/0_9.txt", b" \n", r"0_9\.txt: the text ' \\n' has not a word: leave that row out"),
        ("train/pos/0_9.txt", b"caf\xe9", r"0_9\.txt is not usable: line 1 is no text in UTF-8: save it"),
        ("test/neg/0_1.txt", None, r"test.neg is not usable: it holds no review"),
    ],
)
def test_what_is_wrong_with_a_file_of_the_archive_is_said_of_that_file(tmp_path, place, content, said):
    official(tmp_path, OFFICIAL)
    if content is None:
        (tmp_path / "aclImdb" / place).unlink()
    else:
        (tmp_path / "aclImdb" / place).write_bytes(content)
    with pytest.raises(ValueError, match=said):
        IMDB(length=4, vocabulary=9).load(tmp_path)


def test_what_is_wrong_with_a_text_is_said_of_its_own_file_and_line(tmp_path):
    told = [("one two", "a"), ("three four", "b")] * 2
    write(tmp_path / "train.jsonl", told)
    write(tmp_path / "test.jsonl", [*told, (" ", "a")])
    with pytest.raises(ValueError, match=r"test\.jsonl, line 5: the text ' ' has not a word"):
        Texts("train.jsonl", test="test.jsonl").load(tmp_path)
    (tmp_path / "a.csv").write_text('text,label\n"a\n\nb",1\nc d,0\n\n<b>,1\ne f,0\n')
    with pytest.raises(ValueError, match=r"a\.csv, line 7: the text '<b>' has not a word"):
        Texts("a.csv").load(tmp_path)


def test_half_an_emoji_is_told_with_its_line(tmp_path):
    """JSON can hold it, no file of words can: a training ended in an error of Python's that named no file."""
    write(tmp_path / "a.jsonl", [("one two", "a"), ("\U0001f600"[:1] + " two", "b"), ("cut \ud83d", "a")])
    with pytest.raises(ValueError, match=r"a\.jsonl, line 3: the text .* has half of a sign"):
        Texts("a.jsonl").load(tmp_path)


def test_empty_lines_are_no_texts_and_still_lines(tmp_path):
    rows = [json.dumps({"text": f"{word} two", "label": label}) for word, label in zip("abcd", "xyxy", strict=True)]
    (tmp_path / "a.jsonl").write_text("\n".join([rows[0], "", rows[1], "  ", *rows[2:], "", ""]))
    loaded = Texts("a.jsonl", test="a.jsonl", length=3, vocabulary=9).load(tmp_path)
    assert loaded.test.places.tolist() == [1, 3, 5, 6] and loaded.test.y.tolist() == [0, 1, 0, 1]
    (tmp_path / "a.jsonl").write_text("\n".join([rows[0], "", json.dumps({"text": "", "label": "y"})]))
    with pytest.raises(ValueError, match=r"a\.jsonl, line 3: the text '' has not a word"):
        Texts("a.jsonl", test="a.jsonl", length=3, vocabulary=9).load(tmp_path)
    (tmp_path / "a.jsonl").write_text("\n\n")
    with pytest.raises(CorruptData, match="it holds no line"):
        Texts("a.jsonl").load(tmp_path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", json.dumps([{"text": "a b", "label": 0}])),
        ("a.json", json.dumps([{"text": "a b", "label": 0}], indent=1)),
        ("a.jsonl", '"a b"\n'),
    ],
)
def test_json_that_is_not_an_object_a_line_is_told_the_form(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    with pytest.raises(CorruptData, match=r"line 1 .*: write an object a line, as \{\"text\": "):
        Texts(name).load(tmp_path)


def test_a_table_that_is_packed_is_no_form_of_texts(tmp_path):
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"text,label\na,1\nb,0\n"))
    with pytest.raises(ValueError, match=r"a\.csv\.gz is none of the forms"):
        Texts("a.csv.gz").load(tmp_path)


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_lines_of_json_that_are_not_utf_8_say_what_to_save_them_as(tmp_path, encoding):
    lines = '{"text": "cafe", "label": 0}\n{"text": "café", "label": 1}\n'
    (tmp_path / "a.jsonl").write_bytes(lines.encode(encoding))
    with pytest.raises(CorruptData, match=r"a\.jsonl is not usable: line \d is no text in UTF-8: save it as UTF-8"):
        Texts("a.jsonl").load(tmp_path)
    (tmp_path / "a.jsonl").write_text(lines, encoding="utf-8-sig")
    assert len(Texts("a.jsonl", length=3).load(tmp_path).train) == 1


# ------------------------------------------------------------------------- texts whose labels nobody knows
@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    write(folder / "a.jsonl")
    data = Texts(str(folder / "a.jsonl"), length=8, vocabulary=40)
    plan = Plan(net=TextEncoder(width=8, vocabulary=40), data=data, epochs=0, private_seed=1)
    start.train(plan, folder / "run")
    return folder / "run"


NEW = [text for text, _ in sentences()[:9]]


@pytest.mark.parametrize("name", ["new.jsonl", "new.csv"])
def test_texts_without_labels_are_predicted_all_of_them_as_with_labels(classifier, tmp_path, name):
    settings = {"length": 8, "vocabulary": 40}
    lines = (
        [json.dumps({"text": text}) for text in NEW]
        if name == "new.jsonl"
        else ["text", *(f'"{text}"' for text in NEW)]
    )
    (tmp_path / name).write_text("\n".join(lines))
    write(tmp_path / "known.jsonl", sentences()[:9])
    new, known = str(tmp_path / name), str(tmp_path / "known.jsonl")
    found, same, beside = (
        predict(classifier, Inputs(data))
        for data in (Texts(new, **settings), Texts(known, test=known, **settings), Texts(known, test=new, **settings))
    )
    assert not found.known and same.known and len(found.found) == 9 and found.classes == same.classes
    assert torch.equal(found.confidence, same.confidence) and torch.equal(beside.confidence, same.confidence)
    with pytest.raises(ValueError, match=r"are 128, and this network has learnt from 8: .* the settings"):
        predict(classifier, Inputs(Texts(new, vocabulary=40)))
    with pytest.raises(ValueError, match=r"no (field|column) 'label'"):
        Texts(new, **settings).load()


def test_a_label_that_is_missing_in_one_line_is_no_file_without_labels(classifier, tmp_path):
    lines = [{"text": "one", "label": "a"}, {"text": "two"}]
    (tmp_path / "new.jsonl").write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(ValueError, match="line 2: there is no field 'label'"):
        predict(classifier, Inputs(Texts(str(tmp_path / "new.jsonl"), length=8, vocabulary=40)))


def test_texts_without_labels_by_other_words_are_refused(classifier, tmp_path):
    (tmp_path / "words.txt").write_text("[PAD]\n[UNK]\nfilm\n")
    (tmp_path / "new.jsonl").write_text(json.dumps({"text": "film"}))
    data = Texts(str(tmp_path / "new.jsonl"), length=8, vocabulary=40, words=str(tmp_path / "words.txt"))
    with pytest.raises(ValueError, match=r"words\.txt has other words than this network has learnt"):
        predict(classifier, Inputs(data))
