"""Writes EVIDENCE.md and its figure from the committed JSON: python tools/evidence.py

With the word bands it measures the three small claims again and writes the band that tests hold them to.
"""

import sys
from pathlib import Path

from cutlayer.audit.claims import page, small

ROOT = Path(__file__).parents[1]

if __name__ == "__main__":
    if sys.argv[1:] == ["bands"]:
        small.write(ROOT)
    for one in page.write(ROOT):
        print(f"{one.experiment.name}: {one.finding.verdict}")
