"""Film reviews as texts through the cut: a first look, SEAL's Table 1 on the reviews at hand, and a language model.

SEAL, Table 1 (accuracy in %, RoBERTa on IMDB, ten clients): no defence 94.6; on five / all clients SEAL 94.2 /
93.4, NoPeekNN 81.4 / 80.6, DCOR 81.9 / 80.2, DP-SGD 42.6 / 40.7. From the paper: ten clients, each with a secret
function of its own; cut after the word embeddings, the classifier on the server (Table 4), so labels travel; energy
0.7.

Not in the paper, so ours: optimizer, batches, epochs, IID parts, turns batch by batch; α of both correlations, clip
and noise of DP-SGD. Scaled: 8,000 + 4,000 reviews, not 25,000 + 25,000; their first 128 words; a transformer of two
layers from scratch, without pretrained weights. NoPeekNN is taken for the published code, which has squared
distances (`NoPeek(squared=True)`), DCOR for distance correlation itself. What can carry over is the order of the
rows, not their height.
"""

from dataclasses import replace

from cutlayer import Plan, UShaped, Vanilla
from cutlayer.data import IMDB
from cutlayer.guards import DPSGD, SEAL, Guard, NoPeek
from cutlayer.nets import TextDecoder, TextEncoder
from cutlayer.training import Adam

HALF, ALL = 5, 10


def quick() -> Plan:
    """Two layers, one of them the client's; 64 words of each review. Under two minutes on two cores."""
    net = TextEncoder(layers=2, width=64, heads=2, at=1, vocabulary=2000, dropout=0.1)
    return Plan(net=net, data=IMDB(length=64, vocabulary=2000), epochs=2)


def quick_embedding() -> Plan:
    """The same, cut at the embedding: what leaves is a lookup, a word's vector a place."""
    return replace(quick(), net=replace(quick().net, at=0))  # type: ignore[type-var]


def six_layers() -> Plan:
    """Six layers of width 256 and 256 words, for a GPU; the mask crosses, so the server learns lengths."""
    net = TextEncoder(layers=6, width=256, heads=4, at=1, vocabulary=20_000, dropout=0.2, pad="mask")
    slow = Adam(lr=3e-4)
    return Plan(
        net=net, data=IMDB(length=256, vocabulary=20_000), epochs=8, patience=8, client_optimizer=slow,
        server_optimizer=slow,
    )  # fmt: skip


def language() -> Plan:
    """A language model: next words of reviews, labels (the texts themselves) at home."""
    net = TextDecoder(layers=2, width=64, heads=2, at=1, vocabulary=2000, dropout=0.1)
    return Plan(
        net=net, data=IMDB(length=64, vocabulary=2000, next_token=True), protocol=UShaped(), epochs=3, batch_size=32
    )


# ------------------------------------------------------------------ SEAL, Table 1
def table1() -> Plan:
    """No defence. The best epoch by validation counts, for every row."""
    net = TextEncoder(layers=2, width=64, heads=2, at=0, vocabulary=5000, dropout=0.1)
    return Plan(net=net, data=IMDB(), protocol=Vanilla(), clients=10, epochs=4, patience=4)


def _row(guard: Guard, clients: int) -> Plan:
    return replace(table1(), guard=guard, guarded_clients=clients)


def table1_seal_half() -> Plan:
    """SEAL on five of ten clients."""
    return _row(SEAL(energy=0.7), HALF)


def table1_seal_all() -> Plan:
    """SEAL on all ten."""
    return _row(SEAL(energy=0.7), ALL)


def table1_nopeek_half() -> Plan:
    """NoPeekNN on five of ten."""
    return _row(NoPeek(squared=True), HALF)


def table1_nopeek_all() -> Plan:
    """NoPeekNN on all ten."""
    return _row(NoPeek(squared=True), ALL)


def table1_dcor_half() -> Plan:
    """DCOR on five of ten."""
    return _row(NoPeek(), HALF)


def table1_dcor_all() -> Plan:
    """DCOR on all ten."""
    return _row(NoPeek(), ALL)


def table1_dpsgd_half() -> Plan:
    """DP-SGD on five of ten."""
    return _row(DPSGD(), HALF)


def table1_dpsgd_all() -> Plan:
    """DP-SGD on all ten."""
    return _row(DPSGD(), ALL)
