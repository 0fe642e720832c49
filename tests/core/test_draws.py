"""A network that is not seeded draws nothing, and one that may draw is seeded."""

import pytest
import torch
from torch import nn
from toys import TASK, TinyNet, tiny_parts, tiny_plan

from cutlayer.core import draws
from cutlayer.core.batch import Task
from cutlayer.core.draws import STILL, is_still, steps_still
from cutlayer.core.guard import GuardModule
from cutlayer.core.seeds import derive
from cutlayer.engines.local.run import LocalRun
from cutlayer.nets.lenet import LeNet
from cutlayer.nets.resnet import ResNet18
from cutlayer.nets.resnet50 import ResNet50
from cutlayer.nets.simple_cnn import SimpleCNN
from cutlayer.training import step as steps
from cutlayer.training.build import build_client, build_server
from cutlayer.training.plan.plan import Plan

ARGUMENTS = {
    nn.ModuleList: ([nn.Linear(4, 4)],), nn.Unflatten: (1, (2, 2)), nn.Linear: (4, 4), nn.Embedding: (4, 4),
    nn.Conv1d: (4, 4, 3), nn.Conv2d: (4, 4, 3), nn.Conv3d: (4, 4, 3), nn.ConvTranspose2d: (4, 4, 3),
    nn.MaxPool1d: (2,), nn.MaxPool2d: (2,), nn.AvgPool1d: (2,), nn.AvgPool2d: (2,),
    nn.AdaptiveAvgPool1d: (2,), nn.AdaptiveAvgPool2d: (2,),
    nn.BatchNorm1d: (4,), nn.BatchNorm2d: (4,), nn.GroupNorm: (2, 4), nn.LayerNorm: (4,), nn.Upsample: (None, 2),
}  # fmt: skip
SHAPES = {"1d": (2, 4, 8), "2d": (2, 4, 8, 8), "3d": (2, 4, 8, 8, 8)}
COLOURS = Task((3, 32, 32), 10)


def drawn_by(network, x):
    """Whether a forward and a backward pass moved torch's generator."""
    before = torch.get_rng_state()
    y = network(x)
    if y.requires_grad:
        y.sum().backward()
    return not torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("kind", sorted(STILL - {nn.ModuleList}, key=lambda one: one.__name__))
def test_a_layer_that_is_trusted_draws_nothing(kind):
    layer = kind(*ARGUMENTS.get(kind, ()))
    shape = next((shape for end, shape in SHAPES.items() if kind.__name__.endswith(end)), (2, 4))
    shape = (2, 4, 8, 8) if kind is nn.Upsample else shape
    x = torch.ones(shape, dtype=torch.long) if kind is nn.Embedding else torch.ones(shape, requires_grad=True)
    assert not drawn_by(layer, x) and is_still(layer)


def test_what_is_looked_at_here_shows_what_draws():
    assert drawn_by(nn.Dropout(), torch.ones(4))


@pytest.mark.parametrize("net", [LeNet(), SimpleCNN(depth=2), ResNet18(), ResNet50()], ids=str)
def test_the_reference_networks_draw_nothing(net):
    task = Task((1, 28, 28), 10) if isinstance(net, LeNet | SimpleCNN) else COLOURS
    x = torch.rand(2, *task.shape)
    for part in (net.head(task.shape), net.body(task.shape), net.tail(task.shape, task.classes)):
        assert is_still(part) and not drawn_by(part, x)
        x = part(x).detach()


class Noisy(nn.Linear):
    def forward(self, x):
        return super().forward(x + torch.rand_like(x))


class NoisyGuard(GuardModule):
    pass


@pytest.mark.parametrize(
    "part", [nn.Dropout(), nn.RReLU(), nn.Dropout(0.0), Noisy(4, 4), NoisyGuard(), nn.LSTM(4, 4)], ids=str
)
def test_a_layer_that_is_not_known_may_draw(part):
    assert not is_still(nn.Sequential(nn.Linear(4, 4), nn.Sequential(part)))


HOOKS = {
    "forward": lambda network: network[1].register_forward_hook(lambda *_: None),
    "forward_pre": lambda network: network[1].register_forward_pre_hook(lambda *_: None),
    "backward": lambda network: network.register_full_backward_hook(lambda *_: None),
    "backward_pre": lambda network: network.register_full_backward_pre_hook(lambda *_: None),
    "gradient": lambda network: network[0].weight.register_hook(lambda gradient: None),
    "accumulated": lambda network: network[0].weight.register_post_accumulate_grad_hook(lambda p: None),
    "everywhere": lambda network: nn.modules.module.register_module_forward_hook(lambda *_: None),
}


@pytest.mark.parametrize("kind", HOOKS)
def test_hooks_may_draw_as_long_as_they_hang_there(kind):
    network = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    assert is_still(network)
    hook = HOOKS[kind](network)
    assert not is_still(network)
    hook.remove()
    assert is_still(network)


def test_a_part_that_is_replaced_is_looked_at():
    network = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU()))
    assert is_still(network)
    network[1][0] = nn.Dropout()
    assert not is_still(network)
    other = nn.Sequential(nn.ReLU())
    assert is_still(other)
    other.append(nn.Dropout())
    assert not is_still(other)


def test_a_parameter_that_is_replaced_is_looked_at():
    network = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    assert is_still(network)
    network[0].weight = nn.Parameter(torch.ones(4, 4))
    assert is_still(network)
    network[0].weight.register_hook(lambda gradient: None)
    assert not is_still(network)


def test_a_layer_that_is_parametrised_is_another_one():
    network = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    assert is_still(network)
    nn.utils.parametrize.register_parametrization(network[0], "weight", nn.Dropout())
    assert not is_still(network)


def test_a_forward_of_its_own_is_not_trusted():
    layer = nn.Linear(4, 4)
    layer.forward = lambda x: x + torch.rand_like(x)
    assert not is_still(layer)


def test_optimizers_that_are_known_and_unwatched_draw_nothing():
    parameters = [nn.Parameter(torch.ones(3))]
    plain = torch.optim.SGD(parameters, 0.1)
    assert steps_still(None) and steps_still(plain)

    class Langevin(torch.optim.SGD):
        pass

    assert not steps_still(Langevin(parameters, 0.1))
    plain.register_step_pre_hook(lambda *_: None)
    assert not steps_still(plain)


def test_nothing_is_kept_of_a_network_that_is_gone():
    before = len(draws._known)
    network = nn.Sequential(nn.Linear(4, 4))
    assert is_still(network) and len(draws._known) == before + 1
    del network
    assert len(draws._known) == before


# ------------------------------------------------------------------------------------------------- in a step
@pytest.fixture
def seeds(monkeypatch):
    """Seeds that were set, of clients and of the server."""
    found, here = [], steps.seeded

    def noted(seed, device="cpu"):
        found.append(seed)
        return here(seed, device)

    monkeypatch.setattr("cutlayer.training.step.seeded", noted)
    monkeypatch.setattr("cutlayer.core.server.seeded", noted)
    return found


def one_round(at_server=(), **changes):
    plan = tiny_plan(**{"net": LeNet(), "batch_size": 8, **changes})
    run = LocalRun(plan, tiny_parts(), classes=TASK.classes, at_server=at_server)
    run.take(run.timetable.rounds(0)[0])
    return run


def weights(run):
    return {**run.server.body.state_dict(), **{f"own.{k}": t for k, t in run.networks[0].split.state_dict().items()}}


def test_a_run_of_still_networks_seeds_nothing_and_learns_the_same(seeds, monkeypatch):
    free = weights(one_round())
    assert not seeds
    monkeypatch.setattr("cutlayer.training.step.is_still", lambda network: False)
    monkeypatch.setattr("cutlayer.core.server.is_still", lambda network: False)
    seeded = weights(one_round())
    assert seeds and all(torch.equal(tensor, seeded[name]) for name, tensor in free.items())


def test_a_body_of_a_run_that_draws_is_seeded_step_by_step(seeds):
    run = one_round(net=TinyNet())
    assert seeds == [derive(run.plan.seed, "server", 0, step) for step in range(len(seeds))] != []


def test_who_looks_on_at_the_server_still_draws_what_follows_from_the_step():
    def drawn(start):
        found = []

        def look(message, answer):
            found.append(float(torch.rand(())))
            return answer(message)

        torch.manual_seed(start)
        one_round(at_server=[look])
        return found

    assert drawn(1) == drawn(2) != []


def test_a_body_that_draws_is_seeded_where_its_client_is_not(seeds):
    plan = Plan(net=LeNet(), private_seed=1)
    task = Task((1, 28, 28), 10)
    server = build_server(plan.public(), task)
    server.body.body.append(nn.Dropout())
    client = build_client(plan, task, 0, server.handle)
    batch = steps.Batch(torch.rand(4, 1, 28, 28), torch.arange(4), seed=3)
    before = torch.get_rng_state()
    steps.learn(client, batch, unwatched=True)
    assert seeds == [derive(plan.seed, "server", 0, 0)] and torch.equal(before, torch.get_rng_state())
    seeds.clear()
    steps.learn(client, batch)
    assert seeds[0] == 3, "who does not say that nobody else draws is seeded as ever"


@pytest.mark.parametrize("what", ["hooks", "watcher", "optimizer", "head"])
def test_whatever_may_draw_in_a_clients_step_has_it_seeded(seeds, what):
    task = Task((1, 28, 28), 10)
    plan = Plan(net=LeNet(), private_seed=1)
    server = build_server(plan.public(), task)
    client = build_client(plan, task, 0, server.handle)
    batch, hooks = steps.Batch(torch.rand(4, 1, 28, 28), torch.arange(4), seed=3), steps.NO_HOOKS
    if what == "hooks":
        hooks = steps.StepHooks(before_step=lambda: None)
    if what == "watcher":
        client.remote._watchers = (lambda message, answer: answer(message),)
    if what == "optimizer":
        client.optimizer.register_step_pre_hook(lambda *_: None)
    if what == "head":
        client.split.head.append(nn.Dropout())
    steps.learn(client, batch, unwatched=True, hooks=hooks)
    assert seeds == [3]
