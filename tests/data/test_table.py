import pytest
import torch

from cutlayer.data import Table
from cutlayer.data.base import MissingData

JOBS = ("clerk", "baker", "smith")


@pytest.fixture
def folder(tmp_path):
    """Sixty people: a number, a constant, a job, a sex, and whether they earn much."""
    lines = ["age,zero,job,sex,income"]
    lines += [f"{20 + n},5,{JOBS[n % 3]},{'MF'[n % 2]},{'>50K' if n % 3 else '<=50K'}" for n in range(60)]
    (tmp_path / "adult.csv").write_text("\n".join(lines))
    return tmp_path


def test_numbers_are_standardised_by_the_training_part_and_texts_become_one_hot(folder):
    loaded = Table("adult.csv", "income", attributes=("sex",)).load(folder)
    train, test = loaded.train, loaded.test
    assert loaded.classes == ("<=50K", ">50K")
    assert (train.x.shape, test.x.shape) == ((54, 5), (6, 5))
    assert train.x.dtype == torch.float32
    age = train.x[:, 0].double()
    assert age.mean().abs() < 1e-6
    assert (age.std(correction=0) - 1).abs() < 1e-6
    # Both parts on one scale: the sixty ages were a year apart, so they are still equally far apart.
    steps = torch.cat([age, test.x[:, 0].double()]).sort().values.diff()
    assert steps.max() - steps.min() < 1e-5
    assert (train.x[:, 1] == 0).all() and (test.x[:, 1] == 0).all()
    # One column a job, in the order of the alphabet; clerks (the second) earn little.
    for samples in (train, test):
        assert (samples.x[:, 2:].sum(1) == 1).all()
        assert torch.equal(samples.x[:, 3] == 1, samples.y == 0)


def test_the_test_part_has_no_say_in_the_scale(folder):
    before = Table("adult.csv", "income", attributes=("age",)).load(folder)
    # Somebody of the test part becomes a thousand years old.
    year = int(before.test.s["age"][0])
    path = folder / "adult.csv"
    path.write_text(path.read_text().replace(f"\n{year},", "\n1000,"))
    (folder / "old.csv").write_text(path.read_text().replace("\n1000,", f"\n{year},"))
    old, new = (Table(name, "income").load(folder) for name in ("old.csv", "adult.csv"))
    assert torch.equal(new.train.x, old.train.x)
    assert new.test.x[0, 0] > 10 > old.test.x[0, 0]


def test_the_target_and_the_attributes_are_not_among_the_features(folder):
    assert Table("adult.csv", "income").load(folder).train.x.shape[1] == 7
    loaded = Table("adult.csv", "job", attributes=("age", "sex", "income")).load(folder)
    assert loaded.train.x.shape[1] == 1
    assert loaded.classes == ("baker", "clerk", "smith")
    assert loaded.train.s["sex"].unique().tolist() == [0, 1]
    # Ages stay in years, and with their rows.
    age = loaded.train.s["age"] - 20
    assert torch.equal(loaded.train.y, torch.tensor([1, 0, 2])[age % 3])


def test_a_path_is_meant_from_here_or_from_the_data_folder(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert len(Table("adult.csv", "income").load().train) == 54
    with pytest.raises(MissingData, match=r"there is no other\.csv"):
        Table("other.csv", "income").load(folder)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a,y\n1,x\n,x\n", r"row 3, column 'a': the value is missing"),
        ("a,y\n1,x\n2,?\n", r"row 3, column 'y': the value is missing \('\?'\)"),
        ("a,z\n1,x\n2,y\n", "has no column 'y'; it has a, z"),
        ("a,y\n1,0.5\n2,0.7\n", "the column 'y' of .* must hold whole numbers, or a text for each class"),
        ("y\na\nb\n", "has no column besides the target and the attributes: nothing to learn from"),
        ("a,y\n1,x\n", "one sample cannot be both"),
        ("a,y\n" + "".join(f"name{n},x\n" for n in range(300)), "has 300 different texts, over 256: it names rows"),
        ("a,y\n1,x\n2\n", "row 3 has 1 fields"),
    ],
)
def test_bad_tables_are_refused(tmp_path, content, words):
    (tmp_path / "a.csv").write_text(content)
    with pytest.raises(ValueError, match=words):
        Table("a.csv", "y").load(tmp_path)


def test_attributes_are_a_tuple_of_names(folder):
    with pytest.raises(ValueError, match="attributes is a tuple of column names"):
        Table("adult.csv", "income", attributes="sex")
    with pytest.raises(ValueError, match="has no column 'race'"):
        Table("adult.csv", "income", attributes=("race",)).load(folder)
