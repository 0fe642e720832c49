"""What a page looks like, light and dark, for the docs: python tools/screenshots.py REPORT.html docs/report

Writes docs/report.png and docs/report-dark.png: the first screen of the page, 1120 x 900, in headless Chromium.
"""

import sys
from pathlib import Path

from browser import Browser
from PIL import Image

WIDTH, HEIGHT = 1120, 900


def shoot(page: Path, target: str) -> list[Path]:
    """A browser each: what one look stores is not seen by the other."""
    made = []
    for dark in (False, True):
        with Browser() as browser:
            made.append(Path(f"{target}{'-dark' if dark else ''}.png"))
            browser.open(page, WIDTH, dark, HEIGHT).screenshot(made[-1], whole=False)
        Image.open(made[-1]).quantize(64).save(made[-1], optimize=True)  # a third of the bytes
    return made


if __name__ == "__main__":
    print(*shoot(Path(sys.argv[1]), sys.argv[2]), sep="\n")
