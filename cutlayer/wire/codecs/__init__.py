"""Codecs, one idea a file: a codec only changes how many bytes a tensor takes.

An import line here is all that registers one: `__all__`, and with it `BY_TAG`, follows.
"""

from ...core.spec import plug_ins
from .base import Codec as Codec
from .base import Prepared as Prepared
from .codebook import Codebook as Codebook
from .columns import Columns as Columns
from .entropy import Entropy as Entropy
from .grid import Grid as Grid
from .half import Half as Half
from .image_file import Pictures as Pictures
from .latents import Latents as Latents
from .parts.gridded import Gridded as Gridded
from .prefix import Prefix as Prefix
from .raw import Raw as Raw
from .sparse import Sparse as Sparse
from .sparse_grid import SparseGrid as SparseGrid

__all__ = plug_ins(globals(), Codec)

BY_TAG: dict[int, Codec] = {codec.tag: codec for codec in (globals()[name]() for name in __all__)}
