"""Codecs, one idea a file. A codec only changes how many bytes a tensor takes."""

from .base import Codec as Codec
from .raw import Raw

__all__ = ["Raw"]

BY_TAG: dict[int, Codec] = {codec.tag: codec for codec in (Raw(),)}
