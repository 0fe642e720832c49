"""The settings of PRISM (Madill's thesis, 2025, Table 3.2): a learned mask routes a part of the cut past the server.

From the thesis (Sec. 3.4.1): ResNet-18 cut "after the 6th layer", SGD with rate 0.015, momentum 0.9 and weight decay
1e-4, batches of 128, 50 epochs for CIFAR-10 and 10 for faces, top-k thresholds, hybrid fusion, `living` as attribute.
PRISM (X) is read as: the share X stays home, so keep = 1 - X.

Not in the thesis, so ours: the stem (torchvision's sixth child is the end of layer2; accuracies of 90 % need the stem
for small images), rho = 0.5, gamma, the length of the annealing, the adversary, what is in the home stream before
the fusion, and the epoch that counts (chosen on a tenth of the training data). Faces are in faces.py.
"""

from dataclasses import replace

from cutlayer import Bypass, Plan
from cutlayer.data import CIFAR10
from cutlayer.guards import Prism
from cutlayer.nets import ResNet18
from cutlayer.training import SGD

ROUTED = Prism(keep=0.1, privacy="adversary", attribute="living", anneal=8000)  # of 17,600 steps


# ------------------------------------------------------------------ CIFAR-10, 128x16x16; for vanilla see baselines.py
def cifar10() -> Plan:
    """PRISM (0.9). The thesis: accuracy 0.904, adversary 0.963, SSIM 0.476."""
    sgd = SGD(lr=0.015, momentum=0.9, weight_decay=1e-4)
    return Plan(
        net=ResNet18(stem="cifar", depth=4),
        data=CIFAR10(),
        protocol=Bypass(fusion="hybrid"),
        guard=ROUTED,
        epochs=50,
        batch_size=128,
        client_optimizer=sgd,
        server_optimizer=sgd,
    )


def cifar10_75() -> Plan:
    """PRISM (0.75). The thesis: accuracy 0.902, adversary 0.971, SSIM 0.500."""
    return replace(cifar10(), guard=replace(ROUTED, keep=0.25))


def cifar10_54() -> Plan:
    """PRISM (0.54). The thesis: accuracy 0.897, adversary 0.978, SSIM 0.524."""
    return replace(cifar10(), guard=replace(ROUTED, keep=0.46))


def cifar10_home() -> Plan:
    """What helps the task stays home: the routing that the thesis describes for Fig. 3.3, against its Eq. 3.6."""
    return replace(cifar10(), guard=replace(ROUTED, salient="home"))


def cifar10_images() -> Plan:
    """The adversary guesses the image instead of an attribute that follows from the label."""
    return replace(cifar10(), guard=replace(ROUTED, attribute=None))
