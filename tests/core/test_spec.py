"""Objects as text: safe, exact, and helpful when mistyped."""

import pytest
from toys import GUARDS

from cutlayer.core.spec import HOMES, names, spec, summary
from cutlayer.data.digits import Digits
from cutlayer.data.partitions import Dirichlet
from cutlayer.guards import Chain, LightSplit, Quantize
from cutlayer.nets.resnet import ResNet18
from cutlayer.training import Compression, Pretrained
from cutlayer.training.plan.lr_schedules import Cosine
from cutlayer.training.plan.optimizers import SGD
from cutlayer.training.plan.plan import Plan
from cutlayer.training.protocols import Bypass

PLAN = Plan(
    net=ResNet18(depth=2), data=Digits(limit=100), protocol=Bypass(home=0.25, fusion="hybrid"), guard=GUARDS[-1],
    partition=Dirichlet(alpha=0.3), start=Pretrained("w.pt", skip_tail=True),
    compression=Compression(answers=Quantize(bits=8)), clients=4,
    frozen_parts=("head",), client_optimizer=SGD(lr=0.1), schedule=Cosine(), seed=3,
)  # fmt: skip


def test_a_whole_plan_is_text():
    assert spec(repr(PLAN)) == PLAN
    assert "private" not in repr(PLAN)


def test_defaults_are_left_out_and_required_fields_shown():
    assert repr(LightSplit(ratio=8)) == "LightSplit(ratio=8)"
    assert repr(LightSplit(ratio=8, hidden=4)) == "LightSplit(ratio=8, hidden=4)"
    assert repr(Chain(LightSplit(ratio=8))) == "Chain(LightSplit(ratio=8))"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("LightSplitt(ratio=8)", "did you mean LightSplit"),
        ("lightsplit(ratio=8)", "did you mean LightSplit"),
        ("Zebra()", "there is no 'Zebra' among the guards"),
        ("LightSplit(ratio=8", "write it as Name"),
        ("LightSplit(width=8)", "LightSplit takes ratio, hidden=0"),
        ("LightSplit()", "LightSplit takes ratio"),
        ("WCC(weight='a')", "WCC's weight is a number"),
        ("LightSplit(ratio=8, projection=8)", "projection is Fast"),
        ("LightSplit(ratio=__import__('os'))", "write it as Name|there is no '__import__'"),
        ("LightSplit(ratio=[1 for _ in 'ab'])", "arguments are numbers, strings or other specs"),
        ("LightSplit(**{'ratio': 8})", r"\*\* is not allowed"),
        ("os.system('true')", "write it as Name"),
        ("Digits()", "there is no 'Digits' among the guards"),
        ("LightSplit(ratio=8, ratio=4)", "LightSplit has 'ratio' twice"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_way_out(text, words):
    with pytest.raises(ValueError, match=words):
        spec(text, "guards")


@pytest.mark.parametrize("kind", HOMES)
def test_everything_that_can_be_typed_has_a_summary(kind):
    for name, thing in names(kind).items():
        assert len(summary(thing)) > 15, f"{name} needs a first docstring line for `cutlayer list {kind}`"


def test_a_name_means_one_thing():
    everything = [name for kind in HOMES for name in names(kind)]
    assert len(everything) == len(set(everything))


@pytest.mark.parametrize("text", [
    "LightSplit(ratio=True)",
    "WCC(True)",
    "Gaussian(epsilon=True)",
    "Quantize(bits=True)",
    "Chain(TopK(share=False), WCC(weight=0.1))",
    "Dirichlet(alpha=True)",
])  # fmt: skip
def test_true_is_no_number(text):
    with pytest.raises(ValueError, match=r"is a number; got (True|False)"):
        spec(text)


@pytest.mark.parametrize("text", ["Quantize(entropy='no')", "NoPeek(squared=0)", "SplitFed(fresh='false')"])
def test_a_word_or_a_number_is_no_truth_value(text):
    with pytest.raises(ValueError, match="is True or False; got"):
        spec(text)


def test_where_a_truth_value_is_meant_it_is_taken():
    assert spec("Quantize(4, 'nearest', True)").entropy and spec("SEAL(fixed=True)").fixed
