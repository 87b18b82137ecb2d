"""Pages with a section that a command writes."""

from pathlib import Path

import pytest

from benchmarks.timing.page import BEGIN, END, Page
from tff_agnostic.errors import UserError

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "page.md"


def test_only_the_section_changes_however_often(path):
    path.write_text(f"# Före\n\n{BEGIN}\nold\n\nolder\n{END}\n\nafter\n")
    for text in ("one\n", "    two\n\nthree\n"):
        Page(path).replace_section(text)
        expected = f"# Före\n\n{BEGIN}\n\n{text}\n{END}\n\nafter\n"
        assert path.read_text() == expected


@pytest.mark.parametrize(
    "text", ["", "text\n", f"{BEGIN}\n", f"{END}\n", f"{END}\n{BEGIN}\n", f"a {BEGIN} b {END}\n"]
)
def test_a_page_without_a_section_is_refused_and_left(path, text):
    path.write_text(text)
    for use in (Page(path).check, lambda: Page(path).replace_section("new")):
        with pytest.raises(
            UserError, match=r"^--page: expected the line .* found .*page\.md without"
        ):
            use()
    assert path.read_text() == text


@pytest.mark.parametrize(
    ("content", "reason"), [(None, "No such file or directory"), (b"\xff", "it is not UTF-8 text")]
)
def test_what_cannot_be_read_is_refused(path, content, reason):
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=f"^--page: expected a page, found .*: {reason}$"):
        Page(path).check()


def test_the_documentation_has_a_section():
    Page(ROOT / "docs" / "benchmarks.md").check()
