"""What people look at: pages in a browser, notebooks, the docs, the wheel. Run by `make docs-test`."""

import pytest
from browser import installed

NONE = "no Chromium, so nobody looked at this page: apt install chromium, or put one on the PATH"


def pytest_collection_modifyitems(items):
    for item in items:
        if "/tests/site/" in item.path.as_posix():
            item.add_marker(pytest.mark.docs)
            if item.get_closest_marker("browser") and installed() is None:
                item.add_marker(pytest.mark.skip(reason=NONE))


@pytest.hookimpl(tryfirst=True)
def pytest_terminal_summary(terminalreporter):
    """The last line says so, too: a green run without a browser has looked at no page."""
    left = sum("no Chromium" in str(report.longrepr) for report in terminalreporter.stats.get("skipped", ()))
    if left:
        terminalreporter.write_line(f"{left} tests of pages were left out: {NONE}")
