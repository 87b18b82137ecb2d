"""From a post's HTML to sentences."""

import pytest

from tff_agnostic.importing.text import html_blocks, sentences_of


@pytest.mark.parametrize(
    ("html", "blocks"),
    [
        ("<p>One</p>\n<p>Two</p>", ["One", "Two"]),
        ("plain", ["plain"]),
        ("", []),
        ("<p> \n </p>", []),
        ("<p>a &lt;b&gt; &amp; c&#39;s &eacute;</p>", ["a <b> & c's é"]),
        ("<p>use <code>x = 1</code> here</p>", ["use   here"]),
        ("a<code>b</code>c", ["a c"]),
        ("<pre><code>import os\n</code></pre><p>Done</p>", ["Done"]),
        ("<p>before</p><pre>a <p>b</p> c</pre>after", ["before", "after"]),
        ("<ul><li>one</li><li><em>t</em>wo</li></ul>", ["one", "two"]),
        ("a<br>b<br/>c", ["a", "b", "c"]),
        ('<a href="http://x.y">link</a>', ["link"]),
        ("<p>never closed <b>at all", ["never closed at all"]),
        ("1 < 2 and </nothing>", ["1 < 2 and "]),
        ("</pre>fine", ["fine"]),
        ("<!-- remark --><script>x()</script>text", [" text"]),
        ("<p>a <![if x]> b <![e", ["a  b <![e"]),
        # It took minutes to look for the end of each.
        pytest.param(
            "a" + "<!--" * 100_000 + "<i>b</i>", ["a" + "<!--" * 100_000 + " b "], id="unfinished"
        ),
    ],
)
def test_html_becomes_blocks_of_text(html, blocks):
    assert html_blocks(html) == blocks


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("How Are You? Fine!", ["how are you ?", "fine !"]),
        ("no end", ["no end"]),
        ("It's a well-known fact.", ["it's a well-known fact ."]),
        ("- a -b c-", ["- a - b c -"]),
        ("'quoted'", ["' quoted '"]),
        ("see http://a.b/c?d=e. Now", ["see <url>", "now"]),
        ("(www.x.org)", ["( <url> )"]),
        ("3.14 e.g. this, i.e. that", ["3 . 14 e . g . this , i . e . that"]),
        ("Really?! (Yes.) Ok...", ["really ? !", "( yes . )", "ok . . ."]),
        ("a\n b\tc", ["a b c"]),
        ("...", []),
        ("", []),
        ("caf\u00e9 \u2603 don\u2019t \u201chm\u201d", ['caf don\'t " hm "']),
        ("f(x)=x^2", ["f ( x ) = x ^ 2"]),
    ],
)
def test_text_becomes_sentences(text, sentences):
    assert sentences_of(text) == sentences


@pytest.mark.parametrize("text", ["A. b? C! d", "x <y> & \u00e9\u00e8 'tis", "1.5. 2.5"])
def test_sentences_are_ascii_lower_case_and_singly_spaced(text):
    for sentence in sentences_of(text):
        assert sentence.isascii()
        assert sentence == sentence.lower()
        assert sentence == " ".join(sentence.split())
