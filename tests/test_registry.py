"""Registries: failed look-ups list the valid names."""

import pytest

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.registry import Registry

_REGISTRY = Registry("runtime", {"tff": 1, "cohort": 2, "ray": 3})


def test_registry_keeps_the_order():
    assert list(_REGISTRY) == ["tff", "cohort", "ray"]
    assert len(_REGISTRY) == 3
    assert _REGISTRY["cohort"] == 2
    assert dict(_REGISTRY) == {"tff": 1, "cohort": 2, "ray": 3}
    assert "ray" in _REGISTRY
    assert "rays" not in _REGISTRY


def test_unknown_name_lists_the_nearest():
    with pytest.raises(UserError, match=r"unknown runtime 'cohrt': did you mean cohort[?] valid"):
        _REGISTRY["cohrt"]


def test_unknown_name_lists_all():
    with pytest.raises(UserError, match="unknown runtime 'xyzzy': valid names: tff, cohort, ray"):
        _REGISTRY["xyzzy"]


def test_distant_name_is_not_suggested():
    formats = Registry("format", {"csv": 1, "plays": 2})
    with pytest.raises(UserError, match="unknown format 'xls': valid names: csv, plays"):
        formats["xls"]


@pytest.mark.parametrize("name", [None, 3, ("a", "b")])
def test_names_that_are_no_strings_are_unknown(name):
    with pytest.raises(UserError, match="unknown runtime"):
        _REGISTRY[name]
