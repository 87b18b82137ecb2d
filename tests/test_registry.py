"""Registries keep their order, and failed look-ups list the valid names."""

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


def test_distant_name_is_not_suggested():
    formats = Registry("format", {"csv": 1, "plays": 2})
    with pytest.raises(UserError, match="unknown format 'xls': valid names: csv, plays"):
        formats["xls"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cohrt", r"'cohrt': did you mean cohort[?] valid"),
        ("xyzzy", "'xyzzy': valid names: tff, cohort, ray"),
        *((name, "") for name in (None, 3, ("a", "b"))),
    ],
)
def test_unknown_name_raises_with_valid_names(name, message):
    with pytest.raises(UserError, match=f"^unknown runtime {message}"):
        _REGISTRY[name]
