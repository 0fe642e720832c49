"""The wheel in a clean environment, outside the repository: it brings its data and recipes, and the demo runs."""

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The command `cutlayer` of a fresh environment. Torch and what else the package asks for come from this one by
    a path file, so that nothing is downloaded; the package itself comes from the wheel alone."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "venv", with_pip=False)
    python = folder / "venv" / "bin" / "python"
    site = next((folder / "venv" / "lib").glob("python3*")) / "site-packages"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        str(wheel),
    ]
    subprocess.run(pip, check=True, capture_output=True)
    theirs = [path for path in sys.path if path.endswith("site-packages")]
    # A plain path, read after the wheel's own files: .pth files of the other environment are not followed.
    (site / "zz-dependencies.pth").write_text("\n".join(theirs) + "\n")
    return folder / "venv" / "bin" / "cutlayer"


def run(program, *words, cwd):
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    return subprocess.run([str(program), *words], cwd=cwd, env=clean, capture_output=True, text=True, timeout=1200)


def test_it_is_the_wheel_and_not_the_checkout(installed, tmp_path):
    where = [installed.parent / "python", "-c", "import cutlayer; print(cutlayer.__file__)"]
    told = run(*where, cwd=tmp_path)
    assert str(installed.parents[1]) in told.stdout, told.stderr
    assert run(installed, "--version", cwd=tmp_path).stdout.startswith("cutlayer ")


@pytest.mark.long
def test_the_demo_runs_where_nothing_else_is(installed, tmp_path):
    done = run(installed, "demo", "--out", "shown", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "shown" / "report.html").stat().st_size > 100_000


def test_a_recipe_is_copied_and_trains(installed, tmp_path):
    assert run(installed, "new", "fashion", "mine.py", cwd=tmp_path).returncode == 0
    done = run(installed, "train", "mine.py:quick", "--threads", "1", "--out", "a", cwd=tmp_path)
    assert done.returncode == 0 and "test accuracy" in done.stderr, done.stderr
