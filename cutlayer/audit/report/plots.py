"""Figures as files: one look for all of them, drawn without a screen."""

import io
from typing import Any

INK, SOFT = "#1d2733", "#8a97a6"
DPI = 150


def pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams |= {
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": SOFT,
        "font.size": 10,
        "svg.hashsalt": "cutlayer",  # the same figure is the same file
    }
    return plt


def png(figure: Any, plt: Any, tight: bool = True) -> bytes:
    drawn = _drawn(figure, "png", tight)
    plt.close(figure)
    return drawn


def png_and_svg(figure: Any, plt: Any) -> tuple[bytes, bytes]:
    drawn = _drawn(figure, "png", True), _drawn(figure, "svg", True)
    plt.close(figure)
    return drawn


def _drawn(figure: Any, format: str, tight: bool) -> bytes:
    buffer = io.BytesIO()
    about = {"Date": None} if format == "svg" else None
    figure.savefig(buffer, format=format, dpi=DPI, bbox_inches="tight" if tight else None, metadata=about)
    return buffer.getvalue()


def heat(axes: Any, rows: Any, label: str, colours: str, *, high: float | None = None, write: bool = False) -> None:
    """A table of numbers from 0 up as colours, with its scale beside it."""
    image = axes.imshow(rows, cmap=colours, aspect="auto", vmin=0.0, vmax=high, interpolation="nearest")
    axes.spines[:].set_visible(False)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.yaxis.get_major_locator().set_params(integer=True)
    most = high if high is not None else max((value for row in rows for value in row), default=0)
    for place, row in enumerate(rows if write else ()):
        for column, value in enumerate(row):
            if value:
                shade = "white" if value > 0.6 * most else INK
                axes.text(column, place, f"{value:g}", ha="center", va="center", size=6.5, color=shade)
    bar = axes.figure.colorbar(image, ax=axes, pad=0.02, aspect=30)
    bar.outline.set_visible(False)
    bar.set_label(label)
