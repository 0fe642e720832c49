"""Reference networks, and `cut` for your own. `__all__` holds the names a person may type in a spec."""

from cutlayer.nets.base import Net as Net
from cutlayer.nets.base import Shape as Shape
from cutlayer.nets.base import Shapes as Shapes
from cutlayer.nets.base import count_macs as count_macs
from cutlayer.nets.base import count_parameters as count_parameters
from cutlayer.nets.base import out_shape as out_shape
from cutlayer.nets.base import shapes as shapes
from cutlayer.nets.cut import Parts as Parts
from cutlayer.nets.cut import cut as cut
from cutlayer.nets.mnist_net import MnistNet
from cutlayer.nets.own import Own as Own
from cutlayer.nets.resnet import ResNet18
from cutlayer.nets.simple_cnn import SimpleCNN

__all__ = ["MnistNet", "ResNet18", "SimpleCNN"]
