"""Codecs, one idea a file. A codec only changes how many bytes a tensor takes."""

from .base import Codec as Codec
from .base import Prepared as Prepared
from .codebook import Codebook
from .columns import Columns
from .entropy import Entropy
from .grid import Grid
from .half import Half
from .image_file import Pictures
from .latents import Latents
from .prefix import Prefix
from .raw import Raw
from .sparse import Sparse

__all__ = ["Codebook", "Columns", "Entropy", "Grid", "Half", "Latents", "Pictures", "Prefix", "Raw", "Sparse"]

BY_TAG: dict[int, Codec] = {
    codec.tag: codec
    for codec in (Raw(), Sparse(), Prefix(), Grid(), Columns(), Codebook(), Entropy(), Latents(), Pictures(), Half())
}
