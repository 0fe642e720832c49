"""The notebooks in examples/ run from the first cell to the last, each in an empty folder; their asserts hold."""

from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="pip install 'cutlayer[docs]'")
EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.ipynb"))
TABLES = {"1-first-audit": "leak left", "2-own-model-and-data": "test accuracy", "4-write-a-guard": "SignBit"}


def test_there_are_four():
    assert len(EXAMPLES) == 4


def _case(path):
    """Those that audit take half a minute each: `make docs-test` runs them, CI the others."""
    return pytest.param(path, id=path.stem, marks=[pytest.mark.long] if path.stem[0] in "14" else [])


@pytest.mark.parametrize("path", map(_case, EXAMPLES))
def test_a_notebook_runs(path, tmp_path):
    from nbclient import NotebookClient

    read = nbformat.read(path, as_version=4)
    assert all(not cell.get("outputs") for cell in read.cells), "results are made when it runs, none is kept"
    NotebookClient(read, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [output for cell in read.cells for output in cell.get("outputs", ())]
    html = " ".join(output["data"].get("text/html", "") for output in shown if "data" in output)
    assert shown and TABLES.get(path.stem, "") in html, "results render as tables"
