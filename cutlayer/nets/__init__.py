"""Reference networks, and `cut` for your own. `__all__` holds the names a person may type in a spec."""

from .at_layers import CutAtLayers as CutAtLayers
from .base import Net as Net
from .base import Shape as Shape
from .base import Shapes as Shapes
from .base import count_macs as count_macs
from .base import count_parameters as count_parameters
from .base import out_shape as out_shape
from .base import shapes as shapes
from .bypass import Rejoin as Rejoin
from .cut import Parts as Parts
from .cut import cut as cut
from .deeplab import DeepLabV3
from .fsa_victim import FSAClient
from .fsha_victim import FSHAClient
from .huggingface import HuggingFace
from .lenet import LeNet
from .lora import LoRA as LoRA
from .micron_net import MicronNet
from .mlp import MLP
from .mnist_net import MnistNet
from .mobilenet import MobileNet
from .mobilenet_v3 import MobileNetV3Large
from .own import Own
from .resnet import ResNet18
from .resnet20 import ResNet20
from .resnet50 import ResNet50
from .segmenter import Segmenter
from .signal_net import SignalNet
from .simple_cnn import SimpleCNN
from .text_decoder import TextDecoder
from .text_encoder import TextEncoder
from .timm import Timm
from .vgg import VGG16
from .weights import load_weights as load_weights
from .weights import whole_state as whole_state
from .whole import Whole

__all__ = [
    "MLP",
    "VGG16",
    "DeepLabV3",
    "FSAClient",
    "FSHAClient",
    "HuggingFace",
    "LeNet",
    "MicronNet",
    "MnistNet",
    "MobileNet",
    "MobileNetV3Large",
    "Own",
    "ResNet18",
    "ResNet20",
    "ResNet50",
    "Segmenter",
    "SignalNet",
    "SimpleCNN",
    "TextDecoder",
    "TextEncoder",
    "Timm",
    "Whole",
]
