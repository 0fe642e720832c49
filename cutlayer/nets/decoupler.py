"""DISCO's spatial decoupler (Singh et al. 2021): a first layer whose channels are fields of the image."""

from torch import Tensor, nn
from torch.nn.functional import conv2d, interpolate

from .base import Shape

FIELDS = 8  # a side: as many fields as the first layer of a ResNet-18 has channels


class FieldConvolution(nn.Conv2d):
    """The first convolution, over each field of the image by itself: channel k tells of field k and of no other.

    Each of 8 x 8 fields is enlarged to the size of the whole image (bilinear) and convolved; what its channels give
    is added up to one map. A pruner that drops channels at the cut can then drop places, as far as the layers between
    have not mixed the channels again. The published code convolves with all channels and then adds them up; adding
    up the kernels first is the same function at a 64th of the products.
    """

    def forward(self, x: Tensor) -> Tensor:
        count, (height, width) = len(x), x.shape[2:]
        fields = x.unfold(2, height // FIELDS, height // FIELDS).unfold(3, width // FIELDS, width // FIELDS)
        alone = fields.permute(0, 2, 3, 1, 4, 5).flatten(0, 2)
        large = interpolate(alone, size=(height, width), mode="bilinear", align_corners=False)
        kernel = self.weight.sum(0, keepdim=True)
        maps = conv2d(large, kernel, None, self.stride, self.padding)
        return maps.reshape(count, FIELDS**2, *maps.shape[2:])


def check_fields(shape: Shape) -> None:
    if any(side % FIELDS for side in shape[1:]):
        raise ValueError(
            f"stem='fields' cuts images into {FIELDS}x{FIELDS} fields of one size, and {shape[1]}x{shape[2]} pixels "
            f"are no multiples of {FIELDS}: resize them"
        )
