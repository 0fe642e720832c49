"""Whole: the input crosses, and weights are those of the network inside."""

import pytest
import torch
from safetensors.torch import save_file

from cutlayer.core.spec import spec
from cutlayer.nets import MLP, LeNet, ResNet20, SimpleCNN, Whole, load_weights, shapes, whole_state

COLOUR = (3, 32, 32)


def build(net, seed, shape=COLOUR):
    torch.manual_seed(seed)
    return {"head": net.head(shape), "body": net.body(shape), "tail": net.tail(shape, 10)}


@pytest.mark.parametrize("net", [SimpleCNN(), ResNet20(), LeNet()], ids=repr)
def test_it_is_the_network_with_its_cut_at_the_input(net):
    whole = Whole(net=net)
    torch.manual_seed(0)
    body = whole.body(COLOUR)
    torch.manual_seed(0)
    head, rest = net.head(COLOUR), net.body(COLOUR)
    x = torch.rand(3, *COLOUR)
    assert torch.equal(body.eval()(whole.head(COLOUR)(x)), rest.eval()(head.eval()(x)))
    assert shapes(whole, COLOUR) == (COLOUR, shapes(net, COLOUR).u)


@pytest.mark.parametrize("net", [ResNet20(), LeNet()], ids=repr)  # with published names, and with ours
def test_one_file_fits_the_network_and_the_whole_of_it(tmp_path, net):
    whole = Whole(net=net)
    file = tmp_path / "net.safetensors"
    written, read = build(net, 1), build(whole, 2)
    save_file(whole_state(net, **written), file)
    load_weights(file, whole, COLOUR, 10, body=read["body"])  # a server: the client's tail is elsewhere
    load_weights(file, whole, COLOUR, 10, head=read["head"], tail=read["tail"])
    ours, theirs = whole_state(whole, **read), whole_state(net, **written)
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[key], t) for key, t in theirs.items())
    back = build(net, 3)
    save_file(whole_state(whole, **read), file)
    load_weights(file, net, COLOUR, 10, **back)
    assert all(torch.equal(whole_state(net, **back)[key], t) for key, t in theirs.items())


def test_a_file_that_does_not_fit_is_refused(tmp_path):
    file = tmp_path / "net.safetensors"
    state = whole_state(LeNet(), **build(LeNet(), 1))
    save_file({name: t for name, t in state.items() if not name.startswith("head.")}, file)
    with pytest.raises(ValueError, match=r"does not fit Whole\(net=LeNet\(\)\): .* missing \(head\."):
        load_weights(file, Whole(net=LeNet()), COLOUR, 10, body=Whole(net=LeNet()).body(COLOUR))


def test_its_text_and_its_refusals():
    assert spec("Whole(net=ResNet20(level=5))", "nets") == Whole(net=ResNet20(level=5))
    assert repr(Whole()) == "Whole(net=SimpleCNN())" and spec(repr(Whole()), "nets") == Whole()
    for wrong in ("SimpleCNN", 3, SimpleCNN):
        with pytest.raises(ValueError, match="Whole takes a network"):
            Whole(net=wrong)
    with pytest.raises(ValueError, match="at least 16x16 pixels"):
        Whole(net=SimpleCNN()).check((1, 8, 8))
    assert shapes(Whole(net=MLP()), (9,)).z == (9,)
