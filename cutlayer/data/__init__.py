"""Data sources by name. `__all__` is what a person may type; the rest is for code."""

from .base import About as About
from .base import CorruptData as CorruptData
from .base import Loaded as Loaded
from .base import MissingData as MissingData
from .base import Parts as Parts
from .base import Samples as Samples
from .base import Source as Source
from .base import distinct as distinct
from .base import overlap as overlap
from .base import parts as parts
from .celeba import CelebA
from .cifar10 import CIFAR10
from .cifar100 import CIFAR100
from .coco import COCO
from .digits import Digits
from .faces import Faces
from .fairface import FairFace
from .fashion import Fashion
from .fashion_mnist import FashionMNIST
from .gtsrb import GTSRB
from .image_folder import ImageFolder
from .imagenet import ImageNet
from .imdb import IMDB
from .mnist import MNIST
from .mnist_rows import MNISTRows
from .npz import Npz
from .partitions import IID as IID
from .partitions import ByIdentity as ByIdentity
from .partitions import Dirichlet as Dirichlet
from .partitions import Labels as Labels
from .partitions import Partition as Partition
from .poisons import BadNets as BadNets
from .poisons import LabelFlip as LabelFlip
from .poisons import Poison as Poison
from .reviews import Reviews
from .scenes import Scenes
from .svhn import SVHN
from .table import Table
from .texts import Texts
from .tiny_imagenet import TinyImageNet
from .unlabelled import FFHQ, Unlabelled
from .utkface import UTKFace
from .voc import VOC

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "COCO",
    "FFHQ",
    "GTSRB",
    "IMDB",
    "MNIST",
    "SVHN",
    "VOC",
    "CelebA",
    "Digits",
    "Faces",
    "FairFace",
    "Fashion",
    "FashionMNIST",
    "ImageFolder",
    "ImageNet",
    "MNISTRows",
    "Npz",
    "Reviews",
    "Scenes",
    "Table",
    "Texts",
    "TinyImageNet",
    "UTKFace",
    "Unlabelled",
]
