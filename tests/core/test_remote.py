"""The conversation of one step: what is asked, in which order, and what happens when it goes wrong."""

import pytest
import torch
from torch import nn
from toys import TASK, batches, split_and_whole, tiny_plan

from cutlayer.core.errors import NonFinite, ProtocolError
from cutlayer.core.lost_numbers import refuse_lost_numbers
from cutlayer.core.message import Kind, Message, through
from cutlayer.core.remote import Remote
from cutlayer.core.server import Server
from cutlayer.core.stepping import backward
from cutlayer.training.protocols import Vanilla
from cutlayer.training.step import learn, predict


def linear_server():
    torch.manual_seed(0)
    body = nn.Linear(3, 2)
    return Server(body, torch.optim.SGD(body.parameters(), lr=0.1))


def test_a_retried_message_gets_the_same_answer_and_no_second_update():
    server = linear_server()
    z, du = torch.randn(4, 3), torch.ones(4, 2)
    forward = Message(Kind.FORWARD, 0, 0, {"z": z})
    backward = Message(Kind.BACKWARD, 0, 0, {"du": du})
    u = server.handle(forward)
    assert server.handle(forward) is u
    dz, weights = server.handle(backward), server.body.weight.clone()
    assert torch.equal(server.handle(backward)["dz"], dz["dz"])
    assert torch.equal(server.body.weight, weights) and server.bodies.updates == 1


def asked_for_gradients(server, steps=3):
    """Answers to some steps, in the order in which a client asks."""
    draw, found = torch.Generator().manual_seed(1), []
    for step in range(steps):
        z, du = torch.randn(4, 3, generator=draw), torch.randn(4, 2, generator=draw)
        found.append(server.handle(Message(Kind.FORWARD, 0, step, {"z": z}))["u"])
        found.append(server.handle(Message(Kind.BACKWARD, 0, step, {"du": du}))["dz"])
    return found


def test_a_server_that_answers_first_steps_before_it_answers_again():
    plain, first = linear_server(), linear_server()
    first.answers_first = True
    for one, other in zip(asked_for_gradients(plain), asked_for_gradients(first), strict=True):
        assert torch.equal(one, other)
    assert not torch.equal(plain.body.weight, first.body.weight) and first.bodies.updates == 2
    first.catch_up()
    first.catch_up()
    assert torch.equal(plain.body.weight, first.body.weight) and first.bodies.updates == 3


def test_a_step_that_is_owed_is_made_once_however_often_its_gradient_comes():
    server = linear_server()
    server.answers_first = True
    backward = Message(Kind.BACKWARD, 0, 0, {"du": torch.ones(4, 2)})
    server.handle(Message(Kind.FORWARD, 0, 0, {"z": torch.ones(4, 3)}))
    assert server.handle(backward) is server.handle(backward)
    server.catch_up()
    assert server.bodies.updates == 1


def test_a_step_that_is_owed_goes_with_the_client_that_starts_anew():
    server = linear_server()
    server.answers_first = True
    asked_for_gradients(server, 1)
    before = server.body.weight.clone()
    server.forget(1)
    server.forget(0)
    server.catch_up()
    assert torch.equal(server.body.weight, before) and server.bodies.updates == 0


def test_who_waits_for_dz_does_not_wait_for_gradients_of_the_weights():
    server = linear_server()
    server.answers_first = True
    asked_for_gradients(server, 1)
    assert server.body.weight.grad is None
    server.bodies.step = lambda: None
    server.catch_up()
    assert server.body.weight.grad is not None


@pytest.mark.parametrize("first", [False, True])
def test_a_frozen_client_waits_for_no_walk_at_all(first, monkeypatch):
    walked = []
    monkeypatch.setattr("cutlayer.core.server.backward", lambda *given: walked.append(given) or backward(*given))
    server, z, y = linear_server(), torch.randn(4, 3), torch.tensor([0, 1, 0, 1])
    server.answers_first = first
    server.open_round(frozen=[0])
    server.handle(Message(Kind.LOSS, 0, 0, {"z": z, "y": y}))
    server.handle(Message(Kind.FORWARD, 0, 1, {"z": z}))
    assert len(walked) == 1
    assert not server.handle(Message(Kind.BACKWARD, 0, 1, {"du": torch.ones(4, 2)})).tensors
    assert len(walked) == 2 - first
    server.catch_up()
    assert len(walked) == 2 and server.bodies.updates == 2


def test_pieces_of_a_batch_add_up_though_each_is_walked_later():
    plain, first = linear_server(), linear_server()
    for server, answers_first in ((plain, False), (first, True)):
        server.pending.micro_batches, server.answers_first = 3, answers_first
        asked_for_gradients(server, 6)
        server.catch_up()
    assert torch.equal(plain.body.weight, first.body.weight) and first.bodies.updates == 2


def test_a_walk_that_fails_is_not_tried_again_and_leaves_nothing():
    server, kept = linear_server(), linear_server().body.weight
    server.answers_first = True
    hook = server.body.weight.register_hook(lambda gradient: 1 / 0)
    asked_for_gradients(server, 1)
    with pytest.raises(ZeroDivisionError):
        server.catch_up()
    server.forget(0)
    hook.remove()
    server.catch_up()
    assert torch.equal(server.body.weight, kept) and server.bodies.updates == 0
    asked_for_gradients(server, 1)


def test_a_backward_without_its_forward_is_refused():
    server = linear_server()
    with pytest.raises(ProtocolError, match="no step is waiting"):
        server.handle(Message(Kind.BACKWARD, 0, 0, {"du": torch.ones(4, 2)}))
    server.handle(Message(Kind.FORWARD, 0, 5, {"z": torch.randn(4, 3)}))
    with pytest.raises(ProtocolError, match="step 5 is waiting"):
        server.handle(Message(Kind.BACKWARD, 0, 4, {"du": torch.ones(4, 2)}))


def test_another_clients_update_between_forward_and_backward_is_named():
    server = linear_server()
    for client in (0, 1):
        server.handle(Message(Kind.FORWARD, client, 0, {"z": torch.randn(4, 3)}))
    server.handle(Message(Kind.BACKWARD, 1, 0, {"du": torch.ones(4, 2)}))
    with pytest.raises(ProtocolError, match="after 1 update"):
        server.handle(Message(Kind.BACKWARD, 0, 0, {"du": torch.ones(4, 2)}))


def test_a_gradient_of_the_wrong_shape_is_refused():
    server = linear_server()
    server.handle(Message(Kind.FORWARD, 0, 0, {"z": torch.randn(4, 3)}))
    with pytest.raises(ProtocolError, match=r"du has shape \(4, 3\)"):
        server.handle(Message(Kind.BACKWARD, 0, 0, {"du": torch.ones(4, 3)}))


@pytest.mark.parametrize("call", [lambda one, z: one.body(z), lambda one, z: one.loss(z, torch.zeros(4).long())])
def test_where_others_would_have_to_live_with_it_numbers_that_are_none_are_not_sent(call):
    sent, server = [], linear_server()
    remote = Remote(0, lambda message: sent.append(message) or server.handle(message), watchers=[refuse_lost_numbers])
    broken = torch.ones(4, 3)
    call(remote, broken)
    broken[2, 1] = float("nan")
    with pytest.raises(NonFinite, match="what the guard lets out"):
        call(remote, broken)
    assert len(sent) == 1


def test_a_message_without_its_tensor_says_what_it_carries():
    with pytest.raises(ProtocolError, match=r"carries \['y'\], but 'z' was expected"):
        linear_server().handle(Message(Kind.FORWARD, 0, 0, {"y": torch.zeros(1)}))
    with pytest.raises(ProtocolError, match="does not answer WEIGHTS"):
        linear_server().handle(Message(Kind.WEIGHTS, 0, 0))


def test_prediction_changes_nothing_and_holds_nothing():
    client, server, *_ = split_and_whole(tiny_plan())
    learn(client, batches(1)[0])
    before = {name: t.clone() for name, t in server.body.state_dict().items()}
    logits = predict(client, batches(2))
    assert logits.shape == (12, TASK.classes) and not logits.requires_grad
    assert all(torch.equal(t, before[name]) for name, t in server.body.state_dict().items())
    assert not server.pending.held


def test_vanilla_shows_labels_and_u_shaped_does_not():
    seen = {}
    for protocol in (Vanilla(), tiny_plan().protocol):
        client, *_ = split_and_whole(tiny_plan(protocol=protocol))
        heard, send = [], client.remote._send
        client.remote._send = lambda message, heard=heard, send=send: (heard.append(message), send(message))[1]
        learn(client, batches(1)[0])
        seen[repr(protocol)] = [(message.kind.name, sorted(message.tensors)) for message in heard]
    assert seen == {
        "Vanilla()": [("LOSS", ["y", "z"]), ("BACKWARD", ["du"])],
        "UShaped()": [("FORWARD", ["z"]), ("BACKWARD", ["du"])],
    }


def test_watchers_see_messages_in_order_and_answers_in_reverse():
    log = []

    def watcher(name):
        def watch(message, handle):
            log.append(f"{name} before")
            reply = handle(message)
            log.append(f"{name} after")
            return reply

        return watch

    server = linear_server()
    Remote(0, through([watcher("a"), watcher("b")], server.handle)).body(torch.randn(2, 3))
    assert log == ["a before", "b before", "b after", "a after"]


def test_a_new_conversation_under_an_old_step_number_is_not_a_retry():
    server = linear_server()
    first = Remote(0, server.handle).body(torch.zeros(2, 3))
    second = Remote(0, server.handle).body(torch.ones(2, 3))
    assert not torch.equal(first, second)


def test_a_loss_without_gradients_is_a_prediction_and_shows_no_label():
    heard = []
    server = linear_server()
    remote = Remote(0, lambda message: (heard.append(message), server.handle(message))[1])
    z, y = torch.randn(4, 3), torch.tensor([0, 1, 0, 1])
    with torch.no_grad():
        loss = remote.loss(z, y)
        assert torch.equal(loss, nn.functional.cross_entropy(server.body(z), y))
    assert [(message.kind, list(message.tensors)) for message in heard] == [(Kind.PREDICT, ["z"])]
