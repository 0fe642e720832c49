"""The docs as a site: it builds without warnings, its generated page is fresh, and pages can be read in a browser."""

import subprocess
import sys
import time
from pathlib import Path

import catalogue
import pytest
from browser import Browser

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def test_the_table_of_guards_and_attacks_is_what_its_sources_say():
    assert catalogue.PAGE.read_text() == catalogue.page(), "`make docs` writes it anew"


def test_the_api_page_has_docstrings(site):
    page = (site / "api" / "index.html").read_text()
    assert "cutlayer.training.plan.plan.Plan" in page and "Every guard against every attack" in page


@pytest.mark.browser
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1400, 420])
def test_pages_fit_and_can_be_read(site, width, dark):
    with Browser() as browser:
        for name in ("tutorial", "catalogue", "guards", "first-hour"):
            page = browser.open(site / name / "index.html", width, dark)
            scheme, waited = (
                "slate" if dark else "default",
                0,
            )  # the theme's script sets it soon after the page is there
            while page.run("document.body.getAttribute('data-md-color-scheme')") != scheme and waited < 50:
                time.sleep(0.1)
                waited += 1
            assert waited < 50, "the site follows the system's look"
            # What belongs to the theme (header, folded menus) is the theme's; the page itself is ours.
            page.run(
                "document.querySelectorAll('header, .md-sidebar, footer, .md-search').forEach(one => one.remove())"
            )
            assert page.problems() == [], name
