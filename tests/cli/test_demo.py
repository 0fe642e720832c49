"""What `cutlayer demo` must show, run as a user runs it."""

import json
import subprocess
import sys

import pytest

from cutlayer.cli.demo import demo_guards


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo") / "out"
    done = subprocess.run(
        [sys.executable, "-m", "cutlayer.cli", "demo", "--out", str(out), "--json", "--threads", "1"],
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stderr
    return out, {row["guard"]: row for row in json.loads(done.stdout)["rows"]}


def test_the_unguarded_cut_is_reconstructed(shown):
    assert shown[1]["none"]["ssim"] >= 0.85 and shown[1]["none"]["valid"]


def test_lightsplit_keeps_its_accuracy_to_five_points(shown):
    rows = shown[1]
    assert rows["LightSplit(ratio=8)"]["accuracy"] >= rows["none"]["accuracy"] - 0.05
    assert rows["LightSplit(ratio=8)"]["bytes_up"] < rows["none"]["bytes_up"] / 3


def test_the_report_says_how_much_the_decoder_still_recovers(shown):
    out, rows = shown
    page = (out / "report.html").read_text()
    assert set(rows) == {"none", *map(repr, demo_guards())}
    for row in rows.values():
        assert f"{row['ssim']:.3f}" in page
    assert "of the leak is left" in page
