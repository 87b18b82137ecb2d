"""Writes a synthetic Stack Exchange dump (Posts.xml) of any size, for measuring imports.

Example: python benchmarks/make_dump.py --megabytes=1000 --output=big/Posts.xml

Posts have lengths and markup like Stack Exchange's posts, and words with Zipf frequencies. The
script needs only the standard library.
"""

import argparse
import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import quoteattr

_NUM_WORDS = 200_000
_NUM_SENTENCES = 20_000
_POSTS_PER_USER = 8


def sentences(draw: random.Random) -> list[str]:
    """Returns random sentences for posts."""
    letters = "etaoinshrdlucmfw"
    words = ["".join(draw.choices(letters, k=draw.randint(2, 9))) for _ in range(_NUM_WORDS)]
    weights = list(itertools.accumulate(1 / k for k in range(1, _NUM_WORDS + 1)))
    return [
        " ".join(draw.choices(words, cum_weights=weights, k=draw.randint(5, 25))).capitalize() + "."
        for _ in range(_NUM_SENTENCES)
    ]


def body(draw: random.Random, texts: list[str]) -> str:
    """Returns a random post in HTML: 1 to 5 paragraphs, some with code."""
    parts = []
    for _ in range(draw.randint(1, 5)):
        text = " ".join(draw.choices(texts, k=draw.randint(1, 4)))
        if draw.random() < 0.2:
            text += ' See <a href="https://example.org/q?a=1&amp;b=2">this</a> &amp; <em>that</em>.'
        parts.append(f"<p>{text}</p>\n")
        if draw.random() < 0.3:
            parts.append(f"<pre><code>{'x = f(y) &lt; 3;' * draw.randint(1, 20)}\n</code></pre>\n")
    return "".join(parts)


def rows(seed: int) -> Iterator[str]:
    """Yields XML rows without end: each question is followed by its answers."""
    draw = random.Random(seed)
    texts = sentences(draw)
    question = 0
    for post in itertools.count(1):
        is_question = question == 0 or draw.random() < 0.4
        question = post if is_question else question
        type_attributes = 'PostTypeId="1" Title="Why?" Tags="&lt;a&gt;&lt;b&gt;"'
        if not is_question:
            type_attributes = f'PostTypeId="2" ParentId="{question}"'
        # The number of users grows with the number of posts.
        user = int(draw.random() ** 3 * (post // _POSTS_PER_USER + 1))
        owner = f'OwnerUserId="{user}" ' if draw.random() < 0.99 else ""
        yield (
            f'  <row Id="{post}" {type_attributes} CreationDate="2014-01-21T20:26:05.383" '
            f'Score="{draw.randint(-2, 20)}" {owner}Body={quoteattr(body(draw, texts))} />\n'
        )


def main() -> None:
    """Writes the dump."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    with open(arguments.output, "w", encoding="utf-8") as file:
        size = file.write('<?xml version="1.0" encoding="utf-8"?>\n<posts>\n')
        for row in rows(arguments.seed):
            size += file.write(row)
            if size >= arguments.megabytes * 10**6:
                break
        file.write("</posts>\n")


if __name__ == "__main__":
    main()
