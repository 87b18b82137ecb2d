"""Breaches of the prose rules may only become fewer."""

import tomllib

import pytest

from tests.docs import prose

_MODULE = '''
"""A module.

Of which nobody was told.
"""
_OF_X = 1  # not read


class Run:
    """A run.

    Attributes:
        seed: What it starts from.
    """


def test_what_is_had(of_run):
    # By the way
    raise ValueError(f"{of_run}: expected one, found another")
'''


@pytest.mark.slow
def test_breaches_do_not_increase():
    allowed = tomllib.loads(prose.COUNTS.read_text())
    more = [
        f"{folder}: {rule}: at most {allowed.get(folder, {}).get(rule, 0)}, found {number}"
        for folder, numbers in prose.counts().items()
        for rule, number in numbers.items()
        if number > allowed.get(folder, {}).get(rule, 0)
    ]
    assert not more, "\n".join(more)


def test_rules_find_breaches_in_every_kind():
    broken = {
        (name, text.line)
        for text in prose.texts(_MODULE)
        for name, rule in prose.RULES.items()
        if text.kind in rule.kinds and rule.pattern.search(text.text)
    }
    assert broken == {
        ("of which", 1),
        ("fragment of", 1),
        ("whoever", 1),
        ("told", 1),
        ("name of", 6),
        ("what", 9),
        ("test what", 17),
        ("had", 17),
        ("name of", 17),
        ("fragment by", 18),
        ("vague found", 19),
    }
