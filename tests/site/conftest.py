"""What people look at: pages in a browser, notebooks, the docs, the wheel. Run by `make docs-test`."""

import pytest


def pytest_collection_modifyitems(items):
    for item in items:
        if "/tests/site/" in item.path.as_posix():
            item.add_marker(pytest.mark.docs)
