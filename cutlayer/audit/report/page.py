"""A template as one page that opens anywhere: its figures are inside it."""

import base64
from collections.abc import Mapping
from typing import Any

from .plots import DPI
from .tidy import without_empty_columns

PIXELS_AN_INCH = 100  # on the screen, for every figure: so letters are equally large in all of them


def page(template: str, pictures: Mapping[str, bytes], **about: Any) -> str:
    """`pictures` are files as they are written, and `images` in a template by their name without .png."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("cutlayer.audit.report", "templates"), autoescape=True, undefined=StrictUndefined
    )
    environment.filters |= {"source": _source, "millions": millions}
    images = {name.removesuffix(".png"): png for name, png in pictures.items()}
    return without_empty_columns(environment.get_template(template).render(images=images, **about))


def millions(count: float) -> str:
    """In millions, two decimals; of small networks two digits, since 0.00 says nothing."""
    return f"{count / 1e6:.2f}" if count >= 1e5 or not count else f"{count / 1e6:.2g}"


def _source(png: bytes) -> Any:
    """The attributes of an img: the picture itself, and how wide it is at its natural size."""
    from markupsafe import Markup

    wide = int.from_bytes(png[16:20], "big") * PIXELS_AN_INCH // DPI  # where a PNG has its width
    return Markup(f'width="{wide}" src="data:image/png;base64,{base64.b64encode(png).decode()}"')
