"""Ratios: the units of the papers, from counted bytes, and what a model on paper says beside them."""

from dataclasses import replace

import pytest
from toys import TASK, tiny_parts, tiny_plan

from cutlayer.engines.local import LocalRun
from cutlayer.guards import LightSplit, Quantize
from cutlayer.ledger import Ledger
from cutlayer.rates import rates
from cutlayer.split import UShaped, Vanilla

FEATURES, ANSWERS, PIXELS, SAMPLES = 4 * 5 * 5, 7, 144, 48


def measured(**changes):
    plan = tiny_plan(epochs=1, batch=8, **changes)
    run = LocalRun(plan, tiny_parts(), classes=TASK.classes)
    run.train()
    return rates(plan, run.task, run.ledger), run.ledger


@pytest.mark.parametrize("protocol", [UShaped, Vanilla])
def test_figures_follow_from_the_bytes_that_were_counted(protocol):
    found, ledger = measured(protocol=protocol, guard=LightSplit(ratio=4))
    forward = "FORWARD" if protocol is UShaped else "LOSS"
    sent = ledger.bytes[forward, "up"] / SAMPLES
    assert found["bits per feature"] == pytest.approx(8 * sent / FEATURES)
    assert found["bits per input pixel"] == pytest.approx(8 * sent / PIXELS)
    whole = sum(count for (kind, _), count in ledger.bytes.items() if kind in ("FORWARD", "LOSS", "BACKWARD"))
    plain = SAMPLES * (8 * FEATURES + (8 * ANSWERS if protocol is UShaped else 8))
    assert found["total ratio"] == pytest.approx(plain / whole)
    assert sum(found["by message"].values()) == pytest.approx(whole / SAMPLES)


def test_without_a_guard_the_ratio_is_what_the_frames_cost():
    # ReLU leaves zeros, which the wire leaves out; behind a rotation there are none.
    found, _ = measured(guard=LightSplit(ratio=1))
    assert 0.7 < found["total ratio"] <= 1 and found["bits per feature"] >= 32


def test_fewer_bits_in_all_four_messages_show_in_the_whole_ratio_and_not_in_the_model():
    guard = Quantize(bits=8)
    one, _ = measured(guard=guard)
    four, _ = measured(guard=guard, down=Quantize(bits=8), back=Quantize(bits=8))
    assert four["total ratio"] > 1.3 * one["total ratio"]
    assert (
        four["cost model"]["ratio"] == pytest.approx(one["cost model"]["ratio"], rel=0.05)
        and one["cost model"]["ratio"] < 2
    )


def test_before_the_first_step_there_is_nothing_to_say():
    assert rates(replace(tiny_plan()), TASK, Ledger())["total ratio"] is None
