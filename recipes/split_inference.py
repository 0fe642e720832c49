"""Split inference with VQ-VAE + LFQ (Madill's thesis, 2025, Figs. 2.6 to 2.8 and Table 2.5): photographs, few bits.

From the thesis (Sec. 2.5.1): ResNet-50 on ImageNet-1k at 224x224 and DeepLabv3 on COCO 2017 at 513x513, both begun
from published weights and cut "after the 8th layer", SGD with momentum 0.9 and weight decay 1e-4, rate 0.01, 15
epochs and batches of 128 for ImageNet, 0.003, 10 epochs and 40 for COCO. Its ratio of 16,988 at 0.062 bits a pixel is
that of 2048x65x65 numbers, so the 8th layer is layer4 (conv1, bn1, relu, maxpool, layer1 to layer4), and the rates
0.008, 0.017 and 0.062 are 2, 4 and 15 bits at 33x33 positions, a little less after entropy coding.

Not in the thesis, so ours: labels travel (behind layer4 of ResNet-50 nothing is left to a server but the classifier),
one client, and the weights of the terms. The bits of ImageNet are chosen for the rates that Fig. 2.6 spans.

The data are too large for memory and are decoded as they are needed (docs/data.md). Weights are torchvision's files:

    cutlayer train recipes/split_inference.py:imagenet_lfq --start resnet50.pth --device cuda --out runs/a
    cutlayer train recipes/split_inference.py:coco_lfq --start deeplabv3_resnet50_coco.pth --device cuda --out runs/b
    cutlayer compare recipes/split_inference.py:coco --start deeplabv3_resnet50_coco.pth --device cuda --no-alone \
        --with plan --with 'guard=LFQ(bits={2,4,7,15})' --with guard=RateBottleneck --with guard=EntropicStudent \
        --with 'net=Whole(net=DeepLabV3(scale="imagenet")); guard=JPEG(quality={10,50})'
    cutlayer compare recipes/split_inference.py:search --with 'net=ResNet18(stem="cifar", depth={1,3,4,5,6})'

A file of ResNet-50 for DeepLabv3 fills its backbone alone, as in the thesis.
"""

from dataclasses import replace

from cutlayer import Plan, Vanilla
from cutlayer.data import CIFAR10, COCO, VOC, ImageNet
from cutlayer.guards import LFQ
from cutlayer.nets import DeepLabV3, ResNet18, ResNet50
from cutlayer.training import SGD


# ------------------------------------------------------------------ ImageNet, d = 2048x7x7
def imagenet() -> Plan:
    """No guard."""
    sgd = SGD(lr=0.01, weight_decay=1e-4)
    return Plan(
        net=ResNet50(depth=6, scale="imagenet"),
        data=ImageNet(augment="flip"),
        protocol=Vanilla(),
        epochs=15,
        batch_size=128,
        client_optimizer=sgd,
        server_optimizer=sgd,
    )


def imagenet_lfq() -> Plan:
    """26 bits at 4x4 positions: 0.008 bits a pixel."""
    return replace(imagenet(), guard=LFQ(groups=2))


def imagenet_lfq_most() -> Plan:
    """195 bits at 4x4 positions: 0.062 bits a pixel."""
    return replace(imagenet(), guard=LFQ(groups=15))


# ------------------------------------------------------------------ COCO, d = 2048x65x65
def coco() -> Plan:
    """No guard. The thesis: a mean IoU of 66.4 %."""
    sgd = SGD(lr=0.003, weight_decay=1e-4)
    return Plan(
        net=DeepLabV3(scale="imagenet"),
        data=COCO(least=1001),
        protocol=Vanilla(),
        epochs=10,
        batch_size=40,
        client_optimizer=sgd,
        server_optimizer=sgd,
    )


def coco_lfq() -> Plan:
    """15 bits at 33x33 positions. The thesis: 66.16 % at 0.062 bits a pixel, a ratio of 16,988."""
    return replace(coco(), guard=LFQ(bits=15))


def voc_lfq() -> Plan:
    """The same on PASCAL VOC, which is in the same classes and a hundredth of the size."""
    return replace(coco_lfq(), data=VOC())


# ------------------------------------------------------------------ the search of Fig. 2.8
def search() -> Plan:
    """ResNet-18 on CIFAR-10 cut after layer2, the 6th of the layers 4 to 8 that the thesis tries."""
    return Plan(net=ResNet18(stem="cifar", depth=4), data=CIFAR10(), protocol=Vanilla(), guard=LFQ(), epochs=30)
