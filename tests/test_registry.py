"""Registries: look-ups that say what the valid names are."""

import pytest

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.registry import Registry

_REGISTRY = Registry("runtime", {"tff": 1, "cohort": 2, "ray": 3})


def test_it_is_a_mapping_in_the_order_of_its_entries():
    assert list(_REGISTRY) == ["tff", "cohort", "ray"]
    assert len(_REGISTRY) == 3
    assert _REGISTRY["cohort"] == 2
    assert dict(_REGISTRY) == {"tff": 1, "cohort": 2, "ray": 3}
    assert "ray" in _REGISTRY
    assert "rays" not in _REGISTRY


def test_an_unknown_name_is_answered_with_the_nearest_ones():
    with pytest.raises(UserError, match=r"unknown runtime 'cohrt': did you mean cohort[?] valid"):
        _REGISTRY["cohrt"]


def test_a_name_like_no_other_is_answered_with_all_names():
    with pytest.raises(UserError, match="unknown runtime 'xyzzy': valid names: tff, cohort, ray"):
        _REGISTRY["xyzzy"]


def test_a_name_with_half_of_the_letters_of_another_is_not_meant_for_it():
    formats = Registry("format", {"csv": 1, "plays": 2})
    with pytest.raises(UserError, match="unknown format 'xls': valid names: csv, plays"):
        formats["xls"]


def test_the_error_is_one_line_and_a_value_error():
    with pytest.raises(ValueError) as error:
        _REGISTRY["cohrt"]
    assert "\n" not in str(error.value)


def test_later_changes_of_the_mapping_it_was_made_from_do_not_reach_it():
    entries = {"a": 1}
    registry = Registry("letter", entries)
    entries["b"] = 2
    assert list(registry) == ["a"]


@pytest.mark.parametrize("name", [None, 3, ("a", "b")])
def test_names_that_are_no_strings_are_unknown(name):
    with pytest.raises(UserError, match="unknown runtime"):
        _REGISTRY[name]


def test_get_answers_an_unknown_name_with_the_default():
    assert _REGISTRY.get("cohort") is not None
    assert _REGISTRY.get("cohrt") is None
    assert _REGISTRY.get("cohrt", 3) == 3
