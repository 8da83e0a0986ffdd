"""`frozen` against `dataclasses.dataclass(frozen=True)`, which it stands for."""

import dataclasses
import pickle

import pytest

from dnnarray._records import changed, frozen


@frozen
class Point:
    """Two numbers and a note that does not count."""

    x: int
    y: int = 2
    note: str = dataclasses.field(default="", repr=False, compare=False)


@frozen
class Solid(Point):
    """One more."""

    z: int = 3


@frozen(kw_only=True)
class Named:
    """Only by name."""

    a: int
    b: int = 1


@frozen(eq=False)
class Own:
    """Itself and nothing else."""

    a: int


class Plain(Point):
    """Not decorated."""


def _twin(cls):
    """The same fields by the standard library."""
    return dataclasses.make_dataclass(cls.__name__, [(f.name, f.type, f) for f in dataclasses.fields(cls)], frozen=True)


@pytest.mark.parametrize(
    ("args", "named"), [((1,), {}), ((1, 5), {}), ((1,), {"y": 7}), ((), {"x": 1, "y": 3, "note": "n"})]
)
def test_takes_and_shows_what_a_dataclass_does(args, named):
    ours, theirs = Point(*args, **named), _twin(Point)(*args, **named)
    assert repr(ours) == repr(theirs)
    assert dataclasses.asdict(ours) == dataclasses.asdict(theirs)
    assert hash(ours) == hash(theirs)


@pytest.mark.parametrize(
    ("args", "named"), [((), {}), ((1, 2, "n", 4), {}), ((1,), {"x": 1}), ((1,), {"q": 1}), ((), {"y": 1})]
)
def test_refuses_what_a_dataclass_refuses(args, named):
    for cls in (Point, _twin(Point)):
        with pytest.raises(TypeError):
            cls(*args, **named)


def test_equality_is_of_the_same_class_and_of_what_is_compared():
    assert Point(1, note="a") == Point(1, note="b")
    assert Point(1) != Point(2)
    assert Solid(1) != Point(1)
    assert Plain(1) == Plain(1)
    assert Plain(1) != Point(1)
    assert Own(1) != Own(1)
    assert len({Solid(1), Solid(1), Solid(2), Point(1)}) == 3


def test_inheritance_and_keyword_only_fields():
    assert repr(Solid(1, 2, "", 9)) == "Solid(x=1, y=2, z=9)"
    assert Named(a=3).b == 1
    with pytest.raises(TypeError, match="positional"):
        Named(3)


def test_nothing_can_be_assigned_or_deleted():
    point = Point(1)
    for act in (lambda: setattr(point, "x", 2), lambda: setattr(point, "new", 2), lambda: delattr(point, "x")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            act()
    assert point.x == 1


def test_replaced_and_pickled():
    assert dataclasses.replace(Solid(1), z=5) == Solid(1, 2, "", 5)
    assert pickle.loads(pickle.dumps(Solid(4))) == Solid(4)


def test_a_changed_record_is_what_the_standard_library_makes():
    for record, values in ((Solid(1, 2, "n", 4), {"y": 7}), (Named(a=3), {"b": 2}), (Point(1), {})):
        assert vars(changed(record, **values)) == vars(dataclasses.replace(record, **values))
    with pytest.raises(TypeError):
        changed(Point(1), q=2)
