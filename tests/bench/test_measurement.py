"""Goals of benchmarks: what they are about, and whether they are met."""

import pytest

from cutlayer.bench.measurement import met


@pytest.mark.parametrize(
    ("value", "ratio", "goal", "found"),
    [
        (7, 0.98, ">= 0.98", True),
        (7, 0.97, ">= 0.98", False),
        (7, 1.2, "<= 1.2", True),
        (4.1, 9, "<= 4 %", False),  # with a unit it is about the value
        (4.0, 0, "<= 4 %", True),
        (4.0, 0, "< 4 %", False),
        (9.0, 1.4, "<= 1.5, <= 10 s", True),
        (11.0, 1.4, "<= 1.5, <= 10 s", False),
        (9.0, 1.6, "<= 1.5, <= 10 s", False),
        (0, 0.9, "0.87 to 1.15", True),
        (0, 1.2, "0.87 to 1.15", False),
        (0, 0, "recorded", None),
    ],
)
def test_a_goal_is_about_the_ratio_or_with_a_unit_about_the_value(value, ratio, goal, found):
    assert met(value, ratio, goal) is found


def test_what_is_no_goal_is_refused():
    with pytest.raises(ValueError, match="a goal is"):
        met(1, 1, "fast")
