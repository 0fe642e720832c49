"""Codecs, one idea a file. A codec only changes how many bytes a tensor takes."""

from .base import Codec as Codec
from .choice import smallest as smallest
from .prefix import Prefix
from .raw import Raw
from .sparse import Sparse

__all__ = ["Prefix", "Raw", "Sparse"]

BY_TAG: dict[int, Codec] = {codec.tag: codec for codec in (Raw(), Sparse(), Prefix())}
