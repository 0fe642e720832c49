"""The settings of the SEAL paper: ten clients and 70 % of the energy (Table 2), and Table 1 on text.

From the paper: the energy 0.7 and ten clients, each with a secret function of its own (Sec. 5.3); in Table 1 one,
two, five, seven or all of the ten use it (Sec. 5.2); which network belongs to which images (App. A.1). The client
holds the stem alone and the server the classifier, as the counts of Table 4 say, so the labels travel: `Vanilla`.
"ResNet50" is the wide variant by those counts (they are for 100 classes, which none of the data has).

Not in the paper, so ours: optimizer, batch size, epochs and validation data; IID parts, taking turns batch by batch.
The counts are for colour images; our MNIST and Fashion-MNIST have one channel, so their stem is smaller. There is no
RoBERTa here: reviews are hashed bags of words and the network is an MLP cut at 64 numbers, transformed as one signal.
Only what Table 1 compares (how many clients may use it before accuracy falls) carries over, not its accuracies.
"""

from dataclasses import replace

from cutlayer import Plan, Vanilla
from cutlayer.data import CIFAR10, MNIST, FashionMNIST, Reviews, TinyImageNet
from cutlayer.guards import DCT, SEAL
from cutlayer.nets import MLP, ResNet18, ResNet50

# The paper's energies besides 0.7 are 0.9, 0.4 and 0.1 (Tables 5 and 6): add --guard 'SEAL(energy=0.9)'.
SECRET = SEAL(energy=0.7)


# ------------------------------------------------------------------ images, Table 2: cut after the stem
def mnist() -> Plan:
    """ResNet-18, unguarded, cut at 64x7x7."""
    return Plan(net=ResNet18(depth=1), data=MNIST(), protocol=Vanilla(), clients=10)


def mnist_seal() -> Plan:
    """The same behind SEAL."""
    return replace(mnist(), guard=SECRET)


def mnist_dct() -> Plan:
    """Not in the paper: the same low-pass without a key, sending the kept coefficients alone."""
    return replace(mnist(), guard=DCT(energy=0.7))


def fashion_mnist() -> Plan:
    """ResNet-18, unguarded, cut at 64x7x7."""
    return replace(mnist(), data=FashionMNIST())


def fashion_mnist_seal() -> Plan:
    """The same behind SEAL."""
    return replace(fashion_mnist(), guard=SECRET)


def cifar10() -> Plan:
    """Wide ResNet-50, unguarded, cut at 64x8x8."""
    return Plan(net=ResNet50(wide=True), data=CIFAR10(), protocol=Vanilla(), clients=10)


def cifar10_seal() -> Plan:
    """The same behind SEAL."""
    return replace(cifar10(), guard=SECRET)


def tiny_imagenet_seal() -> Plan:
    """Wide ResNet-50, cut at 64x8x8, behind SEAL. Larger images: --data 'TinyImageNet(size=64)'."""
    return replace(cifar10_seal(), data=TinyImageNet())


# ------------------------------------------------------------------ text, Table 1: how many of ten clients use it
def reviews() -> Plan:
    """No defence."""
    return Plan(net=MLP(widths=(64, 32)), data=Reviews(), protocol=Vanilla(), clients=10)


def reviews_1() -> Plan:
    """One client of ten."""
    return replace(reviews(), guard=SECRET, guarded_clients=1)


def reviews_2() -> Plan:
    """Two of ten."""
    return replace(reviews_1(), guarded_clients=2)


def reviews_5() -> Plan:
    """Five of ten."""
    return replace(reviews_1(), guarded_clients=5)


def reviews_7() -> Plan:
    """Seven of ten."""
    return replace(reviews_1(), guarded_clients=7)


def reviews_10() -> Plan:
    """All ten."""
    return replace(reviews_1(), guarded_clients=10)
