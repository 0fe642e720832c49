"""Pictures from disk: how fast they are decoded, and what memory many of them take."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import torch

from ..data.image_files import Frame, PictureRows
from ..data.streamed import Streamed
from .measurement import Measured

FRAME = Frame("RGB", 224, 224, 0.0625)  # as ImageNet is read


def stream_decode(quick: bool) -> Measured | None:
    """Photographs of 500x375 to 224x224 in this process, against a loop over Pillow: images a second of one core."""
    with tempfile.TemporaryDirectory() as folder:
        paths = photographs(Path(folder), 32)
        if paths is None:
            return None
        rows = Streamed(PictureRows(paths, FRAME), memory=0, workers=0)
        ours, plain = [], []
        for _ in range(2 if quick else 10):
            ours.append(_seconds(lambda: rows.read(torch.arange(len(paths)))))
            plain.append(_seconds(lambda: [_by_pillow(path) for path in paths]))
    rate = len(paths) / median(ours)
    return Measured(rate, "images/s", median(plain) / median(ours), "Pillow in a loop", ">= 0.8")


def stream_memory(quick: bool) -> Measured | None:
    """One epoch over ten times the pictures: the peak memory of the few over that of the many, 8 MB of them kept."""
    few = 200 if quick else 2000
    peaks = []
    for count in (few, 10 * few):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                [sys.executable, "-c", _EPOCH, folder, str(count)], capture_output=True, text=True, check=False
            )
        if done.returncode:
            return None
        peaks.append(float(done.stdout))
    return Measured(peaks[1] / 1024, "MB", peaks[0] / peaks[1], f"{few} pictures (memory)", ">= 0.95")


ENTRIES: dict[str, Callable[[bool], Measured | None]] = {
    "stream.decode": stream_decode,
    "stream.memory": stream_memory,
}

# In a fresh process: this one's memory has peaked before. The pictures are links to a few files.
_EPOCH = r"""
import os, re, sys
os.environ["CUTLAYER_IMAGE_MEMORY"], os.environ["CUTLAYER_DECODERS"] = "8MB", "0"
import numpy as np, torch
from pathlib import Path
from PIL import Image
from cutlayer.data import IID, ImageFolder, parts
root, count = Path(sys.argv[1]), int(sys.argv[2])
for number in range(count):
    place = root / str(number % 10) / f"{number}.jpg"
    place.parent.mkdir(exist_ok=True)
    if number < 10:
        Image.fromarray(np.random.default_rng(number).integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(place)
    else:
        os.link(root / str(number % 10) / f"{number % 10}.jpg", place)
cut = parts(ImageFolder(str(root), size=64).load(), aux=20, val=0.1, seed=0)
mine = cut.private[IID().assign(cut.private, 4, 0)[0]]
for index in torch.randperm(len(mine)).split(32):
    mine.images(index)
# Of this program alone: ru_maxrss begins at the peak of whoever started it.
print(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1])
"""


def photographs(folder: Path, count: int) -> list[Path] | None:
    """Smooth colours and some noise: files of about the size that photographs have."""
    try:
        from PIL import Image
    except ImportError:
        return None
    random, (y, x) = np.random.default_rng(0), np.mgrid[:375, :500]
    paths = []
    for number in range(count):
        waves = np.sin(x * random.uniform(0.01, 0.08) + y * random.uniform(0.01, 0.08))
        pixels = 128 + 60 * waves[..., None] + random.normal(0, 12, (375, 500, 3))
        paths.append(folder / f"{number}.jpg")
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(paths[-1], quality=92)
    return paths


def _by_pillow(path: Path) -> np.ndarray:
    from PIL import Image, ImageOps

    with Image.open(path) as image:
        fitted = ImageOps.fit(image.convert("RGB"), (224, 224), Image.Resampling.BILINEAR, FRAME.rim)
        return np.asarray(fitted).transpose(2, 0, 1)


def _seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began
