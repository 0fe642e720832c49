"""Client memory by purpose, against hand counts."""

import torch
from torch import nn
from toys import TASK, batches, split_and_whole, tiny_plan

from cutlayer.memory import client_memory
from cutlayer.optimizers import SGD, Adam
from cutlayer.turn import learn


def measured(**changes):
    client, server, *_ = split_and_whole(tiny_plan(**changes))
    learn(client, batches(1)[0])
    before = {name: t.clone() for name, t in client.split.state_dict().items()}
    sizes = client_memory(client, batches(1)[0], (7,))
    assert all(torch.equal(t, before[name]) for name, t in client.split.state_dict().items()), (
        "measuring changes nothing"
    )
    assert server.updates == 1
    return sizes


def test_parameters_gradients_and_optimizer_state():
    count = (4 * 9 + 4) + 8 + (7 * 3 + 3)  # conv, BatchNorm, tail
    sgd = measured(client_optimizer=SGD())
    assert (sgd["parameters"], sgd["gradients"], sgd["optimizer"]) == (4 * count, 4 * count, 4 * count)
    adam = measured(client_optimizer=Adam())
    tensors = 6  # each with a step counter of one float
    assert adam["optimizer"] == 2 * 4 * count + 4 * tensors


def test_a_frozen_head_needs_no_gradients_and_hardly_any_activations():
    full, frozen = measured(), measured(frozen=("head",))
    assert frozen["gradients"] < full["gradients"]
    assert frozen["activations"] < 0.5 * full["activations"]


def test_activations_are_counted_once():
    from cutlayer.batch import Batch
    from cutlayer.remote import Remote
    from cutlayer.split import UShaped
    from cutlayer.turn import Client

    # The second layer's weight is saved for backward as well, but it is a parameter, not an activation.
    split = UShaped(nn.Sequential(nn.Linear(10, 20), nn.Tanh(), nn.Linear(20, 20), nn.Tanh()), nn.Identity())
    client = Client(0, split, None, Remote(0, lambda message: message))
    batch = Batch(torch.randn(8, 10), torch.zeros(8, dtype=torch.long))
    sizes = client_memory(client, batch, (TASK.classes,))
    kept = 8 * 10 + 20 * 8 + 20 * 8  # the input and each tanh's output
    logits_and_labels = 8 * TASK.classes + 2 * 8 + 1  # log-softmax, int64 labels, the loss's weight
    assert 4 * kept <= sizes["activations"] <= 4 * (kept + logits_and_labels + 8)
