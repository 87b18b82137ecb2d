"""Tables and figures of the documentation, from page.json."""

import json

import pytest

from tff_agnostic.base.report_fields import Unit
from tff_agnostic.program.reports.document import Figure, Number, Page, Section, Table, to_json
from tools.docs.report_blocks import BlockError, filled, main

_PAGE = """\
# Adult

<!-- report: accuracy -->
| old |
<!-- report ends -->

Between them.

<!-- report: loss of the worst domain -->
<!-- report ends -->
"""


def _report():
    best = Number(0.8131, Unit.SHARE, 3, 0.005, mark="best")
    table = Table("accuracy, %", ["", "a|b"], [["FedAvg", best], ["other", Number(None)]], ["Why."])
    figure = Figure("loss of the worst domain over rounds", lambda: None)
    page = Page("Adult", "", [Section("Results", [table, figure])])
    return to_json(page, lambda drawn: f"<svg id='{drawn.caption}'/>")


def test_blocks_become_table_and_figure(tmp_path):
    (tmp_path / "adult.md").write_text(_PAGE)
    (tmp_path / "page.json").write_text(json.dumps(_report()))
    assert main([str(tmp_path / "adult.md"), str(tmp_path / "page.json")]) == 0
    text = (tmp_path / "adult.md").read_text()
    assert text.startswith(
        "# Adult\n\n<!-- report: accuracy -->\n\n"
        "|        | a\\|b           |\n"
        "|--------|----------------|\n"
        "| FedAvg | **81.3 (0.5)** |\n"
        "| other  | -              |\n"
        "\nWhy.\n\n<!-- report ends -->\n\nBetween them.\n"
    )
    name = "adult_loss_of_the_worst_domain.svg"
    assert f"![loss of the worst domain over rounds](images/{name})" in text
    assert (tmp_path / "images" / name).read_text().startswith('<svg style="background:#fff" id=')
    # Another report replaces the same blocks.
    again, _ = filled(text, _report(), "adult")
    assert again == text


def test_unknown_caption_raises_and_keeps_the_page(tmp_path, capsys):
    with pytest.raises(BlockError, match="expected a table or figure 'error' in the report, found"):
        filled("<!-- report: error -->\n<!-- report ends -->\n", _report(), "x")
    (tmp_path / "page.json").write_text(json.dumps(_report()))
    (tmp_path / "plain.md").write_text("# Plain\n")
    assert main([str(tmp_path / "plain.md"), str(tmp_path / "page.json")]) == 2
    assert (tmp_path / "plain.md").read_text() == "# Plain\n"
    assert capsys.readouterr().err.count("\n") == 1
