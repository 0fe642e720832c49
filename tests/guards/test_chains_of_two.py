"""Every chain of two guards is refused with a sentence, or sends bytes that are counted; none compresses in vain."""

import pytest
from chains_of_two import one_of_a_kind, pairs, sent_bytes
from toys import ALL_GUARDS, TASK, activations, batches, cut_of

from cutlayer.core.seeds import seeded
from cutlayer.guards import Quantize, TopK

SINGLE = [guard for guard in ALL_GUARDS if len(guard.stages()) == 1]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("first", one_of_a_kind(), ids=repr)
def test_behind_any_guard_nothing_that_only_compresses_makes_more_bytes(first):
    others = [one for one in SINGLE if one.only_compresses or one in one_of_a_kind()]
    for pair in pairs(first, others):
        assert pair.size is not None or pair.why.strip()
        assert not pair.grows, f"{pair.second} behind {first}: {pair.size} bytes, {pair.alone} without it"


@pytest.mark.parametrize("guard", SINGLE, ids=repr)
def test_a_guard_that_packs_says_so(guard):
    """Chains are refused by it."""
    with seeded(0):
        module = guard.build(cut_of(guard), 1, 2, TASK)
        module(activations(guard), batches(1)[0])
    assert guard.packs == (module.packed is not None)
    assert guard.only_compresses or not guard.packs


def test_dropping_and_rounding_together_send_less_than_either():
    first = TopK(share=0.2)
    (both,) = pairs(first, [Quantize(bits=4)])
    assert both.size < 0.6 * both.alone and both.size < sent_bytes(Quantize(bits=4))
