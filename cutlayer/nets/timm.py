"""Networks of the library timm by name, with random weights, cut at named layers."""

import difflib
from dataclasses import dataclass
from typing import Any

from torch import nn

from .at_layers import CutAtLayers
from .base import Shape, check_image


@dataclass(frozen=True, repr=False)
class Timm(CutAtLayers):
    """A network of timm by its name, cut at named layers: Timm('vit_tiny_patch16_224', at='blocks.3', back='head').

    Nothing is fetched: weights are random, or come from a file of yours (`--start weights.safetensors`, with timm's
    names). Channels and classes are those of the data, and so is the size where the network is made for one.
    """

    name: str
    at: str = ""
    back: str | None = None

    def model(self, shape: Shape | None, classes: int | None) -> nn.Module:
        timm = _library()
        if not timm.is_model(self.name):
            near = difflib.get_close_matches(self.name, timm.list_models(), n=3)
            raise ValueError(
                f"timm has no network {self.name!r}"
                + (f"; did you mean {' or '.join(near)}?" if near else ": timm.list_models() names them all")
            )
        options: dict[str, Any] = {} if classes is None else {"num_classes": classes}
        if shape is not None:
            check_image(self.name, shape, smallest=1, published=self.usual_shape())
            options["in_chans"] = shape[0]
            if self._made_for_a_size() and tuple(shape[1:]) != self.usual_shape()[1:]:
                options["img_size"] = tuple(shape[1:])
        try:
            return timm.create_model(self.name, pretrained=False, **options)
        except (TypeError, ValueError, AssertionError) as error:
            raise ValueError(f"timm cannot make {self.name} for inputs of shape {shape}: {error}") from error

    def usual_shape(self) -> Shape:
        return tuple(self._facts().input_size)

    def _made_for_a_size(self) -> bool:
        return bool(self._facts().fixed_input_size)

    def _facts(self) -> Any:
        return _library().models.get_pretrained_cfg(self.name)


def _library() -> Any:
    try:
        import timm
    except Exception as error:  # its own torchvision may not fit the torch that is here
        raise ValueError(
            f"networks by the names of timm need the packages timm and torchvision ({error}): "
            "pip install 'cutlayer[vision]'"
        ) from error
    return timm
