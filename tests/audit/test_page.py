"""What reports have in common: figures are inside the page and drawn to one scale, and counts say something."""

import base64
import io
import re

import pytest
from PIL import Image

from cutlayer.audit.report.page import PIXELS_AN_INCH, _source, millions
from cutlayer.audit.report.plots import DPI, png, pyplot


def test_letters_are_equally_large_in_all_figures():
    """Drawn as wide as its pixels or the page, a narrow figure had letters twice as large as a wide one."""
    plt = pyplot()
    for inches in (6, 11):
        drawn = png(plt.figure(figsize=(inches, 2)), plt, tight=False)
        wide, inside = re.fullmatch('width="(.*)" src="data:image/png;base64,(.*)"', _source(drawn)).groups()
        assert base64.b64decode(inside) == drawn and int(wide) == inches * PIXELS_AN_INCH
        assert Image.open(io.BytesIO(drawn)).width == inches * DPI


@pytest.mark.parametrize(("macs", "said"), [(293_120, "0.29"), (360, "0.00036"), (12_345_678, "12.35"), (0, "0.00")])
def test_the_work_of_a_small_network_is_no_zero(macs, said):
    assert millions(macs) == said
