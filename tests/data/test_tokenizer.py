import json
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutlayer.data.base import CorruptData
from cutlayer.data.tokenizer import PAD, UNKNOWN, WordTokenizer, built_from, pieces, read_tokenizer

WORDS = ["[PAD]", "[UNK]", "the", "film", "wasn't", ",", "."]


def test_words_and_signs_become_ids_and_a_text_again():
    tokenizer = WordTokenizer(WORDS)
    ids = tokenizer.encode("The film, <br /> it wasn't.")
    assert ids == [2, 3, 5, UNKNOWN, 4, 6]
    assert tokenizer.decode([*ids, PAD, PAD]) == "the film, [UNK] wasn't."


def test_the_commonest_words_are_known_and_of_equals_the_first_in_the_alphabet():
    tokenizer = built_from(["b a c c", "c b a d"], vocabulary=5)
    assert tokenizer.words == ("[PAD]", "[UNK]", "c", "a", "b")
    assert tokenizer.encode("d") == [UNKNOWN]


def test_only_so_many_ids_as_asked_for():
    assert WordTokenizer(WORDS).encode("the the the the", 2) == [2, 2]


def test_a_list_with_capitals_tells_them_apart():
    assert WordTokenizer([*WORDS, "Anna"]).encode("Anna anna") == [7, UNKNOWN]
    assert WordTokenizer([*WORDS, "anna"]).encode("Anna anna") == [7, 7]


@settings(max_examples=40)
@given(st.text())
def test_no_letter_of_a_text_is_lost(text):
    assert "".join(pieces(text.replace("<", ""), cased=True)) == "".join(text.replace("<", "").split())


def test_a_list_of_words_is_the_same_after_the_disk(tmp_path):
    tokenizer = built_from(["it's a « film » of 1931!"], 50)
    (tmp_path / "words.txt").write_text(tokenizer.as_text(), encoding="utf-8")
    assert read_tokenizer(tmp_path / "words.txt").words == tokenizer.words


@pytest.mark.parametrize(
    ("lines", "why"),
    [(["the", "film"], "begins with"), (["[PAD]", "[UNK]", "a", "a"], "'a' is there twice"), ([], "begins with")],
)
def test_a_list_that_is_none_is_refused(tmp_path, lines, why):
    path = tmp_path / "words.txt"
    path.write_text("".join(f"{line}\n" for line in lines))
    with pytest.raises(CorruptData, match=why):
        read_tokenizer(path)


def test_a_list_that_is_not_utf_8_says_what_to_save_it_as(tmp_path):
    path, words = tmp_path / "words.txt", "[PAD]\n[UNK]\ncafé\n"
    path.write_bytes(words.encode("latin-1"))
    with pytest.raises(CorruptData, match="line 3 is no text in UTF-8: save it as UTF-8"):
        read_tokenizer(path)
    path.write_text(words, encoding="utf-8-sig")
    assert read_tokenizer(path).words[2] == "café", "the mark that some editors write is no part of a word"


def tokenizer_json(path, words, unknown="[UNK]"):
    ids = {word: place for place, word in enumerate(words)}
    content = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "post_processor": None,
        "normalizer": {"type": "Lowercase"}, "pre_tokenizer": {"type": "Whitespace"}, "decoder": None,
        "model": {"type": "WordLevel", "vocab": ids, "unk_token": unknown},
    }  # fmt: skip
    path.write_text(json.dumps(content))
    return path


def test_a_tokenizer_json_is_read_by_its_library(tmp_path):
    pytest.importorskip("tokenizers")
    found = read_tokenizer(tokenizer_json(tmp_path / "tokenizer.json", WORDS))
    assert found.encode("The film") == [2, 3]
    assert found.words == tuple(WORDS)
    assert found.decode([2, 3, PAD]) == "the film"


def test_a_tokenizer_json_that_pads_with_another_id_is_refused(tmp_path):
    pytest.importorskip("tokenizers")
    with pytest.raises(ValueError, match=r"has '<s>' at id 0, and that is what texts are padded with"):
        read_tokenizer(tokenizer_json(tmp_path / "tokenizer.json", ["<s>", "[PAD]", "[UNK]"]))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CorruptData, match=r"no tokenizer\.json"):
        read_tokenizer(tmp_path / "tokenizer.json")


def test_a_tokenizer_json_says_which_of_its_ids_is_the_unknown_word(tmp_path):
    pytest.importorskip("tokenizers")
    words, path = ["<pad>", "</s>", "the", "<unk>"], tmp_path / "tokenizer.json"
    assert read_tokenizer(tokenizer_json(path, words, "<unk>")).unknown == 3
    content = json.loads(path.read_text())
    scores = [[word, 0.0] for word in words]
    for model, unknown in [
        ({"type": "Unigram", "vocab": scores, "unk_id": 3}, 3),
        ({"type": "Unigram", "vocab": scores, "unk_id": None}, None),
        ({"type": "BPE", "vocab": {"<pad>": 0, "a": 1, "<unk>": 2}, "merges": [], "unk_token": "<unk>"}, 2),
        ({"type": "BPE", "vocab": {"<pad>": 0, "a": 1}, "merges": []}, None),
    ]:
        path.write_text(json.dumps(content | {"model": model}))
        assert read_tokenizer(path).unknown == unknown, model


def test_padding_that_is_written_in_a_text_is_nothing(tmp_path):
    """A network takes what lies behind padding for no part of the text."""
    pytest.importorskip("tokenizers")
    path = tokenizer_json(tmp_path / "tokenizer.json", WORDS)
    added = {"id": 0, "content": "[PAD]", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    content = json.loads(path.read_text()) | {"added_tokens": [added | {"special": True}]}
    path.write_text(json.dumps(content))
    assert read_tokenizer(path).encode("the [PAD] film") == [2, 3]


def test_a_tokenizer_json_that_has_no_id_for_a_word_is_a_sentence(tmp_path):
    pytest.importorskip("tokenizers")
    path = tokenizer_json(tmp_path / "tokenizer.json", ["[PAD]", "the"])
    assert read_tokenizer(path).encode("the") == [1]
    with pytest.raises(CorruptData, match=r"tokenizer\.json is not usable: .* 'the film' .*Missing \[UNK\] token"):
        read_tokenizer(path).encode("the film")
    with pytest.raises(ValueError, match="has no id at id 0"):
        read_tokenizer(tokenizer_json(path, []))


def test_without_the_library_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ValueError, match=r"pip install 'cutlayer\[text\]'"):
        read_tokenizer(tokenizer_json(tmp_path / "tokenizer.json", WORDS))
