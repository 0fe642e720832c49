"""The settings of the LightSplit paper: accuracy on four data sets (Tables III, VII-IX, XVII) and UnSplit's victims.

Each data set has its raw cut and its three methods at L2H, heads shared (SCH), IID, ratio 8, and the raw cut with
its Dirichlet shares. The rest of a grid is options of one command, a table and data set each; L1H is `depth=1`, heads
of one's own (PCH) are `shared_client_network=False`. Table IX on CIFAR-10, 80 runs:

    cutlayer compare recipes/lightsplit.py:cifar10
        --with 'guard=none; {net, heads, shares}' --with 'guard=LightSplit(ratio={8,16,32}, projection=Dense()); {…}'
        --with 'guard=LightSplit(ratio={8,16,32}, projection=Dense(), hidden=512); {…}'
        --with 'guard=Bottleneck1x1(ratio={8,16,32}); {…}'

with {…} for net=ResNet18(depth={1,2}); shared_client_network={True,False}; partition={IID(),Dirichlet(alpha=0.1)}.
docs/papers.md has these commands in full.

From the paper: networks and cuts (Table II), ten clients that take turns batch by batch (Alg. 1), at most 2,000
epochs with a patience of 200 (Table XVII), the widths of LightSplit-L's lift (Table II), the optimizer of the
UnSplit runs (App. A-C).

Not in the paper, so ours: the optimizer and batch size of the accuracy runs (it points to another work), and the
validation data. The paper reports the best test accuracy over epochs; we choose the epoch on a tenth of the training
data, so expect a little less.
"""

from dataclasses import replace

from cutlayer import Plan
from cutlayer.data import CIFAR10, CIFAR100, GTSRB, MNIST, Dirichlet, FashionMNIST
from cutlayer.guards import WCC, Bottleneck1x1, Chain, Dense, LightSplit
from cutlayer.nets import MicronNet, MnistNet, ResNet18, SimpleCNN
from cutlayer.training import Adam

# The text draws R from a Gaussian, Alg. 1 from U(0,1): Dense(uniform=True) is the latter.
FIXED = LightSplit(ratio=8, projection=Dense())


# ------------------------------------------------------------------ Fashion-MNIST, SimpleCNN, d = 2880, k = 360
def fashion_mnist() -> Plan:
    """Raw: the unguarded cut."""
    return Plan(net=SimpleCNN(depth=2), data=FashionMNIST(), clients=10, epochs=2000, patience=200)


def fashion_mnist_f() -> Plan:
    """LightSplit-F: the server lifts back by R."""
    return replace(fashion_mnist(), guard=FIXED)


def fashion_mnist_l() -> Plan:
    """LightSplit-L: a learned lift of width 128."""
    return replace(fashion_mnist(), guard=replace(FIXED, hidden=128))


def fashion_mnist_1x1() -> Plan:
    """Learned 1x1. 20 channels become 2, so the real ratio is 10."""
    return replace(fashion_mnist(), guard=Bottleneck1x1(ratio=8))


def fashion_mnist_skewed() -> Plan:
    """Raw, with shares by Dirichlet(0.1)."""
    return replace(fashion_mnist(), partition=Dirichlet(alpha=0.1))


# ------------------------------------------------------------------ CIFAR-10, ResNet-18, d = 4096, k = 512
def cifar10() -> Plan:
    """Raw. L2H moves the first block to the client; `extra=True` is the other reading of Table II."""
    return Plan(net=ResNet18(depth=2), data=CIFAR10(), clients=10, epochs=2000, patience=200)


def cifar10_f() -> Plan:
    """LightSplit-F."""
    return replace(cifar10(), guard=FIXED)


def cifar10_l() -> Plan:
    """LightSplit-L: a learned lift of width 512."""
    return replace(cifar10(), guard=replace(FIXED, hidden=512))


def cifar10_1x1() -> Plan:
    """Learned 1x1: 64 channels become 8."""
    return replace(cifar10(), guard=Bottleneck1x1(ratio=8))


def cifar10_skewed() -> Plan:
    """Raw, with shares by Dirichlet(0.1)."""
    return replace(cifar10(), partition=Dirichlet(alpha=0.1))


def cifar10_wcc() -> Plan:
    """LightSplit-F with within-class compaction (Table VII has λ 0, 0.001, 0.01 and 0.1)."""
    return replace(cifar10(), guard=Chain(FIXED, WCC(weight=0.01)))


def cifar10_hundred() -> Plan:
    """LightSplit-F with a hundred clients (Table VIII: 10, 25, 50 and 100)."""
    return replace(cifar10_f(), clients=100)


# ------------------------------------------------------------------ CIFAR-100, ResNet-18, d = 4096, k = 512
def cifar100() -> Plan:
    """Raw. The paper: 59.47 %."""
    return replace(cifar10(), data=CIFAR100())


def cifar100_f() -> Plan:
    """LightSplit-F. The paper: 52.83 %."""
    return replace(cifar100(), guard=FIXED)


def cifar100_l() -> Plan:
    """LightSplit-L: a learned lift of width 2048. The paper: 56.49 %."""
    return replace(cifar100(), guard=replace(FIXED, hidden=2048))


def cifar100_1x1() -> Plan:
    """Learned 1x1."""
    return replace(cifar100(), guard=Bottleneck1x1(ratio=8))


def cifar100_skewed() -> Plan:
    """Raw, with shares by Dirichlet(0.5)."""
    return replace(cifar100(), partition=Dirichlet(alpha=0.5))


# ------------------------------------------------------------------ GTSRB, MicronNet, d = 5684, k = 710
def gtsrb() -> Plan:
    """Raw. The paper: 98.55 %."""
    return replace(cifar10(), net=MicronNet(depth=2), data=GTSRB())


def gtsrb_f() -> Plan:
    """LightSplit-F. The paper: 96.42 %."""
    return replace(gtsrb(), guard=FIXED)


def gtsrb_l() -> Plan:
    """LightSplit-L: a learned lift of width 128."""
    return replace(gtsrb(), guard=replace(FIXED, hidden=128))


def gtsrb_1x1() -> Plan:
    """Learned 1x1. 29 channels become 3, so the real ratio is about 10."""
    return replace(gtsrb(), guard=Bottleneck1x1(ratio=8))


def gtsrb_skewed() -> Plan:
    """Raw, with shares by Dirichlet(0.1)."""
    return replace(gtsrb(), partition=Dirichlet(alpha=0.1))


# ------------------------------------------------------------------ UnSplit's victims: one client, 20 epochs
def unsplit_cut2() -> Plan:
    """MnistNet cut after its first pool, d = 1152. For Fashion-MNIST add --data FashionMNIST."""
    adam = Adam(lr=1e-3, amsgrad=True)
    return Plan(
        net=MnistNet(cut=2),
        data=MNIST(),
        epochs=20,
        batch_size=64,
        val_share=0.0,
        client_optimizer=adam,
        server_optimizer=adam,
    )


def unsplit_cut4() -> Plan:
    """MnistNet cut after its second ReLU, d = 1024."""
    return replace(unsplit_cut2(), net=MnistNet(cut=4))


def unsplit_cut2_f() -> Plan:
    """LightSplit-F at the shallow cut, k = 144."""
    return replace(unsplit_cut2(), guard=FIXED)


def unsplit_cut2_wcc() -> Plan:
    """The same with within-class compaction, lambda = 0.1."""
    return replace(unsplit_cut2(), guard=Chain(FIXED, WCC(weight=0.1)))


def unsplit_cut4_f() -> Plan:
    """LightSplit-F at the deeper cut, k = 128."""
    return replace(unsplit_cut4(), guard=FIXED)
