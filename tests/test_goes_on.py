"""A campaign that was killed goes on where it was, and begins anew when the package has changed."""

import pytest
from progress import GoingOn, Passed, Progress


def test_parts_that_are_done_are_not_done_again(tmp_path):
    made = []

    def work(part):
        if part == "c" and len(made) < 3:
            made.append("killed")
            raise KeyboardInterrupt
        made.append(part)
        return {"part": part}

    with pytest.raises(KeyboardInterrupt):
        list(Progress("some", tmp_path).parts("abc", work))
    assert list(Progress("some", tmp_path).parts("abc", work)) == [(part, {"part": part}) for part in "abc"]
    assert made == ["a", "b", "killed", "c"]


def test_half_a_line_is_none(tmp_path):
    progress = Progress("some", tmp_path)
    list(progress.parts("a", str.upper))
    (path,) = tmp_path.iterdir()
    with path.open("ab") as file:
        file.write(b'["b", {"fig')
    assert list(Progress("some", tmp_path).parts("ab", str.upper)) == [("a", "A"), ("b", "B")]
    assert Progress("some", tmp_path).done == {"a": "A", "b": "B"}


def test_another_package_begins_anew(tmp_path, monkeypatch):
    list(Progress("some", tmp_path).parts("a", str.upper))
    Passed(tmp_path).add("a test")
    monkeypatch.setattr("progress.package", lambda: "another")
    assert Progress("some", tmp_path).done == {} and Passed(tmp_path).names() == set()


def test_what_has_passed_is_left_out(pytester_like, tmp_path):
    assert pytester_like(tmp_path) == (2, 1)  # two are run, one of them fails
    assert pytester_like(tmp_path) == (1, 1)  # that one is run again


@pytest.fixture
def pytester_like():
    """Run a file of two campaign tests by the plug-in; (run, failed)."""

    class Counting:
        def __init__(self):
            self.ran = self.failed = 0

        def pytest_runtest_logreport(self, report):
            self.ran += report.when == "call"
            self.failed += report.when == "call" and report.failed

    def run(folder):
        file = folder / "test_two.py"
        file.write_text(
            "import pytest\npytestmark = pytest.mark.campaign\ndef test_good(): pass\ndef test_bad(): assert False\n"
        )
        counting = Counting()
        words = ["-q", "-p", "no:cacheprovider", "-m", "campaign", "-c", str(folder / "none.ini"), str(file)]
        (folder / "none.ini").write_text("[pytest]\nmarkers = campaign\n")
        pytest.main([*words, "--rootdir", str(folder)], plugins=[counting, GoingOn(Passed(folder))])
        return counting.ran, counting.failed

    return run
