"""Data sources by name. `__all__` is what a person may type; the rest is for code."""

from cutlayer.data.base import CorruptData as CorruptData
from cutlayer.data.base import Loaded as Loaded
from cutlayer.data.base import MissingData as MissingData
from cutlayer.data.base import Parts as Parts
from cutlayer.data.base import Samples as Samples
from cutlayer.data.base import Source as Source
from cutlayer.data.base import overlap as overlap
from cutlayer.data.base import parts as parts
from cutlayer.data.cifar10 import CIFAR10
from cutlayer.data.digits import Digits
from cutlayer.data.fashion_mnist import FashionMNIST
from cutlayer.data.mnist import MNIST
from cutlayer.data.npz import Npz

__all__ = ["CIFAR10", "MNIST", "Digits", "FashionMNIST", "Npz"]
