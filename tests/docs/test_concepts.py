"""The page of concepts, and a newcomer's questions with the pages that answer them."""

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
WORDS = 900


def test_concepts_page_is_short():
    assert len((DOCS / "concepts.md").read_text().split()) <= WORDS


def test_questions_of_newcomers_have_answers():
    table = (DOCS.parent / "tests" / "docs" / "questions.md").read_text()
    questions = re.findall(r"^\| (.*\?) \| ([\w/]+\.md) \| (.*) \|$", table, re.MULTILINE)
    assert len({question for question, _, _ in questions}) == 20
    for question, page, answer in questions:
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", (DOCS.parent / page).read_text())
        assert answer in " ".join(re.sub(r"[*`]", "", text).split()), question
