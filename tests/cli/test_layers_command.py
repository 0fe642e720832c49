"""`cutlayer layers`: where a network can be cut, as a table and as JSON."""

import json
from pathlib import Path

import pytest

MODELS = f"{Path(__file__).parents[1]}/nets/own_models.py"


def test_as_json(command):
    code, out, err = command("layers", f"{MODELS}:ViT(blocks=1)", "--input", "1,12,12", "--batch-size", "4", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["input"] == [1, 12, 12] and found["batch_size"] == 4
    rows = {row["name"]: row for row in found["places"]}
    assert rows["blocks.0"]["z"] == [10, 8] and rows["blocks.0"]["bytes_down"] == 4 * 4 * 80
    assert "the body is empty" in rows["head"]["why_not"]


def test_as_a_table(command):
    code, out, err = command("layers", "MnistNet", "--data", "Digits(limit=20)")
    assert code == 0, err
    lines = out.splitlines()
    assert lines[0].split() == ["layer", "z", "parameters", "MACs", "memory", "up", "down"]
    assert lines[1].split()[:3] == ["cut=2", "8x12x12", "1,058"] and len(lines) == 3
    assert "inputs of 1x28x28 and 10 classes, batches of 64" in err
    assert "gradients of activations come on top" in err


def test_classes_that_nobody_named_are_said_and_a_next_token_is_one_of_the_vocabulary(command):
    _, _, err = command("layers", "MnistNet")
    assert "inputs of 1x28x28 and 10 classes" in err
    _, _, err = command("layers", f"{MODELS}:ViT", "--input", "1,12,12")
    assert "inputs of 1x12x12, batches" in err, "a model of one's own has as many as it has"
    _, out, _ = command("layers", "TextDecoder(layers=1,width=8,at=0,vocabulary=300)", "--input", "6", "--json")
    found = json.loads(out)
    assert found["classes"] == 300 and found["places"][0]["parameters"] == (300 + 6) * 8 + 300 * 9


def test_no_cut_stands_in_the_table(command):
    code, out, _ = command("layers", f"Own('{MODELS}:ViT(blocks=1)', back='head')", "--input", "1,12,12", "--all")
    assert code == 0
    assert "blocks.0.mlp    no cut: a skip connection from" in out


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ([f"{MODELS}:ViT"], "Say the shape of one sample, e.g. --input 3,32,32"),
        ([f"{MODELS}:VIT", "--input", "1,12,12"], "has no class or function 'VIT'; it has"),
        (["ResNet19"], "there is no 'ResNet19' among the nets; did you mean ResNet18"),
        (["MnistNet", "--input", "a,b"], "--input is the shape of one sample"),
        (["MnistNet", "--input", "1,4,4"], "MnistNet reads (channels, height, width) of at least 16x16"),
        (["MnistNet", "--input", "1,28,28", "--data", "Digits"], "leave one out"),
        (["MnistNet", "--batch-size", "0"], "--batch-size is how many samples a step has"),
    ],
)
def test_what_is_refused(command, words, error):
    code, out, err = command("layers", *words)
    assert code == 1 and out == "" and error in err and "Traceback" not in err
