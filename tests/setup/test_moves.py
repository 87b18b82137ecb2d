"""The map of moves fits the tree, and what is moved by a map means what it meant."""

import textwrap
from pathlib import Path

from tools.moves import check, layout
from tools.moves.code import Mover
from tools.moves.names import Tree

ROOT = Path(__file__).absolute().parents[2]

# Files of a package of two modules that become one, and what uses them.
FILES = {
    "tff_agnostic/low/a.py": '''
        """What a is."""

        import math

        LIMIT = 3


        def read(x: "Kind") -> float:
            return math.sqrt(x.value) + LIMIT


        class Kind:
            value = 1.0
        ''',
    "tff_agnostic/low/b.py": '''
        """What b is.

        With a reason.
        """

        from tff_agnostic.low import a
        from tff_agnostic.low.a import Kind

        # Twice as much.
        TWICE = a.LIMIT * 2


        def read(kind: Kind) -> str:
            LIMIT = a.read(kind)
            return f"{LIMIT} of {a.read(kind)}, {TWICE}"


        class More(Kind):
            def far(self):
                from tff_agnostic.low.a import read

                return read(self)
        ''',
    "tff_agnostic/high.py": '''
        """Uses both; see low/a.py."""

        from tff_agnostic.low import a, b


        def all_of(one=a.Kind, two=b):
            return one, two.read, a.read, b.read, "tff_agnostic.low.b.read"
        ''',
    "tests/test_high.py": """
        from tff_agnostic.low import b


        def test_it(monkeypatch):
            monkeypatch.setattr(b, "read", str)
            monkeypatch.setattr("tff_agnostic.low.a.LIMIT", 4)
        """,
}
MAP = """
[modules."tff_agnostic/mid/both.py"]
tells = "Both."
from = ["tff_agnostic/low/b.py", "tff_agnostic/low/a.py"]
[modules."tff_agnostic/high.py"]
from = ["tff_agnostic/high.py"]
[definitions]
"tff_agnostic/low/a.py:LIMIT" = "tff_agnostic/high.py"
[renames]
"tff_agnostic/low/b.py:read" = "read_b"
[files]
[tests]
[order]
stays = ["tff_agnostic"]
folders = [["tff_agnostic"], ["tff_agnostic/mid"]]
"""


def made_up(folder, content=MAP):
    for path, text in FILES.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(textwrap.dedent(text).lstrip())
    (folder / "map.toml").write_text(content)
    moves = layout.load(folder / "map.toml")
    tree = Tree(folder, FILES)
    return Mover(tree, moves), tree, moves


def test_every_module_has_a_place():
    moves = layout.load()
    before = {path for path in layout.tracked(ROOT, ".py") if path.split("/")[0] in layout.PACKAGES}
    # Once the map is applied, there are its places.
    if before != set(moves.places):
        assert not layout.unknown(moves, before)
        assert not {old for place in moves.places.values() for old in place.sources} - before


def test_what_people_know_by_its_place_stays():
    stays = layout.load().stays
    assert {"tff_agnostic", "tff_agnostic/computations", "tff_agnostic/tasks"} <= set(stays)
    assert {"binaries", "tests"} <= set(stays)
    for path in [*stays, "BUILD", "WORKSPACE"]:
        assert (ROOT / path).exists(), path


def test_two_modules_become_one(tmp_path):
    mover, _, moves = made_up(tmp_path, MAP.replace('"tff_agnostic/low/a.py:LIMIT" = ', "#"))
    text = mover.joined_module(moves.places["tff_agnostic/mid/both.py"])
    # `LIMIT` of a is what a function of b has of its own, where it does not use a's.
    assert not mover.problems
    namespace = {}
    exec(
        compile(text.replace("from tff_agnostic.mid.both import read", ""), "both", "exec"),
        namespace,
    )
    assert namespace["read_b"](namespace["Kind"]()) == "4.0 of 4.0, 6"
    assert namespace["More"]().far() == 4.0
    assert namespace["__doc__"] == "Both.\n\nWhat b is.\n\nWith a reason.\n"
    assert "# Twice as much.\nTWICE = LIMIT * 2" in text


def test_names_that_meet_are_problems(tmp_path):
    mover, _, moves = made_up(tmp_path, MAP.replace('"tff_agnostic/low/b.py:read"', '"x:y"'))
    mover.joined_module(moves.places["tff_agnostic/mid/both.py"])
    (problem,) = mover.problems
    assert "read is in tff_agnostic/low/b.py and in tff_agnostic/low/a.py" in problem


def test_uses_from_outside_follow(tmp_path):
    mover, tree, _ = made_up(tmp_path, MAP.replace('"tff_agnostic/low/a.py:LIMIT" = ', "#"))
    high = mover.rewritten(tree.modules["tff_agnostic/high.py"])
    assert high.startswith('"""Uses both; see mid/both.py."""')
    assert "import both" in high and " a" not in high.split("\n")[2]
    assert 'two.read, both.read, both.read_b, "tff_agnostic.mid.both.read_b"' in high
    test = mover.rewritten(tree.modules["tests/test_high.py"])
    assert 'setattr(both, "read_b", str)' in test
    assert '"tff_agnostic.mid.both.LIMIT"' in test


def test_a_circle_and_an_arrow_that_points_up_are_problems(tmp_path):
    found = "\n".join(check.problems(*made_up(tmp_path)))
    assert "a circle of imports: tff_agnostic/high.py, tff_agnostic/mid/both.py" in found
    assert "tff_agnostic imports tff_agnostic/mid, which is not below it" in found
