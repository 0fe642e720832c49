"""A node that Ray starts here."""

import pytest

from cutlayer.engines.cluster import _start_here


class Busy:
    """Ray on a machine that is busy when it starts."""

    def __init__(self, *answers):
        self.answers, self.calls = list(answers), []

    def init(self, *place, **options):
        self.calls.append("init")
        if (answer := self.answers.pop(0)) is not None:
            raise Exception(answer)

    def shutdown(self):
        self.calls.append("shutdown")


def test_a_node_that_is_late_gets_another_start_and_anything_else_is_an_error():
    late = "The current node timed out during startup."
    _start_here(ray := Busy(late, None))
    assert ray.calls == ["init", "shutdown", "init"]
    for answers in ((late, late), ("no room",)):
        with pytest.raises(Exception, match=answers[-1]):
            _start_here(Busy(*answers))
