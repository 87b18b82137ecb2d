"""The figure of private results has the points of the page's table."""

from pathlib import Path

from benchmarks.privacy_figure import main, points_of

_PAGE = Path(__file__).parents[2] / "docs" / "results" / "privacy.md"
_TABLE = """
| FedAvg | no noise | 0.00 | 83.9 (0.2) | 88.5 (0.1) |  |  |  |  |  |  |
|  | 16 | 0.36 | 84.1 (0.1) | 88.6 (0.1) |  |  |  | 0.95 | 83.8 (0.4) | 88.4 (0.2) |
"""


def test_points_are_the_rows_with_numbers():
    assert points_of(_TABLE) == [
        ("FedAvg", "central", "no noise", ((83.9, 0.2), (88.5, 0.1))),
        ("FedAvg", "central", "16", ((84.1, 0.1), (88.6, 0.1))),
        ("FedAvg", "tree", "16", ((83.8, 0.4), (88.4, 0.2))),
    ]


def test_figure_of_the_page_is_written(tmp_path):
    main([str(_PAGE), str(tmp_path / "figure.png")])
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
