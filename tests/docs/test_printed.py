"""The kinds of what pages show."""

from tests.docs.printed import Block, blocks, is_shown, is_shown_in_form, without_a_kind

_PAGE = """\
```sh
./run train
```

It prints:

<!-- printed: form -->
```text
loss 1.5
```

```python
print(1)
```

```text
1
```

<!-- not run -->
```text
./run fleet
```
"""


def test_a_block_has_the_kind_in_front_of_it():
    assert blocks(_PAGE) == [
        Block("sh", "./run train\n", ""),
        Block("text", "loss 1.5\n", "form"),
        Block("python", "print(1)\n", ""),
        Block("text", "1\n", ""),
        Block("text", "./run fleet\n", "not run"),
    ]


def test_a_block_of_text_needs_a_kind_except_after_python():
    assert not list(without_a_kind(_PAGE))
    for other in ("", "<!-- printed: mostly -->\n", "<!-- printed: 2026-13-01 -->\n"):
        page = _PAGE.replace("<!-- printed: form -->\n", other)
        assert list(without_a_kind(page)) == ["loss 1.5"]
    dated = _PAGE.replace("printed: form", "printed: 2026-11-24")
    assert not list(without_a_kind(dated))


def test_the_whole_is_compared_by_lines():
    printed = "one 1\ntwo 2\nthree 3\n"
    assert is_shown(printed, printed) and is_shown(printed, "one 1\n...\nthree 3\n")
    assert not is_shown(printed, "one 1\nthree 3\n") and not is_shown(printed, "one 2\n...\n")


def test_the_form_is_compared_by_lines_without_numbers():
    printed = (
        "domain   loss\n------  -----\n8 (worst)  1,234.5\nsmall 1 2\nall  -2e-7\nto run-1/r.html\n"
    )
    shown = "domain loss\n---- ----\n1 (worst) 0.4\nall\n0.1\nto run-12/r.html\n"
    assert is_shown_in_form(printed, shown)
    assert is_shown_in_form(printed, "8 (worst) ...\nto ...\n")
    assert is_shown_in_form("sent 3, took 4, rest 5\n", "sent 1, ..., rest 2\n")
    assert not is_shown_in_form(printed, "to run-12/r.html\n8 (worst) 1\n")
    assert not is_shown_in_form(printed, shown.replace("worst", "best"))
    assert not is_shown_in_form(printed, "all 1 2\n") and not is_shown_in_form(
        printed, "all none\n"
    )
