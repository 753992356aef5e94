"""A request that differs in any field of the reuse key lies in another partition."""

import dataclasses
import math
import typing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache_store.partition import PartitionKey

texts = st.text(max_size=20)
VALUES: dict[object, st.SearchStrategy[Any]] = {
    str: texts,
    float: st.floats(allow_nan=False, allow_infinity=False),
    int: st.integers(0, 10_000),
    tuple[str, ...]: st.lists(texts, max_size=3).map(tuple),
}
FIELDS = {name: VALUES[kind] for name, kind in typing.get_type_hints(PartitionKey).items()}
keys = st.fixed_dictionaries(FIELDS).map(lambda fields: PartitionKey(**fields))


@settings(max_examples=30)
@given(key=keys, data=st.data())
@pytest.mark.parametrize("name", FIELDS)
def test_every_field_counts(name: str, key: PartitionKey, data: st.DataObject) -> None:
    value = data.draw(FIELDS[name])
    other = dataclasses.replace(key, **{name: value})
    same = sorted(value) == sorted(key.loras) if name == "loras" else value == getattr(key, name)
    assert (other.digest() == key.digest()) == same


@given(keys)
def test_the_digest_is_stable(key: PartitionKey) -> None:
    again = dataclasses.replace(key, loras=key.loras[::-1], shift=key.shift + 0, guidance=key.guidance + 0)
    assert again.digest() == key.digest()


@given(key=keys, whole=st.integers(-100, 100))
def test_an_int_is_the_same_setting_as_a_float(key: PartitionKey, whole: int) -> None:
    assert dataclasses.replace(key, guidance=whole).digest() == dataclasses.replace(key, guidance=float(whole)).digest()


@given(keys)
def test_not_a_number_is_refused(key: PartitionKey) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        dataclasses.replace(key, guidance=math.nan).digest()
