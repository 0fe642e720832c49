"""The settings of VQ-VAE with LFQ (Madill's thesis, 2025, Table 2.4): a learned code of a few bits a sample.

From the thesis (Sec. 2.5.1): LeNet cut at 32x6x6, labels that travel, thirty clients with two digits each, SGD with
rate 0.01, momentum 0.9 and weight decay 1e-4, batches of 256, 200 rounds, levels of ±1, and a decoder that the client
trains and sends every `freq` rounds. Its rates are 76 and 84 bits a sample, with the decoder in them as it seems:
8 bits at 3x3 positions are 72.

Not in the thesis, so ours: the weights of the terms, what a round is (read as an epoch in which clients take turns
batch by batch, 240 messages), and the epoch that counts (chosen on a tenth of the training data).

The plans named `digits` are the same on a twelfth of the data, for minutes on one core; docs/evidence/lfq.md has what
they gave.
"""

from dataclasses import replace

from cutlayer import Plan, Vanilla
from cutlayer.data import MNIST, Digits, Labels
from cutlayer.guards import LFQ, FedLite, TopK
from cutlayer.nets import LeNet
from cutlayer.training import SGD, Cosine


# ------------------------------------------------------------------ MNIST as in the thesis, d = 1152
def mnist() -> Plan:
    """Vanilla SL. The thesis: 98.93 %."""
    sgd = SGD(lr=0.01, weight_decay=1e-4)
    return Plan(
        net=LeNet(),
        data=MNIST(),
        protocol=Vanilla(),
        clients=30,
        partition=Labels(m=2),
        epochs=200,
        batch_size=256,
        client_optimizer=sgd,
        server_optimizer=sgd,
    )


def mnist_lfq_1() -> Plan:
    """LFQ, the decoder sent every round. The thesis: 96.05 % at a ratio of 438.73."""
    return replace(mnist(), guard=LFQ(bits=8, decoder="client", freq=240))


def mnist_lfq_8() -> Plan:
    """LFQ, the decoder sent every eight rounds. The thesis: 95.80 % at a ratio of 486.66."""
    return replace(mnist(), guard=LFQ(bits=8, decoder="client", freq=8 * 240))


# ------------------------------------------------------------------ ten clients, 4,050 digits, twelve epochs
def digits() -> Plan:
    """No guard."""
    sgd = SGD(lr=0.02, weight_decay=1e-4)
    return replace(
        mnist(),
        data=Digits(),
        clients=10,
        epochs=12,
        batch_size=64,
        client_optimizer=sgd,
        server_optimizer=sgd,
        schedule=Cosine(),
    )


def digits_lfq() -> Plan:
    """81 bits a sample; the decoder trains at the server."""
    return replace(digits(), guard=LFQ(bits=9, scale="client", recon=0.1))


def digits_lfq_client() -> Plan:
    """81 bits a sample; the client's decoder goes up every 40 messages."""
    return replace(digits(), guard=LFQ(bits=9, decoder="client", freq=40))


def digits_lfq_seldom() -> Plan:
    """81 bits a sample; the client's decoder goes up every 200 messages."""
    return replace(digits(), guard=LFQ(bits=9, decoder="client", freq=200))


def digits_lfq_pre() -> Plan:
    """The same after 100 steps of autoencoding on the first batch."""
    return replace(digits(), guard=LFQ(bits=9, decoder="client", freq=200, pre=100))


def digits_top_2() -> Plan:
    """Top-S with two values a sample: about as many bytes."""
    return replace(digits(), guard=TopK(share=2 / 1152))


def digits_top_3() -> Plan:
    """Top-S with three values a sample: half as many bytes again."""
    return replace(digits(), guard=TopK(share=3 / 1152))


def digits_fedlite() -> Plan:
    """FedLite with two words for 64 parts: as many bytes."""
    return replace(digits(), guard=FedLite(parts=64, centroids=2))


def digits_fedlite_80() -> Plan:
    """FedLite with six times the bytes: near the ratio of 80 at which the thesis has 94.73 %."""
    return replace(digits(), guard=FedLite(parts=96, centroids=16))
