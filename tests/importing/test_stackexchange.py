"""Imports of Stack Exchange dumps with hand-made posts, and invalid dumps."""

import gzip
import tracemalloc
from html import escape
from pathlib import Path

import pytest

from tests.support import golden
from tests.support.imports import read, refused
from tff_agnostic.importing.options import ImportOptions
from tff_agnostic.importing.source import ReadLog
from tff_agnostic.importing.stackexchange import FORMAT

_HEAD = '\ufeff<?xml version="1.0" encoding="utf-8"?>\n<posts>\n'


def _row(**attributes: object) -> str:
    values = {"Id": 1, "PostTypeId": 1, "OwnerUserId": 7, "Body": "<p>Hi.</p>", **attributes}
    texts = (f'{name}="{escape(str(v))}"' for name, v in values.items() if v is not None)
    return f"  <row {' '.join(texts)} />\n"


def _dump(folder: Path, *rows: str, site: str = "beer") -> Path:
    path = folder / site / "Posts.xml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(_HEAD + "".join(rows) + "</posts>\n", encoding="utf-8")
    return path


def test_posts_become_sentences(tmp_path):
    path = _dump(
        tmp_path,
        _row(
            Body="<p>Why? <code>x</code> It's odd.</p>",
            CreationDate="2014-01-21T20:26:05.383",
            Score=18,
            Title="What is <it>?",
            Tags="<hops><ale>",
        ),
        _row(Id=2, PostTypeId=2, ParentId=1, OwnerUserId=9, Body="<p>Because</p>", Score=-2),
    )
    examples, log = read("stackexchange", path)
    first, second, answer = (example.record for example in examples)
    assert (first.client, first.domain, first.split) == ("7", "question", None)
    assert first.features == {
        "tokens": "why ?",
        "creation_date": "2014-01-21 20:26:05.383 UTC",
        "score": 18,
        "tags": "hops|ale",
        "title": "What is <it>?",
        "type": "question",
    }
    assert second.features == {**first.features, "tokens": "it's odd ."}
    assert (answer.client, answer.domain) == ("9", "answer")
    absent = {"creation_date": "", "tags": "", "title": ""}
    assert answer.features == {"tokens": "because", "score": -2, "type": "answer", **absent}
    assert [example.place for example in examples] == ["1#0", "1#1", "2#0"]
    assert {example.group for example in examples} == {"1"}
    assert (log.num_records, log.skipped) == (2, {})


_MARKED = (
    "<p>Let $x_1 = 2$ and $$\\frac{1}{2}.$$ Call <code>f(x)</code>, it costs $5 or $10. "
    "It's \\(a\\)!</p><pre><code>y = 3</code></pre><p>So \\begin{align}a\\\\b\\end{align} is.</p>"
)


@golden.values
def test_markup_option_controls_code_and_formulas(tmp_path, case):
    options = {"markup": case} if case else {}
    examples, _ = read("stackexchange", _dump(tmp_path, _row(Body=_MARKED)), **options)
    return str([example.record.features["tokens"] for example in examples])


def test_domain_option_selects_tag_site_or_type(tmp_path):
    beer = [
        # An answer inherits its question's tags, even if the question has no owner.
        _row(Id=5, Tags="|ale|", OwnerUserId=None),
        _row(Id=6, PostTypeId=2, ParentId=5),
        # Posts need not be sorted by id.
        _row(Id=1, Tags="<hops><ale>"),
        _row(Id=2, PostTypeId=2, ParentId=1),
        _row(Id=8),
        _row(Id=9, PostTypeId=2, ParentId=99),
        _row(Id=10, PostTypeId=2),
    ]
    _dump(tmp_path, *beer)
    _dump(tmp_path, _row(Tags="<cnn>"), site="ai")

    def domains(**options):
        examples, log = read("stackexchange", tmp_path, **options)
        return {e.place.partition("#")[0]: e.record.domain for e in examples}, log.skipped

    by_tag = {"ai/1": "cnn", "beer/1": "hops", "beer/2": "hops", "beer/6": "ale"}
    result, skipped = domains(domain="tag")
    assert result == by_tag
    assert skipped == {"post without owner": 1, "post without tag": 3}
    # Tags in domain_names precede the post's first tag.
    assert domains(domain="tag", domain_names=("ale", "cnn:networks"))[0] == {
        **by_tag,
        **{"beer/1": "ale", "beer/2": "ale"},
    }
    by_site, skipped = domains(domain="site")
    assert {place.partition("/")[0] == site for place, site in by_site.items()} == {True}
    assert (len(by_site), skipped) == (7, {"post without owner": 1})
    assert set(domains()[0].values()) == {"question", "answer"}


@pytest.mark.parametrize("markup", [("cut",), ("maths:drop",), ("code:drop", "code:keep")])
def test_invalid_markup_raises(tmp_path, markup):
    message = refused("stackexchange", _dump(tmp_path, _row()), markup=markup)
    assert message.startswith("markup: ")


def test_skipped_posts_are_counted_by_reason(tmp_path):
    path = _dump(
        tmp_path,
        _row(OwnerUserId=None),
        _row(Id=2, PostTypeId=4),
        _row(Id=4, Body="<pre>only code</pre>"),
        _row(Id=5, OwnerUserId=8, Body=""),
        _row(Id=6, OwnerUserId=8),
        _row(Id=7, Score="high"),
        "<row />\n",
    )
    examples, log = read("stackexchange", path, skip_bad=True)
    assert [example.place for example in examples] == ["6#0"]
    assert log.num_records == 7
    assert log.skipped == {
        "neither question nor answer": 1,
        "post without owner": 1,
        "post without text": 2,
        "score that is not a whole number": 1,
        "post without Id, PostTypeId or Body": 1,
    }
    # Client 7 wrote a tag's page and a post of code only.
    kept = {example.record.client for example in examples}
    assert (log.skipped_clients, kept) == ({"7", "8"}, {"8"})


def test_sites_have_separate_users(tmp_path):
    paths = [_dump(tmp_path, _row(ParentId=3), site=site) for site in ("beer", "ai")]
    for given in ([tmp_path], paths):
        examples, _ = read("stackexchange", given)
        clients = {(e.record.client, e.place, e.group) for e in examples}
        assert clients == {("ai/7", "ai/1#0", "ai/3"), ("beer/7", "beer/1#0", "beer/3")}


def test_missing_or_equal_sites_raise(tmp_path):
    message = "expected files Posts.xml or Posts.xml.gz, found none"
    assert message in refused("stackexchange", tmp_path)
    (tmp_path / "old").mkdir()
    a, b = _dump(tmp_path, _row()), _dump(tmp_path / "old", _row())
    assert "expected one folder for each site" in refused("stackexchange", [a, b])


def test_gzip_dump_is_read(tmp_path):
    path = _dump(tmp_path, _row())
    packed = path.with_name("Posts.xml.gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert read("stackexchange", packed)[0] == read("stackexchange", path)[0]


@golden.values
def test_invalid_dump_raises(tmp_path, case):
    path = tmp_path / "Posts.xml"
    path.write_text(case, encoding="utf-8")
    result = refused("stackexchange", path)
    assert result.startswith(str(path))
    return result


def test_invalid_utf8_position_is_reported(tmp_path):
    path = tmp_path / "Posts.xml"
    content = (_HEAD + _row(Body="caf\u00e9")).encode()
    before = content[: content.index("\u00e9".encode())].decode()
    column = len(before) - before.rfind("\n")
    path.write_bytes(content.replace("\u00e9".encode(), "\u00e9".encode("latin-1")))
    line = before.count("\n") + 1
    message = f"{path}:{line}: expected UTF-8, found byte 0xe9 in column {column}"
    assert refused("stackexchange", path) == message


@pytest.mark.slow
def test_memory_is_flat_for_long_dumps(tmp_path):
    def peak(num_rows: int) -> int:
        code = f"<pre>{'x' * 20_000}</pre>"
        path = _dump(tmp_path, *(_row(Id=i, Body=code) for i in range(num_rows)))
        tracemalloc.start()
        try:
            assert list(FORMAT.read(ImportOptions(), [path], ReadLog())) == []
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(10)
    # Both files exceed the buffers, so retained rows would show.
    assert peak(600) < 2 * peak(100)
