"""What is seen in a report's figures: in words, for those who cannot see them, and as strips to slide between."""

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from ..kinds import Kind
from ..rows import Row

ENLARGED = 3  # a pixel of a small picture becomes so many: browsers blur what they enlarge themselves


@dataclass(frozen=True)
class Strip:
    """The same private images twice: as they are, and as the strongest attacker rebuilt them. PNG, base64."""

    guard: str
    said: str
    original: str
    rebuilt: str


def alt_texts(counted: Sequence[Row], kind: Kind) -> dict[str, str]:
    """Each figure in a sentence: what lies where, with the numbers."""
    named = [(_guard(row["guard"]), row) for row in counted]
    figures = "; ".join(f"{name} {_reached(row, kind)}" for name, row in named)
    places = "; ".join(
        f"{name} at {kind.said} {row['value']:.2f} and accuracy {row['accuracy']:.2f}" for name, row in named
    )
    best = "; ".join(
        f"{name} from {row['worst'][-1][1]:.2f} to {row['worst'][0][1]:.2f}"
        for name, row in named
        if row.get("worst")
    )
    return {
        "reconstructions": f"Private {kind.secret} on top, and below what an attacker rebuilt of each: {figures}.",
        "read_best": f"Of each guard the {kind.secret} that were read best, with their originals: {best}.",
        "tradeoff": f"Accuracy upwards against leakage to the right, a mark a guard: {places}.",
        "columns": f"How well each column was read behind each guard, as colours; in all {figures}.",
    }


def strips(
    counted: Sequence[Row], truth: Tensor, rebuilt: Mapping[str, Tensor], chosen: Sequence[int]
) -> list[Strip]:
    """One for each row, of the images `chosen`. `rebuilt` is by guard."""
    original = _side_by_side(truth[list(chosen)])
    return [
        Strip(
            row["guard"],
            f"SSIM {row['value']:.2f}" if row["valid"] else "attack failed",
            original,
            _side_by_side(rebuilt[row["guard"]][list(chosen)]),
        )
        for row in counted
    ]


def _guard(name: str) -> str:
    return "no guard" if name == "none" else name


def _reached(row: Row, kind: Kind) -> str:
    return f"{kind.said} {row['value']:.2f}" if row["valid"] else "shows nothing, the attack failed"


def _side_by_side(images: Tensor) -> str:
    from PIL import Image

    line = (images.clamp(0, 1) * 255).round().byte().cpu()
    enlarged = max(1, ENLARGED * 28 // line.shape[-1])
    line = line.repeat_interleave(enlarged, -1).repeat_interleave(enlarged, -2)
    pixels = line.permute(2, 0, 3, 1).flatten(1, 2).numpy()  # rows of pixels that run through all images
    buffer = io.BytesIO()
    Image.fromarray(pixels.squeeze(-1) if pixels.shape[-1] == 1 else pixels).save(buffer, "PNG", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode()
