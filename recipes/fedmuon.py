"""FedMuon beside other server optimizers (Madill's thesis, 2025, ch. 5, Table 5.2), all with their published rates.

From the thesis (Sec. 5.7.1): CIFAR-10, 10 clients, Dirichlet with alpha 0.1, everybody in every round, clients with
SGD, momentum 0.85, rate 0.015, K = 1, 5 or 25 local steps. Test accuracy and server rates:

    K     FedAvg   FedAvgM (0.3)   FedAdagrad           FedAdam (0.003)   FedYogi          FedMuon (0.05)
    1     0.7895   0.8979          0.8907 (0.007)       0.8983            0.9012 (0.002)   0.9213
    5     0.7737   0.8340          0.8328 (0.007)       0.8434            0.8403 (0.002)   0.8727
    25    0.6870   0.6630          0.7764 (0.03)        0.7720            0.7670 (0.003)   0.7753

Its "30 communication rounds" would be 30 mini-batches at K = 1: read as 30 epochs with a merge after every K batches.

Not in the thesis, so ours: the network (that of its ch. 4), batches of 128, weight decay 1e-4 ("applied"), momentum
0.9 of the server's optimizers, clients whose momentum starts anew in every round (with momentum that lives on, FedAvg
at K = 1 is plain training, and could not be that far behind FedAvgM), and DiLoCo, which it lists and does not run.
Its sign of g is turned: as printed, Adam and Yogi would climb. This is plain federated learning; `cifar10_split` cuts
the network, and the rule then merges heads and bodies alike.

    cutlayer compare recipes/fedmuon.py:cifar10 --local-steps 5 --with rule=FedAvg --with 'rule=FedAvgM(lr=0.3)'
        --with 'rule=FedAdam(lr=0.003)' --with 'rule=FedMuon(lr=0.05)' --device cuda
    cutlayer compare recipes/fedmuon.py:fashion_mnist --with rule=FedAvg --with 'rule=FedMuon(lr={0.01,0.05,0.2})'
"""

from dataclasses import replace

from cutlayer import Federated, Plan, UShaped
from cutlayer.data import CIFAR10, Digits, Dirichlet, FashionMNIST
from cutlayer.nets import ResNet18, SimpleCNN
from cutlayer.rules import DiLoCo, FedAdagrad, FedAdam, FedAvg, FedAvgM, FedMuon, FedYogi
from cutlayer.training import SGD, SplitFed

SGDM = SGD(lr=0.015, momentum=0.85, weight_decay=1e-4)


# ------------------------------------------------------------------ CIFAR-10, K = 5
def cifar10() -> Plan:
    """FedMuon. The thesis: 0.8727."""
    return Plan(
        net=ResNet18(stem="cifar", depth=4),
        data=CIFAR10(),
        protocol=Federated(),
        clients=10,
        partition=Dirichlet(alpha=0.1),
        rounds=SplitFed(fresh=True),
        rule=FedMuon(lr=0.05),
        local_steps=5,
        epochs=30,
        batch_size=128,
        client_optimizer=SGDM,
        server_optimizer=SGDM,
    )


def cifar10_avg() -> Plan:
    """FedAvg, no optimizer at the server. The thesis: 0.7737."""
    return replace(cifar10(), rule=FedAvg())


def cifar10_avgm() -> Plan:
    """FedAvg with momentum. The thesis: 0.8340."""
    return replace(cifar10(), rule=FedAvgM(lr=0.3))


def cifar10_adagrad() -> Plan:
    """FedAdagrad. The thesis: 0.8328."""
    return replace(cifar10(), rule=FedAdagrad(lr=0.007))


def cifar10_adam() -> Plan:
    """FedAdam. The thesis: 0.8434."""
    return replace(cifar10(), rule=FedAdam(lr=0.003))


def cifar10_yogi() -> Plan:
    """FedYogi. The thesis: 0.8403."""
    return replace(cifar10(), rule=FedYogi(lr=0.002))


def cifar10_full() -> Plan:
    """FedMuon with everybody in every round: small clients are filled up from the largest, to 4,500 images each."""
    return replace(cifar10(), partition=Dirichlet(alpha=0.1, minimum=4500, refill=True))


def cifar10_full_avg() -> Plan:
    """FedAvg with everybody in every round."""
    return replace(cifar10_full(), rule=FedAvg())


def cifar10_muon_adam() -> Plan:
    """Muon as its author has it: Adam for what is no matrix; not run in the thesis."""
    return replace(cifar10(), rule=FedMuon(lr=0.05, rest="adam"))


def cifar10_diloco() -> Plan:
    """DiLoCo with the constants of its paper; not run in the thesis."""
    return replace(cifar10(), rule=DiLoCo(lr=0.7))


# ------------------------------------------------------------------ other K, and rates that differ there
def cifar10_k1() -> Plan:
    """FedMuon, a merge after every batch. The thesis: 0.9213."""
    return replace(cifar10(), local_steps=1)


def cifar10_k25() -> Plan:
    """FedMuon, 25 batches between merges. The thesis: 0.7753."""
    return replace(cifar10(), local_steps=25)


def cifar10_adagrad_k25() -> Plan:
    """FedAdagrad, the best of K = 25. The thesis: 0.7764."""
    return replace(cifar10_k25(), rule=FedAdagrad(lr=0.03))


def cifar10_yogi_k25() -> Plan:
    """FedYogi at K = 25. The thesis: 0.7670."""
    return replace(cifar10_k25(), rule=FedYogi(lr=0.003))


def cifar10_split() -> Plan:
    """The same network cut at 128x16x16: clients hold head and tail, the server a body for each, all merged."""
    return replace(cifar10(), protocol=UShaped())


# ------------------------------------------------------------------ for two cores
def fashion_mnist() -> Plan:
    """The same clients and rates on 6,000 images of Fashion-MNIST: a minute."""
    return replace(cifar10(), net=SimpleCNN(), data=FashionMNIST(limit=6000), epochs=8, batch_size=32)


def digits() -> Plan:
    """On digits that need no file: seconds."""
    return replace(fashion_mnist(), data=Digits(limit=1500), epochs=5)
