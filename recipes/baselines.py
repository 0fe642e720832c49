"""Baselines as two papers run them: FORA's three defences (Table 7) and DISCO in PRISM's comparison (Table 3.2).

From FORA: CIFAR-10, MobileNet cut at its layer 2, labels that travel (its App. E treats the other case apart),
NoPeek's α of 0.2, 0.5 and 0.8 (Eq. 8), and the scales of noise obfuscation: 1, 2 and 5 (for CelebA 0.5, 1 and 2).
Not in FORA, so ours: optimizer, batch size and epochs. "σ" is read as the scale of the Laplace noise, not as its
standard deviation. Of DP-SGD it names ε alone: clip and δ are ours, and the noise follows from them as DP-SGD is
usually counted (batches drawn at random; 64 of a client's 45,000 images at a time). GroupNorm stands for BatchNorm,
in which samples share gradients. That ε is one of the weights and says nothing of what leaves; what holds of this run
is in its result, and is less (docs/privacy.md).

From the thesis on PRISM: ResNet-18 cut after its 6th layer (layer2), the attribute `living`, SGD at 0.015 with
momentum 0.9 and weight decay 1e-4, batches of 128, 50 epochs, DISCO with eight patches a side and without ("Off").
Not in it, so ours: the CIFAR stem (accuracies above 90 % need it), DISCO's pruning ratio and alpha. Its decoupler
cuts up the input (recipes/faces.py has it); here the 16x16 maps at the cut are divided, so "(8)" has other units.

Neither paper runs `Adversarial` or `Shredder`; their settings are ours.
"""

from dataclasses import replace

from cutlayer import Plan, Vanilla
from cutlayer.data import CIFAR10
from cutlayer.guards import DPSGD, Adversarial, Disco, Noise, NoPeek, Shredder
from cutlayer.nets import MobileNet, ResNet18
from cutlayer.training import SGD

SHARE = 64 / 45000  # of a client's records in a batch: CIFAR-10 less a tenth for validation


# ------------------------------------------------------------------ FORA, Table 7: CIFAR-10, MobileNet, 64x16x16
def fora() -> Plan:
    """No defence. The paper: accuracy 71.25 %, SSIM of its attack 0.830."""
    return Plan(net=MobileNet(level=2), data=CIFAR10(), protocol=Vanilla(), epochs=30)


def fora_nopeek_2() -> Plan:
    """Distance correlation, α = 0.2. The paper: 70.91 %, 0.692."""
    return replace(fora(), guard=NoPeek(alpha=0.2))


def fora_nopeek_5() -> Plan:
    """Distance correlation, α = 0.5. The paper: 70.06 %, 0.628."""
    return replace(fora(), guard=NoPeek(alpha=0.5))


def fora_nopeek_8() -> Plan:
    """Distance correlation, α = 0.8. The paper: 69.72 %, 0.563."""
    return replace(fora(), guard=NoPeek(alpha=0.8))


def fora_noise_1() -> Plan:
    """Noise obfuscation, scale 1. The paper: 74.39 %, 0.640."""
    return replace(fora(), guard=Noise(scale=1.0))


def fora_noise_2() -> Plan:
    """Noise obfuscation, scale 2. The paper: 73.14 %, 0.583."""
    return replace(fora(), guard=Noise(scale=2.0))


def fora_noise_5() -> Plan:
    """Noise obfuscation, scale 5. The paper: 70.62 %, 0.394."""
    return replace(fora(), guard=Noise(scale=5.0))


def fora_dpsgd_clip() -> Plan:
    """DP-SGD that clips and adds no noise, the paper's ε = ∞: 69.68 %, 0.823."""
    return replace(fora(), net=MobileNet(level=2, norm="group"), guard=DPSGD(noise=0.0))


def fora_dpsgd_100() -> Plan:
    """DP-SGD on the head, ε = 100. The paper: 63.05 %, 0.711."""
    return replace(fora_dpsgd_clip(), guard=DPSGD(epsilon=100.0, sampling=SHARE))


def fora_dpsgd_10() -> Plan:
    """ε = 10. The paper: 61.93 %, 0.621."""
    return replace(fora_dpsgd_clip(), guard=DPSGD(epsilon=10.0, sampling=SHARE))


def fora_dpsgd_6() -> Plan:
    """ε = 6 (Table 10). The paper: 61.61 %, 0.590."""
    return replace(fora_dpsgd_clip(), guard=DPSGD(epsilon=6.0, sampling=SHARE))


def fora_dpsgd_1() -> Plan:
    """ε = 1 (Table 10). The paper: 61.17 %, 0.582."""
    return replace(fora_dpsgd_clip(), guard=DPSGD(epsilon=1.0, sampling=SHARE))


# ------------------------------------------------------------------ PRISM, Table 3.2: CIFAR-10, ResNet-18, 128x16x16
def prism() -> Plan:
    """Vanilla split learning. The thesis: accuracy 0.905, adversary 0.919, SSIM 0.837."""
    sgd = SGD(lr=0.015, momentum=0.9, weight_decay=1e-4)
    return Plan(
        net=ResNet18(stem="cifar", depth=4),
        data=CIFAR10(),
        protocol=Vanilla(),
        epochs=50,
        batch_size=128,
        client_optimizer=sgd,
        server_optimizer=sgd,
    )


def prism_disco_off() -> Plan:
    """DISCO (Off): whole channels. The thesis: 0.899, adversary 0.979, SSIM 0.632."""
    return replace(prism(), guard=Disco(attribute="living"))


def prism_disco_8() -> Plan:
    """DISCO (8): eight by eight patches of each channel. The thesis: 0.555, adversary 0.901, SSIM 0.508."""
    return replace(prism(), guard=Disco(patches=8, attribute="living"))


# ------------------------------------------------------------------ in neither paper
def adversarial() -> Plan:
    """A reader of images at home, on FORA's network."""
    return replace(fora(), guard=Adversarial())


def adversarial_living() -> Plan:
    """A reader of `living` at home, on the network of PRISM."""
    return replace(prism(), guard=Adversarial(attribute="living"))


def shredder() -> Plan:
    """Learned noise for FORA's network when it is trained: add --start with a file of the whole network."""
    return replace(fora(), guard=Shredder(), frozen_parts=("head", "body", "tail"), epochs=5)
