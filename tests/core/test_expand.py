"""One text for many specs."""

from itertools import product

import pytest

from cutlayer.core.expand import MOST, expanded
from cutlayer.guards import Chain, LightSplit, Quantize
from cutlayer.training.plan.plan_text import read_guards


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("BF16()", ["BF16()"]),
        ("Quantize(bits={1, 2,4})", ["Quantize(bits=1)", "Quantize(bits=2)", "Quantize(bits=4)"]),
        ("A(x={1,2}, y={3,4})", ["A(x=1, y=3)", "A(x=1, y=4)", "A(x=2, y=3)", "A(x=2, y=4)"]),
        ("Chain(A(r={2,4}), B(b=8))", ["Chain(A(r=2), B(b=8))", "Chain(A(r=4), B(b=8))"]),
        ("Chain(A(), {B(x=1, y=2), C([1, 2])})", ["Chain(A(), B(x=1, y=2))", "Chain(A(), C([1, 2]))"]),
        ("{A(x={1,2}),B()}", ["A(x=1)", "A(x=2)", "B()"]),
        ("A(x={1,1})", ["A(x=1)"]),
        ("A(x={7})", ["A(x=7)"]),
        ("A(name='{1,2}')", ["A(name='{1,2}')"]),
        ("A(name={'a,b','c}'})", ["A(name='a,b')", "A(name='c}')"]),
    ],
)
def test_braces_stand_for_one_spec_each(text, found):
    assert expanded(text) == found


def test_several_braces_are_all_combinations():
    text = "Chain(LightSplit(ratio={2,4,8}), Quantize(bits={2,4}))"
    wanted = [Chain(LightSplit(ratio=r), Quantize(bits=b)) for r, b in product((2, 4, 8), (2, 4))]
    assert read_guards([text, "none"])[:-1] == wanted


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A(x={1,2)", "never closed"),
        ("A(x=1,2})", "without an opening one"),
        ("A(x={1,{2,3})", "never closed"),
        ("A(x={})", "nothing in them"),
        ("A(x={1,,2})", "nothing in them"),
        ("A(x={1,2,})", "nothing in them"),
        ("A(x='1)", "quote that is never closed"),
        ("A(" + "x={1,2,3,4}, " * 5 + ")", f"more than {MOST}"),
    ],
)
def test_what_cannot_be_read_is_said(text, words):
    with pytest.raises(ValueError, match=words):
        expanded(text)
