"""How much of the memory decoded images may take here, and how many processes decode: facts of a machine, no plan's.

What is learnt does not hang on them: a set that is streamed gives the same rows as one that lies in memory.
"""

import os
import re

MEMORY, DECODERS = "CUTLAYER_IMAGE_MEMORY", "CUTLAYER_DECODERS"
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
USUAL = 4 << 30


def image_memory() -> int:
    """Bytes of decoded images that are kept: a set that needs more is streamed, with a cache of this size."""
    told = os.environ.get(MEMORY, "").strip()
    if not told:
        return USUAL
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?", told, re.IGNORECASE)
    if found is None:
        raise ValueError(f"{MEMORY} is how much memory decoded images may take, e.g. 4GB or 500MB; got {told!r}")
    return int(float(found[1]) * UNITS[found[2].upper()])


def decoders() -> int:
    """Processes that decode the images of a streamed set. 0: this one does it. Default: all cores but one."""
    told = os.environ.get(DECODERS, "").strip()
    if not told:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return max(1, cores - 1)
    if not told.isdigit():
        raise ValueError(f"{DECODERS} is how many processes decode images, from 0 up; got {told!r}")
    return int(told)
