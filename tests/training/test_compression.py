"""Ratios: the units of the papers, from counted bytes, and what a model on paper says beside them."""

from dataclasses import replace

import pytest
import torch
from masked import TEXTS, MaskedNet
from toys import TASK, samples, tiny_parts, tiny_plan

from cutlayer.core.batch import Task
from cutlayer.core.compressor import Compression
from cutlayer.core.message import Kind, Message
from cutlayer.data.base import Parts
from cutlayer.engines.local.run import LocalRun
from cutlayer.guards import LFQ, Chain, LightSplit, Quantize
from cutlayer.nets import MLP, SignalNet
from cutlayer.nets.resnet import ResNet18
from cutlayer.training.facts.compression import compared, crossing, lines, rates
from cutlayer.training.protocols import UShaped, Vanilla
from cutlayer.wire.ledger import Ledger

FEATURES, ANSWERS, PIXELS, SAMPLES = 4 * 5 * 5, 7, 144, 48


def measured(**changes):
    plan = tiny_plan(epochs=1, batch_size=8, **changes)
    run = LocalRun(plan, tiny_parts(), classes=TASK.classes)
    run.train()
    return rates(plan, run.task, run.ledger), run.ledger


@pytest.mark.parametrize("protocol", [UShaped(), Vanilla()], ids=repr)
def test_figures_follow_from_the_bytes_that_were_counted(protocol):
    found, ledger = measured(protocol=protocol, guard=LightSplit(ratio=4))
    forward = "FORWARD" if protocol == UShaped() else "LOSS"
    sent = ledger.bytes[forward, "up"] / SAMPLES
    assert found["bits per feature"] == pytest.approx(8 * sent / FEATURES)
    assert found["bits per input pixel"] == pytest.approx(8 * sent / PIXELS)
    whole = sum(count for (kind, _), count in ledger.bytes.items() if kind in ("FORWARD", "LOSS", "BACKWARD"))
    plain = SAMPLES * (8 * FEATURES + (8 * ANSWERS if protocol == UShaped() else 8))
    assert found["total ratio"] == pytest.approx(plain / whole)
    assert sum(found["by message"].values()) == pytest.approx(whole / SAMPLES)


def test_without_a_guard_the_ratio_is_what_the_frames_cost():
    # ReLU leaves zeros, which the wire leaves out; behind a rotation there are none.
    found, _ = measured(guard=LightSplit(ratio=1))
    assert 0.7 < found["total ratio"] <= 1 and found["bits per feature"] >= 32


def test_fewer_bits_in_all_four_messages_show_in_the_whole_ratio_and_not_in_the_model():
    guard = Quantize(bits=8)
    one, _ = measured(guard=guard)
    four, _ = measured(guard=guard, compression=Compression(Quantize(bits=8), Quantize(bits=8)))
    assert four["total ratio"] > 1.3 * one["total ratio"]
    assert (
        four["cost model"]["ratio"] == pytest.approx(one["cost model"]["ratio"], rel=0.05)
        and one["cost model"]["ratio"] < 2
    )


def test_before_the_first_step_there_is_nothing_to_say():
    assert rates(replace(tiny_plan()), TASK, Ledger())["total ratio"] is None


def test_the_ratios_of_a_real_cut_of_4096():
    """ResNet-18 at 64x8x8: the bars of docs/evidence/compression-4096.md, in one step on pictures of no meaning."""
    task = Task((3, 32, 32), 3)
    eight = Quantize(bits=8)
    guard = Chain(LightSplit(ratio=8), Quantize(bits=4))
    plan = tiny_plan(
        net=ResNet18(depth=2), guard=guard, compression=Compression(eight, eight), epochs=1, batch_size=64
    )
    run = LocalRun(plan, Parts(*(samples(count, count, task) for count in (64, 3, 3, 3))), classes=3)
    run.train()
    found = rates(plan, run.task, run.ledger)
    assert 4 * 4096 / found["by message"]["FORWARD up"] >= 60
    assert found["total ratio"] >= 18 and found["cost model"]["ratio"] < 2


def test_messages_by_what_is_in_them_and_what_the_model_omits():
    u_shape, _ = measured(guard=LightSplit(ratio=4), compression=Compression(gradients=Quantize(bits=8)))
    vanilla, _ = measured(protocol=Vanilla(), guard=LFQ(bits=3, freq=2))
    assert list(crossing(u_shape)) == ["z up", "u down", "du up", "dz down"]
    assert list(crossing(vanilla)) == ["z, y up", "loss down", "scale up", "dz down", "decoder up", "decoder down"]
    assert sum(crossing(vanilla).values()) == pytest.approx(sum(vanilla["by message"].values()))
    decoder = crossing(vanilla)["decoder up"] + crossing(vanilla)["decoder down"]
    assert vanilla["amortised"] == pytest.approx(decoder) and decoder > 0
    assert vanilla["total ratio"] == pytest.approx((8 * FEATURES + 8) / sum(crossing(vanilla).values()))
    beside = compared(u_shape)
    told = crossing(u_shape)
    assert beside["z and dz"] == pytest.approx(8 * FEATURES / (told["z up"] + told["dz down"]))
    assert beside["model"] == pytest.approx(2 / (1 + told["z up"] / (4 * FEATURES)))
    assert "u down" in beside["omits"] and "of plain floats" in beside["omits"] and "z up" not in beside["omits"]


def test_the_summary_of_a_run_has_the_exact_names():
    found, _ = measured(guard=LightSplit(ratio=4))
    told = "\n".join(lines(found))
    for name in ("bits per feature", "bits per input pixel", "uplink ratio", "total ratio"):
        assert f"{name} {found[name]:.3g}" in told
    assert "z up" in told and "2/(1 + rho)" in told
    assert lines(rates(tiny_plan(), TASK, Ledger())) == []


@pytest.mark.parametrize(
    ("net", "task", "unit"),
    [(MaskedNet(), TEXTS, "token"), (MLP(), Task((9,), 3), "number"), (SignalNet(), Task((2, 40), 3), "place")],
    ids=["texts", "rows", "signals"],
)
def test_of_texts_and_rows_bits_are_those_of_a_token_or_a_number(net, task, unit):
    ledger = Ledger()
    ledger.samples["training"] = 4
    ledger.note(Message(Kind.FORWARD, 0, 0, {"z": torch.zeros(4, 2)}), "up")
    told = lines(rates(tiny_plan(net=net), task, ledger))[0]
    assert f"bits per input {unit} " in told and "pixel" not in told
