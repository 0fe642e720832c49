"""How weights start where torch's defaults are not the published ones."""

from typing import Literal

from torch import nn


def initialised(part: nn.Module, mode: Literal["fan_in", "fan_out"] = "fan_out") -> nn.Module:
    """Convolutions drawn as in He et al. 2015, their biases 0."""
    for module in part.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode=mode, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return part


def small_linear(width: int, out: int, std: float) -> nn.Module:
    """A linear layer that starts near 0."""
    layer = nn.Linear(width, out)
    nn.init.normal_(layer.weight, std=std)
    nn.init.zeros_(layer.bias)
    return layer
