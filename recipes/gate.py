"""Gate between ten clients that have little data each: a code of few bits in every epoch, or sent once.

The plans named `cifar10` are those of docs/evidence/gate.md: ResNet-18 cut behind layer1[0], images moved and
mirrored, and a tenth of the data for each of ten clients that take turns with one head. `fashion`, `faces` and
`series` are the same with other data, none of it moved or mirrored; their guard is the one that was fixed on
CIFAR-10. Faces are few: smaller batches and twice the epochs make about as many steps. Those named `small` have a
small network, five clients and a part of the data, for half a minute on one core (docs/evidence/gate-others.md);
`digits` are the same idea on what is shipped. An audit also trains the client alone.

    cutlayer audit recipes/gate.py:cifar10 --guard 'Gate(numbers={16,32}, bits={1,2}, home=1.0)' --device cuda
"""

from dataclasses import replace

from cutlayer import Plan
from cutlayer.data import CIFAR10, Digits, Dirichlet, FashionMNIST, MNISTRows, UTKFace
from cutlayer.guards import WCC, Chain, Gate, Quantize
from cutlayer.nets import LeNet, ResNet18, SignalNet, SimpleCNN
from cutlayer.training import SGD, Compression, OneCycle, SendOnce

# Answers and gradients to match: of 512 numbers each, 4 bits a number.
SMALL = Compression(answers=Quantize(bits=4), gradients=Quantize(bits=4, rounding="stochastic"))


def cifar10() -> Plan:
    """No guard."""
    sgd = SGD(lr=0.1, weight_decay=5e-4, nesterov=True)
    return Plan(
        net=ResNet18(depth=2),
        data=CIFAR10(augment="crop+flip"),
        clients=10,
        epochs=20,
        batch_size=256,
        client_optimizer=sgd,
        server_optimizer=sgd,
        schedule=OneCycle(),
    )


def cifar10_gate() -> Plan:
    """64 bits a sample in every epoch."""
    return replace(cifar10(), guard=Gate(numbers=32, bits=2, home=1.0))


def cifar10_gate_uneven() -> Plan:
    """The same where classes are shared out unevenly."""
    return replace(cifar10_gate(), partition=Dirichlet(alpha=0.3))


def cifar10_gate_compact() -> Plan:
    """Samples of a class are pulled together, and all four messages are small."""
    return replace(cifar10(), guard=Chain(Gate(numbers=32, bits=2, home=1.0), WCC(weight=0.001)), compression=SMALL)


def cifar10_once() -> Plan:
    """Learnt at home, sent once: 64 bits a sample in the whole training, and small answers and gradients."""
    return _once(cifar10())


def fashion() -> Plan:
    """Clothing, 28x28, no guard."""
    return replace(cifar10(), data=FashionMNIST())


def fashion_once() -> Plan:
    """64 bits a sample, once."""
    return _once(fashion())


def faces() -> Plan:
    """The gender of a face, 64x64, no guard; race and age are there to be told."""
    return replace(cifar10(), data=UTKFace(distinct=True), batch_size=32, epochs=40)


def faces_once() -> Plan:
    """64 bits a sample, once."""
    return _once(faces())


def series() -> Plan:
    """Digits read row by row, 28 channels and points in time, no guard."""
    return replace(cifar10(), data=MNISTRows(), net=SignalNet())


def series_once() -> Plan:
    """64 bits a sample, once."""
    return _once(series())


def fashion_small() -> Plan:
    """Clothing on one core, no guard."""
    return replace(_small(), data=FashionMNIST(limit=9_000), net=SimpleCNN())


def fashion_tiny() -> Plan:
    """Less of it, to try many settings."""
    return replace(fashion_small(), data=FashionMNIST(limit=3_000), epochs=6)


def series_small() -> Plan:
    """Digits read row by row on one core, no guard."""
    return replace(_small(), data=MNISTRows(limit=9_000), net=SignalNet())


def faces_small() -> Plan:
    """The gender of a face, 32x32, on one core, no guard. Faces are few: smaller batches, more epochs."""
    return replace(_small(), data=UTKFace(distinct=True, size=32), net=LeNet(), batch_size=32, epochs=20)


def _small() -> Plan:
    return Plan(clients=5, epochs=10, batch_size=64, schedule=OneCycle())


def _once(plan: Plan) -> Plan:
    """Seven tenths of the epochs at home, one in which codes are sent, the rest at the server."""
    guard = Chain(Gate(numbers=32, bits=2, home=1.0), WCC(weight=0.0003))
    roles = SendOnce(home=7 * plan.epochs // 10, split=0, views=1)
    return replace(plan, guard=guard, roles=roles, compression=SMALL)


def digits() -> Plan:
    """No guard."""
    return Plan(net=SimpleCNN(), data=Digits(), clients=10, epochs=12, batch_size=64)


def digits_gate() -> Plan:
    """16 bits a sample in every epoch."""
    return replace(digits(), guard=Gate(numbers=16, bits=1, budget=200_000, home=1.0))


def digits_once() -> Plan:
    """16 bits a sample, once."""
    return replace(digits_gate(), roles=SendOnce(home=6, split=0, views=1))
