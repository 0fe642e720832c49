"""What a step must be to be captured as a graph, and that a captured one is the plain one, bit for bit."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from toys import TASK, tiny_parts, tiny_plan

from cutlayer.core.message import Kind, Message
from cutlayer.engines.local.captured import Draws, why_not_captured
from cutlayer.engines.local.run import LocalRun
from cutlayer.guards import SEAL, LightSplit, NoGuard, Noise, Quantize, TopK
from cutlayer.guards.chain import Chain
from cutlayer.training.plan.optimizers import SGD, Adam
from cutlayer.wire.ledger import Ledger

CUDA = torch.device("cuda")


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        (tiny_plan(), None),
        (tiny_plan(guard=Chain(TopK(), Quantize(bits=4))), None),
        (tiny_plan(guard=Noise()), "Noise"),
        (tiny_plan(guard=Chain(LightSplit(ratio=2), Noise())), "Noise"),
        (tiny_plan(batch_size=8, micro_batches=2), "micro-batches"),
    ],
    ids=str,
)
def test_what_hangs_on_more_than_tensors_is_not_captured(plan, reason):
    found = why_not_captured(plan, CUDA, watched=False)
    assert found is None if reason is None else reason in found
    assert "cpu" in why_not_captured(plan, torch.device("cpu"), watched=False)
    assert "rewrite" in why_not_captured(tiny_plan(), CUDA, watched=True)


@pytest.mark.parametrize(
    ("module", "drawn"),
    [(nn.Dropout(0.5), True), (nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU()), False)],
)
def test_a_step_that_draws_is_noticed(module, drawn):
    rows = torch.rand(8, 4)
    with Draws() as draws:
        module(rows).sum()
    assert bool(draws.by) == drawn


def test_messages_that_cross_again_count_again():
    messages = [Message(Kind.FORWARD, 0, step, {"z": torch.rand(4, 50).relu()}) for step in range(2)]
    plain, repeated = Ledger(), Ledger()
    with repeated.recording() as crossed:
        repeated.note(messages[0], "up")
    assert not repeated.bytes and not repeated.messages
    for _ in range(3):
        plain.note(messages[0], "up")
        repeated.again(crossed, torch.zeros(1))
    assert plain.as_dict() == repeated.as_dict()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs are CUDA's")
@pytest.mark.parametrize("guard", [NoGuard(), LightSplit(ratio=2), SEAL(energy=0.7), Quantize(bits=4)], ids=str)
@pytest.mark.parametrize("optimizer", [SGD(lr=0.01), Adam()], ids=str)
def test_captured_is_plain_bit_for_bit(guard, optimizer, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    plan = replace(tiny_plan(guard=guard, epochs=3), client_optimizer=optimizer, server_optimizer=optimizer)
    runs = [LocalRun(plan.with_secrets(), tiny_parts(), classes=TASK.classes, device="cuda") for _ in range(2)]
    runs[0].captured.why_not = "the plain one is wanted"
    for run in runs:
        run.train()
    assert runs[1].captured.why_not is None
    weights = [torch.cat([t.flatten() for t in run.server.body.parameters()]) for run in runs]
    assert torch.equal(*weights) and runs[0].ledger.as_dict() == runs[1].ledger.as_dict()
