"""What a step must be to be captured as a graph, and that a captured one is the plain one, bit for bit."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch import nn
from toys import TASK, TinyNet, tiny_parts, tiny_plan

from cutlayer.core.message import Kind, Message
from cutlayer.engines.local.captured import CapturedSteps, Draws, why_not_captured
from cutlayer.engines.local.run import LocalRun
from cutlayer.guards import LFQ, SEAL, LightSplit, NoGuard, Noise, Quantize, TopK
from cutlayer.guards.chain import Chain
from cutlayer.training.plan.optimizers import SGD, Adam
from cutlayer.training.plan.schedule import Relay
from cutlayer.training.step import learn
from cutlayer.wire.ledger import Ledger

CUDA = torch.device("cuda")
GUARDS = [NoGuard(), LightSplit(ratio=2), SEAL(energy=0.7), Quantize(bits=4), LFQ(bits=3, freq=2)]


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        (tiny_plan(), None),
        (tiny_plan(guard=Chain(TopK(), Quantize(bits=4))), None),
        (tiny_plan(guard=Noise()), "Noise"),
        (tiny_plan(guard=Chain(LightSplit(ratio=2), Noise())), "Noise"),
        (tiny_plan(batch_size=8, micro_batches=2), "micro-batches"),
        (tiny_plan(rounds=Relay(ahead=1), local_steps=0), "before the one before"),
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


class Graph:
    """Stands in for a CUDA graph: what is captured runs at once, so the first replay has nothing left to do."""

    def replay(self):
        pass


@pytest.fixture
def graphs(monkeypatch):
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, pool: nullcontext())
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", object)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: None)
    monkeypatch.setattr("cutlayer.engines.local.captured._draw_again_from", lambda state, device: None)


def after(steps, captured, spoiled=False, **changes):
    """All that steps leave behind, at the client and at the server. Spoiled: the capture breaks off half way back."""
    plan = tiny_plan(net=TinyNet(norm="group"), batch_size=8, **changes)
    run = LocalRun(plan, tiny_parts(), classes=TASK.classes)
    client, made = run.clients[0], CapturedSteps(run.server, run.ledger)
    for number, index in enumerate(client.order(0)[:steps]):
        breaks = [spoiled and number == steps - 1]

        def broken_off(*given, breaks=breaks):
            if breaks.pop() if breaks else False:
                raise RuntimeError("operation not permitted when stream is capturing")

        handle = client.network.split.tail.register_full_backward_hook(broken_off)
        (made if captured else learn)(client.network, client.batch(index))
        handle.remove()
    assert client.steps == steps and (not captured or any(made._kept.values()) != spoiled)
    left = {name: t.clone() for name, t in run.snapshot()[0].items()}
    figures = run.ledger.as_dict(), client.network.remote.next_step(), run.server.bodies.updates, client.steps
    return left, figures, made.why_not


@pytest.mark.usefixtures("graphs")
@pytest.mark.parametrize("spoiled", [False, True], ids=["captured", "cannot be captured"])
def test_a_step_that_is_captured_or_fails_to_be_leaves_what_a_plain_one_leaves(spoiled):
    plain, captured = after(4, captured=False), after(4, captured=True, spoiled=spoiled)
    assert captured[1] == plain[1]
    assert captured[0].keys() == plain[0].keys()
    assert all(torch.equal(t, captured[0][name]) for name, t in plain[0].items())
    assert (captured[2] is None) != spoiled and (not spoiled or "not permitted" in captured[2])


@pytest.mark.usefixtures("graphs")
@pytest.mark.parametrize("decoder", ["server", "client"])
def test_halves_of_a_guard_are_exchanged_between_captured_steps(decoder):
    guard = LFQ(bits=3, freq=3, decoder=decoder)  # due before the fourth step, which is the captured one
    plain, captured = (after(4, captured=way, guard=guard) for way in (False, True))
    assert captured[1] == plain[1] and any(row["kind"] == "LIFT" for row in plain[1][0]["rows"])
    assert all(torch.equal(t, captured[0][name]) for name, t in plain[0].items())
    assert captured[2] is None and why_not_captured(tiny_plan(guard=guard), CUDA, watched=False) is None
    assert "LFQ" in why_not_captured(tiny_plan(guard=LFQ(pre=3, decoder="client")), CUDA, watched=False)


@pytest.mark.usefixtures("graphs")
def test_graphs_are_kept_of_the_clients_that_stepped_last(monkeypatch):
    monkeypatch.setattr("cutlayer.engines.local.captured.MOST_KEPT", 8)
    plan = tiny_plan(clients=11, shared_client_network=False, batch_size=4)
    run = LocalRun(plan, tiny_parts(16 * plan.clients), classes=TASK.classes)
    steps = CapturedSteps(run.server, run.ledger)
    for client in run.clients:
        for index in client.order(0)[:4]:
            steps(client.network, client.batch(index))
    kept = list(range(3, plan.clients))
    assert list(steps._kept) == list(steps._stands) == kept and all(steps._kept[number] for number in kept)


@pytest.mark.usefixtures("graphs")
def test_a_batch_of_another_size_is_computed_as_it_is_before_it_is_captured():
    run = LocalRun(tiny_plan(batch_size=8), tiny_parts(), classes=TASK.classes)
    client, steps = run.clients[0], CapturedSteps(run.server, run.ledger)
    whole, odd = client.order(0)[0], client.order(0)[0][:3]
    known = []
    for index in (whole, whole, whole, whole, odd, odd):
        steps(client.network, client.batch(index))
        known.append(len(steps._kept[0]))
    assert known == [0, 0, 0, 1, 1, 2]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs are CUDA's")
def test_dropout_works_behind_a_capture_that_failed(monkeypatch):
    run = LocalRun(tiny_plan(batch_size=8), tiny_parts(), classes=TASK.classes, device="cuda")
    client, steps = run.clients[0], CapturedSteps(run.server, run.ledger)
    ones, looks = torch.ones(64, device="cuda"), []

    def looked_at(*given):
        looks.append(float(given[-1].sum()) if steps._looked else 0.0)  # which no graph may do

    client.network.split.head.register_forward_hook(looked_at)
    for index in client.order(0)[:4]:
        steps(client.network, client.batch(index))
    assert steps.why_not is not None and len(looks) >= 4
    torch.manual_seed(3)
    first = nn.functional.dropout(ones)
    torch.manual_seed(3)
    assert torch.equal(first, nn.functional.dropout(ones)) and 0 < first.count_nonzero() < 64


@pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs are CUDA's")
@pytest.mark.parametrize("guard", GUARDS, ids=str)
@pytest.mark.parametrize("optimizer", [SGD(lr=0.01), Adam()], ids=str)
def test_captured_is_plain_bit_for_bit(guard, optimizer, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    plan = replace(
        tiny_plan(guard=guard, epochs=3, batch_size=8), client_optimizer=optimizer, server_optimizer=optimizer
    )
    runs = [LocalRun(plan.with_secrets(), tiny_parts(), classes=TASK.classes, device="cuda") for _ in range(2)]
    runs[0].captured.why_not = "the plain one is wanted"
    for run in runs:
        run.train()
    assert runs[1].captured.why_not is None and any(runs[1].captured._kept.values())
    weights = [torch.cat([t.flatten() for t in run.server.body.parameters()]) for run in runs]
    assert torch.equal(*weights) and runs[0].ledger.as_dict() == runs[1].ledger.as_dict()
