"""Data sources by name. `__all__` is what a person may type; the rest is for code."""

from .base import CorruptData as CorruptData
from .base import Loaded as Loaded
from .base import MissingData as MissingData
from .base import Parts as Parts
from .base import Samples as Samples
from .base import Source as Source
from .base import overlap as overlap
from .base import parts as parts
from .cifar10 import CIFAR10
from .digits import Digits
from .fashion_mnist import FashionMNIST
from .mnist import MNIST
from .npz import Npz

__all__ = ["CIFAR10", "MNIST", "Digits", "FashionMNIST", "Npz"]
