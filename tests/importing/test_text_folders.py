"""Imports of text folders and plays: clients, groups, sentences and tokens."""

from pathlib import Path

import pytest

from tests.support import golden
from tests.support.imports import REAL, needs, read, refused
from tff_agnostic.importing import text_folders
from tff_agnostic.importing.text import html_blocks, split_sentences


def _texts(folder: Path, **texts: str) -> Path:
    """Writes each text to DOMAIN/NAME.txt; its key is DOMAIN__NAME."""
    for name, text in texts.items():
        domain, _, document = name.partition("__")
        path = folder / domain / f"{document}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def _tokens(folder: Path, **options: str) -> list[str]:
    examples, _ = read("text_folders", folder, **options)
    return [str(example.record.features["tokens"]) for example in examples]


def test_each_text_file_is_a_client(tmp_path):
    folder = _texts(tmp_path, ar__1="Hola . ¿ Qué tal ?", es__1="Vale", ar__2="No , no !\nSí .")
    examples, log = read("text_folders", folder)
    result = [(e.record.client, e.record.domain, e.place, e.group) for e in examples]
    assert result == [
        ("ar/1", "ar", "ar/1:0", "ar/1"),
        ("ar/1", "ar", "ar/1:1", "ar/1"),
        ("ar/2", "ar", "ar/2:0", "ar/2"),
        ("ar/2", "ar", "ar/2:1", "ar/2"),
        ("es/1", "es", "es/1:0", "es/1"),
    ]
    assert [e.record.features for e in examples] == [
        {"tokens": "Hola ."},
        {"tokens": "¿ Qué tal ?"},
        {"tokens": "No , no !"},
        {"tokens": "Sí ."},
        {"tokens": "Vale"},
    ]
    assert (log.num_records, log.skipped) == (5, {})


@golden.values
def test_sentences_end_at_punctuation(tmp_path, case):
    return str(_tokens(_texts(tmp_path, ar__1=case)))


def test_sentences_without_words_are_counted(tmp_path):
    _, log = read("text_folders", _texts(tmp_path, ar__1="- . a . ¿ ?", ar__2="' !"))
    assert log.skipped == {"sentence without words": 3}
    assert log.num_records == 4


def test_words_depend_on_options_tokenizer_case_and_punctuation(tmp_path):
    folder = _texts(tmp_path, ar__1="¿ Qué es l'amour , niño ? Sí .")
    tokens = _tokens(folder, case="upper", punctuation="drop")
    assert tokens == ["QUÉ ES L'AMOUR NIÑO", "SÍ"]
    assert _tokens(folder, case="lower")[0] == "¿ qué es l'amour , niño ?"
    folder = _texts(tmp_path, ar__1="¿Qué tal, l'amour? Bien... bien-hecho.")
    words = ["¿ Qué tal , l'amour ?", "Bien ...", "bien-hecho ."]
    assert _tokens(folder, tokenizer="words") == words


def test_block_size_does_not_change_words_or_letters(tmp_path, monkeypatch):
    text = "El niño está aquí . ¿ Dónde está ? " * 5
    folder = _texts(tmp_path, ar__1=text)
    whole = _tokens(folder)
    for size in (1, 2, 3, 7, 64):
        monkeypatch.setattr(text_folders, "_BLOCK", size)
        if size > 6:
            assert _tokens(folder) == whole
        else:
            # Words longer than a block are split, but never inside a letter's bytes.
            assert "".join(_tokens(folder)).replace(" ", "") == text.replace(" ", "")


def test_text_without_sentence_ends_is_split(tmp_path):
    lengths = [len(t.split()) for t in _tokens(_texts(tmp_path, ar__1="word " * 2500))]
    assert lengths == [1000, 1000, 500]


def test_domain_folders_are_read_recursively(tmp_path):
    folder = _texts(tmp_path / "a", ar__1="a .")
    (folder / "ar" / "more").mkdir()
    (folder / "ar" / "more" / "1.txt").write_text("b .", encoding="utf-8-sig")
    (folder / "ar" / "notes.md").write_text("no text")
    examples, _ = read("text_folders", folder)
    assert [e.record.client for e in examples] == ["ar/1", "ar/more/1"]
    assert examples[1].record.features == {"tokens": "b ."}
    other = _texts(tmp_path / "b", ar__1="b")
    message = refused("text_folders", [folder, other])
    assert "expected different names in different inputs" in message


@pytest.mark.parametrize("start", [0, 10, 70_000, 200_001])
def test_invalid_utf8_is_reported_with_its_place(tmp_path, start):
    folder = _texts(tmp_path, ar__1="")
    path = folder / "ar" / "1.txt"
    path.write_bytes(b"x\n" + b"a" * start + "é . ".encode("latin-1") + b"b . " * 20)
    message = f"{path}:2: expected UTF-8, found byte 0xe9 in column {start + 1}"
    assert refused("text_folders", folder) == message
    path.write_bytes("fin é".encode()[:-1])
    assert refused("text_folders", folder).endswith("found byte 0xc3 in column 5")


def test_invalid_folders_raise(tmp_path):
    assert "expected a folder with a folder for each domain" in refused("text_folders", tmp_path)
    (tmp_path / "ar").mkdir()
    assert refused("text_folders", tmp_path).endswith("ar: expected files .txt, found none")
    path = tmp_path / "ar" / "1.txt"
    path.touch()
    assert refused("text_folders", tmp_path) == f"{path}: expected data, found an empty file"
    path.write_text("a .")
    assert refused("text_folders", path).startswith(f"{path}: expected a folder with a folder for")
    other = tmp_path / "1.csv"
    other.touch()
    assert refused("text_folders", other).endswith("a folder, or a text .txt, found neither")
    options = {"sentences_per_group": 4, "sentences_per_client": 3, "domain_name": "d"}
    for split_by, expected in (
        ("group", "a multiple of sentences_per_client, which is 3, found 4"),
        ("client", "no value without split_by=group"),
    ):
        message = refused("text_folders", tmp_path / "ar", split_by=split_by, **options)
        assert message.startswith(f"sentences_per_group: expected {expected}")


def test_texts_may_have_one_domain(tmp_path):
    folder = _texts(tmp_path, ar__1="a . b .", es__2="c .")
    (folder / "3.txt").write_text("d .")
    for given in (folder, [folder / "ar", folder / "es", folder / "3.txt"]):
        examples, log = read("text_folders", given, domain_name="plays")
        assert {e.record.domain for e in examples} == {"plays"}
        names = [e.record.client.rpartition("/")[2] for e in examples]
        assert sorted(names) == ["1", "1", "2", "3"] and not log.skipped
    # Without domain_name, a text outside the domains' folders has no domain.
    examples, log = read("text_folders", folder)
    assert [e.record.client for e in examples] == ["ar/1", "ar/1", "es/2"]
    assert log.skipped == {"text outside of the domains' folders": 1}


_TREEBANK = """ no it was n't black monday
 but while the <unk> industrial average fell N points
 the $ N billion <unk> said mr. smith 's u.s. unit ; \\ a <unk>

 quotes at N N
"""


def test_lines_may_be_sentences(tmp_path):
    folder = _texts(tmp_path, ptb__train=_TREEBANK)
    lines = [" ".join(line.split()) for line in _TREEBANK.splitlines() if line.strip()]
    assert _tokens(folder, sentences="lines") == lines
    assert _tokens(folder, sentences="lines", tokenizer="words")[0] == "no it was n't black monday"
    # Every tokenizer keeps special words such as <unk>, and their case.
    for options in ({"tokenizer": "words"}, {"case": "upper"}, {"punctuation": "drop"}):
        tokens = _tokens(folder, sentences="lines", **options)
        assert [t.split().count("<unk>") for t in tokens] == [0, 1, 2, 0]
    assert _tokens(folder, sentences="lines", case="upper")[3] == "QUOTES AT N N"
    # By punctuation, the complete file is one sentence.
    assert len(_tokens(folder)) == 1


def test_option_sentences_none_splits_by_length(tmp_path, monkeypatch):
    words = [f"w{k}" for k in range(2500)]
    text = "\n".join(" ".join(words[k : k + 30]) + " ." for k in range(0, 2500, 30))
    folder = _texts(tmp_path / "lines", ar__1=text)
    whole = text.split()
    for block in (64, 1 << 16):
        monkeypatch.setattr(text_folders, "_BLOCK", block)
        tokens = _tokens(folder, sentences="none")
        assert [len(t.split()) for t in tokens] == [1000, 1000, len(whole) - 2000]
        assert " ".join(tokens).split() == whole
        # A line that is too long is split at the same words for any block size.
        one_line = _texts(tmp_path / "one", ar__1=text.replace("\n", " "))
        assert _tokens(one_line, sentences="lines") == tokens


def test_passages_become_clients_and_groups(tmp_path):
    folder = _texts(tmp_path, plays__1="\n".join("abcdefg"))
    options = {"sentences_per_client": 2, "sentences_per_group": 4, "split_by": "group"}
    examples, _ = read("text_folders", folder, sentences="lines", **options)
    assert [(e.record.client[-1], e.group) for e in examples] == [
        *[("0", "plays/1#0000")] * 2,
        *[("1", "plays/1#0000")] * 2,
        *[("2", "plays/1#0001")] * 2,
        ("3", "plays/1#0001"),
    ]


# --- Plays


_PLAY = "\ufeffFirst Citizen:\nBefore we\nproceed, know't!\n\n\nALL:\nSpeak, speak.\n \nALL:\n--\n"


def _text(folder, text=_PLAY, name="play"):
    path = folder / f"{name}.txt"
    path.write_text(text, encoding="utf-8")
    return path


def test_speakers_in_plays_are_clients(tmp_path):
    examples, log = read("plays", _text(tmp_path))
    result = [(e.record.client, e.record.domain, e.record.features["tokens"]) for e in examples]
    assert result == [
        ("First Citizen", "play", "Before we proceed , know't !"),
        ("ALL", "play", "Speak , speak ."),
    ]
    assert [e.place for e in examples] == ["play.txt:1", "play.txt:6"]
    assert (log.num_records, log.skipped) == (3, {"speech without words": 1})


def test_plays_accept_domain_name_and_tokenizer(tmp_path):
    options = {"tokenizer": "letters", "case": "lower", "domain_name": "all"}
    examples, _ = read("plays", _text(tmp_path), **options)
    texts = [(e.record.domain, e.record.features["tokens"]) for e in examples]
    assert texts == [("all", "before we proceed knowt"), ("all", "speak speak")]


def test_speech_without_speaker_is_skipped(tmp_path):
    path = _text(tmp_path, "Enter GHOST\n\nGHOST:\nMark me.\n")
    assert refused("plays", path) == (
        "play.txt:1: expected a speech that begins with a line SPEAKER:, found 'Enter GHOST'"
    )
    examples, log = read("plays", path, skip_bad=True)
    assert [e.record.client for e in examples] == ["GHOST"]
    assert log.skipped == {"speech without a speaker": 1}


@pytest.mark.nightly
@needs("tinyshakespeare")
def test_shakespeare_has_the_documented_counts():
    examples, _ = read("plays", REAL / "tinyshakespeare", tokenizer="letters", case="lower")
    words = [word for e in examples for word in e.record.features["tokens"].split()]
    speakers = {e.record.client for e in examples}
    assert (len(speakers), len(words), len(set(words))) == (299, 192_796, 12_823)


# --- HTML becomes blocks, and posts become sentences


@golden.values
def test_html_becomes_blocks(case):
    return str(html_blocks(case))


def test_unclosed_html_comments_are_text():
    unfinished = "a" + "<!--" * 100_000
    assert html_blocks(f"{unfinished}<i>b</i>") == [f"{unfinished} b "]


@golden.values
def test_post_text_becomes_sentences(case):
    return str(split_sentences(case))
