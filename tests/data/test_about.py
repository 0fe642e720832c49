"""What `cutlayer list data` and `cutlayer data check` can say of each source before anything is read."""

import json

import pytest

from cutlayer.core.spec import names
from cutlayer.data.base import About

KINDS = names("data")
OWN = {"Faces", "ImageFolder", "Npz", "Unlabelled", "Table", "Texts"}  # what they hold is the user's
SHIPPED = {"Digits", "Fashion", "Scenes"}  # comes with a package: no file to look for


@pytest.mark.parametrize("name", KINDS)
def test_every_source_says_what_it_is(name):
    about = KINDS[name].about
    assert isinstance(about, About)
    assert about.name and about.licence and about.origin
    json.dumps(about.as_dict())
    hash(about)


@pytest.mark.parametrize("name", KINDS)
def test_a_named_set_says_its_shape_sizes_and_files(name):
    about = KINDS[name].about
    known = (about.shape is not None, about.classes is not None, bool(about.sizes))
    assert known == ((False,) * 3 if name in OWN else (True,) * 3)
    assert bool(about.forms) == (name not in OWN | SHIPPED)


@pytest.mark.parametrize("name", sorted(set(KINDS) - OWN))
def test_the_sizes_a_set_is_checked_against_are_those_its_first_line_names(name):
    train, test = KINDS[name].about.sizes[0]
    assert f"{train:,} + {test:,}" in KINDS[name].__doc__.splitlines()[0]


@pytest.mark.parametrize("name", sorted(set(KINDS) - OWN - SHIPPED))
def test_files_are_below_the_data_folder(name):
    about = KINDS[name].about
    for place in (place for form in about.forms for place in form):
        assert not place.startswith(("/", "."))
        assert ".." not in place


def test_published_sums_belong_to_files_of_the_set():
    for kind in KINDS.values():
        files = {place.rpartition("/")[2] for form in kind.about.forms for place in form}
        assert kind.about.md5.keys() <= files
        assert all(len(md5) == 32 for md5 in kind.about.md5.values())


def test_places_are_the_same_file_in_every_form():
    about = About("a", "b", forms=(("x/1", "x/2"), ("y/1", "y/2")))
    assert about.places(0) == ("x/1", "y/1")
    assert about.places(1) == ("x/2", "y/2")
