"""Faces as three works have them: FORA (Tables 3 and 11), LFQ (Table 2.3), and PRISM beside DISCO (Table 3.2).

The files are the official ones: CelebA in celeba/, FairFace in fairface/, UTKFace's folder in UTKFace/, and for an
attacker FFHQ in ffhq/. `cutlayer data check DIR` says whether they are there.

FORA (Sec. 4.1, App. A): CelebA at 64x64, a ResNet-18 that tells who smiles, labels that travel, 10,000 pictures of
FFHQ. Its split points are read off the channels of Table 9 (64, 64, 128, 256; the figure is not in the text): behind
the stem and the first three stages. Not in the paper, so ours: optimizer, batch size and epochs.

    cutlayer audit recipes/faces.py:fora_2 --attack 'FORA(alongside=True)' --attack 'PCAT(private_share=0.1)' \\
        --attack UnSplit --aux-data 'FFHQ(limit=10000)' --aux-samples 10000

LFQ (Madill's thesis, Sec. 2.5.1): pictures as they are, 218x178, MobileNetV3-Large cut after its 7th block at
80x14x12 = 13,440 numbers (printed as 13,400), a hundred clients that share no person, SGD at 0.01 with momentum 0.9
and weight decay 1e-4, batches of 64, 100 rounds. Its network is pre-trained: add --start with torchvision's weights.
Its rates hold the decoder, which is 71 bits a sample where it goes up every fourth round; 9 bits at 14x12 places, or
8 and 7 bits at 7x6, are about the rest. Ours: the target, and that a round is an epoch of 2,300 messages.

PRISM (Madill's thesis, Sec. 3.4.1): ResNet-18 cut after layer2, SGD at 0.015 with momentum 0.9 and weight decay 1e-4,
batches of 128, ten epochs, top-k, hybrid fusion. DISCO (8) has the authors' decoupler of the input. Ours: size,
FairFace's gender without the race (its accuracies fit those two), rho, gamma, the length of the annealing, DISCO's
ratio and alpha. UTKFace is in neither work. Both adversaries:

    cutlayer audit recipes/faces.py:prism_fairface --attack 'AttributeInference("race")' --attack Decoder \\
        --aux-samples 5000
"""

from dataclasses import replace

from cutlayer import Bypass, Plan, Vanilla
from cutlayer.data import ByIdentity, CelebA, FairFace, UTKFace
from cutlayer.guards import DPSGD, LFQ, Disco, FedLite, Noise, NoPeek, Prism, SplitFC, TopK
from cutlayer.nets import MobileNetV3Large, ResNet18
from cutlayer.training import SGD

SHARE = 64 / 146_493  # of the training pictures in a batch, a tenth set aside: what DP-SGD's ε counts with


# ------------------------------------------------------------------ FORA, Table 3: CelebA, ResNet-18
def fora_1() -> Plan:
    """Layer 1, behind the stem: 64x16x16. The paper: SSIM 0.137 (UnSplit), 0.333 (PCAT), 0.485 (FORA)."""
    return Plan(net=ResNet18(depth=1), data=CelebA(), protocol=Vanilla(), epochs=10)


def fora_2() -> Plan:
    """Layer 2, behind layer1: 64x16x16. The paper: accuracy 91.91 %, SSIM 0.170, 0.316, 0.476."""
    return replace(fora_1(), net=ResNet18(depth=3))


def fora_3() -> Plan:
    """Layer 3, behind layer2: 128x8x8. The paper: SSIM 0.156, 0.164, 0.191."""
    return replace(fora_1(), net=ResNet18(depth=4))


def fora_4() -> Plan:
    """Layer 4, behind layer3: 256x4x4. The paper: SSIM 0.084, 0.092, 0.192."""
    return replace(fora_1(), net=ResNet18(depth=5))


# ------------------------------------------------------------------ FORA, Table 11: defences at layer 2
def fora_nopeek_2() -> Plan:
    """Distance correlation, α = 0.2. The paper: 91.96 %, SSIM of its attack 0.407."""
    return replace(fora_2(), guard=NoPeek(alpha=0.2))


def fora_nopeek_5() -> Plan:
    """Distance correlation, α = 0.5. The paper: 92.24 %, 0.355."""
    return replace(fora_2(), guard=NoPeek(alpha=0.5))


def fora_nopeek_8() -> Plan:
    """Distance correlation, α = 0.8. The paper: 91.93 %, 0.266."""
    return replace(fora_2(), guard=NoPeek(alpha=0.8))


def fora_noise_05() -> Plan:
    """Noise obfuscation, scale 0.5. The paper: 92.19 %, 0.378."""
    return replace(fora_2(), guard=Noise(scale=0.5))


def fora_noise_1() -> Plan:
    """Noise obfuscation, scale 1. The paper: 92.35 %, 0.311."""
    return replace(fora_2(), guard=Noise(scale=1.0))


def fora_noise_2() -> Plan:
    """Noise obfuscation, scale 2. The paper: 92.40 %, 0.140."""
    return replace(fora_2(), guard=Noise(scale=2.0))


def fora_dpsgd_clip() -> Plan:
    """DP-SGD that clips and adds no noise, the paper's ε = ∞: 91.91 %, 0.460. GroupNorm, as in baselines.py."""
    return replace(fora_2(), net=ResNet18(depth=3, norm="group"), guard=DPSGD(noise=0.0))


def fora_dpsgd_100() -> Plan:
    """DP-SGD on the head, ε = 100. The paper: 91.00 %, 0.460."""
    return replace(fora_dpsgd_clip(), guard=DPSGD(epsilon=100.0, sampling=SHARE))


def fora_dpsgd_10() -> Plan:
    """ε = 10. The paper: 91.41 %, 0.435."""
    return replace(fora_dpsgd_clip(), guard=DPSGD(epsilon=10.0, sampling=SHARE))


# ------------------------------------------------------------------ LFQ, Table 2.3: CelebA, 80x14x12
ROUND = 2_300  # messages: a hundred clients of 23 batches


def lfq() -> Plan:
    """Vanilla split learning. The thesis: 91.90 %."""
    sgd = SGD(lr=0.01, weight_decay=1e-4)
    return Plan(
        net=MobileNetV3Large(),
        data=CelebA(attributes=(), size=(218, 178)),
        protocol=Vanilla(),
        clients=100,
        partition=ByIdentity(),
        epochs=100,
        batch_size=64,
        client_optimizer=sgd,
        server_optimizer=sgd,
    )


def lfq_2() -> Plan:
    """LFQ [2 freq, 1 stride]: 1,512 bits a sample. The thesis: 92.37 % at a ratio of 262.94."""
    return replace(lfq(), guard=LFQ(bits=9, stride=1, decoder="client", freq=2 * ROUND))


def lfq_4() -> Plan:
    """LFQ [4 freq, 1 stride]: 1,512 bits. The thesis: 92.17 % at 274.83."""
    return replace(lfq(), guard=LFQ(bits=9, stride=1, decoder="client", freq=4 * ROUND))


def lfq_4_small() -> Plan:
    """LFQ [4 freq]: 336 bits. The thesis: 91.63 % at 1031.26."""
    return replace(lfq(), guard=LFQ(bits=8, decoder="client", freq=4 * ROUND))


def lfq_4_smallest() -> Plan:
    """LFQ [4 freq]: 294 bits. The thesis: 90.52 % at 1132.26."""
    return replace(lfq(), guard=LFQ(bits=7, decoder="client", freq=4 * ROUND))


def lfq_splitfc() -> Plan:
    """SplitFC at a ratio of 160, a fifth of a bit a number. The thesis: 92.22 %."""
    return replace(lfq(), guard=SplitFC(ratio=16, budget=0.2))


def lfq_fedlite() -> Plan:
    """FedLite near the ratio of 160: 840 parts of 8 words. The thesis: 82.44 %."""
    return replace(lfq(), guard=FedLite(parts=840, centroids=8))


def lfq_top() -> Plan:
    """Top-S with one value in 320. The thesis at ratios of 160 and 320: 56.76 % and 53.02 %."""
    return replace(lfq(), guard=TopK(share=1 / 320))


# ------------------------------------------------------------------ PRISM, Table 3.2: ResNet-18, 128x8x8
ROUTED = Prism(keep=0.1, privacy="adversary", attribute="Male", anneal=6000)


def celeba() -> Plan:
    """Vanilla split learning: smiling, and who is male. The thesis: 0.930, adversary 0.954, SSIM 0.874."""
    sgd = SGD(lr=0.015, momentum=0.9, weight_decay=1e-4)
    return Plan(
        net=ResNet18(depth=4),
        data=CelebA(),
        protocol=Vanilla(),
        epochs=10,
        batch_size=128,
        client_optimizer=sgd,
        server_optimizer=sgd,
    )


def prism_celeba() -> Plan:
    """PRISM (0.9). The thesis: 0.924, adversary 0.609, SSIM 0.170."""
    return replace(celeba(), protocol=Bypass(fusion="hybrid"), guard=ROUTED)


def prism_celeba_75() -> Plan:
    """PRISM (0.75). The thesis: 0.921, adversary 0.811, SSIM 0.307."""
    return replace(prism_celeba(), guard=replace(ROUTED, keep=0.25))


def prism_celeba_54() -> Plan:
    """PRISM (0.54). The thesis: 0.927, adversary 0.913, SSIM 0.568."""
    return replace(prism_celeba(), guard=replace(ROUTED, keep=0.46))


def disco_celeba() -> Plan:
    """DISCO (Off): whole channels. The thesis: 0.931, adversary 0.915, SSIM 0.520."""
    return replace(celeba(), guard=Disco(attribute="Male"))


def disco_celeba_8() -> Plan:
    """DISCO (8), with its decoupler of the input. The thesis: 0.915, adversary 0.868, SSIM 0.202."""
    return replace(disco_celeba(), net=ResNet18(stem="fields", depth=4))


def fairface() -> Plan:
    """Vanilla split learning: gender, and the race beside it. The thesis: 0.916, adversary 0.419, SSIM 0.830."""
    return replace(celeba(), data=FairFace())


def prism_fairface() -> Plan:
    """PRISM (0.9). The thesis: 0.894, adversary 0.212, SSIM 0.290."""
    return replace(fairface(), protocol=Bypass(fusion="hybrid"), guard=replace(ROUTED, attribute="race", anneal=3000))


def disco_fairface() -> Plan:
    """DISCO (Off). The thesis: 0.904, adversary 0.402, SSIM 0.661."""
    return replace(fairface(), guard=Disco(attribute="race"))


def disco_fairface_8() -> Plan:
    """DISCO (8), with its decoupler of the input. The thesis: 0.773, adversary 0.282, SSIM 0.260."""
    return replace(disco_fairface(), net=ResNet18(stem="fields", depth=4))


def utkface() -> Plan:
    """Vanilla split learning on UTKFace, which is in neither work: gender, and the race beside it."""
    return replace(celeba(), data=UTKFace(distinct=True))


def prism_utkface() -> Plan:
    """PRISM (0.9)."""
    return replace(utkface(), protocol=Bypass(fusion="hybrid"), guard=replace(ROUTED, attribute="race", anneal=800))


def disco_utkface() -> Plan:
    """DISCO (Off)."""
    return replace(utkface(), guard=Disco(attribute="race"))


def disco_utkface_8() -> Plan:
    """DISCO (8), with its decoupler of the input."""
    return replace(disco_utkface(), net=ResNet18(stem="fields", depth=4))
