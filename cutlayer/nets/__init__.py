"""Reference networks, and `cut` for your own. `__all__` holds the names a person may type in a spec."""

from .base import Net as Net
from .base import Shape as Shape
from .base import Shapes as Shapes
from .base import count_macs as count_macs
from .base import count_parameters as count_parameters
from .base import out_shape as out_shape
from .base import shapes as shapes
from .cut import Parts as Parts
from .cut import cut as cut
from .mnist_net import MnistNet
from .own import Own as Own
from .resnet import ResNet18
from .simple_cnn import SimpleCNN

__all__ = ["MnistNet", "ResNet18", "SimpleCNN"]
