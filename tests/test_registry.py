"""Registries keep their order, and failed look-ups list the valid names."""

import pytest

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.registry import Registry

_REGISTRY = Registry("runtime", {"tff": 1, "cohort": 2, "ray": 3})


def test_registry_keeps_the_order():
    assert list(_REGISTRY) == ["tff", "cohort", "ray"]
    assert (len(_REGISTRY), _REGISTRY["cohort"], "rays" in _REGISTRY) == (3, 2, False)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cohrt", r"'cohrt': did you mean cohort[?] valid"),
        ("xyzzy", "'xyzzy': valid names: tff, cohort, ray"),
        (("a", "b"), ""),
    ],
)
def test_unknown_name_raises_with_valid_names(name, message):
    with pytest.raises(UserError, match=f"^unknown runtime {message}"):
        _REGISTRY[name]
