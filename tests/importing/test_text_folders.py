"""Imports of text folders and plays: clients, groups, sentences and tokens."""

from pathlib import Path

import pytest

from tests.support import golden
from tests.support.imports import REAL, job, needs, read, refused, stored_counts
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
    folder = _texts(tmp_path, ar__1="Hola . ¿ ? ' ! ¿ Qué tal ?", es__1="No , no !\nSí .")
    examples, log = read("text_folders", folder)
    result = [(e.record.client, e.record.domain, e.place, e.group) for e in examples]
    assert result == [
        ("ar/1", "ar", "ar/1:0", "ar/1"),
        ("ar/1", "ar", "ar/1:1", "ar/1"),
        ("es/1", "es", "es/1:0", "es/1"),
        ("es/1", "es", "es/1:1", "es/1"),
    ]
    tokens = [e.record.features["tokens"] for e in examples]
    assert tokens == ["Hola .", "¿ Qué tal ?", "No , no !", "Sí ."]
    assert (log.num_records, log.skipped) == (6, {"sentence without words": 2})


@golden.values
def test_sentences_end_at_punctuation(tmp_path, case):
    return str(_tokens(_texts(tmp_path, ar__1=case)))


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
    monkeypatch.setattr(text_folders, "_BLOCK", 7)
    assert _tokens(folder) == whole
    # Words longer than a block are split, but never inside a letter's bytes.
    monkeypatch.setattr(text_folders, "_BLOCK", 1)
    assert "".join(_tokens(folder)).replace(" ", "") == text.replace(" ", "")


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


@pytest.mark.parametrize("start", [0, 70_000])
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


def test_lines_may_be_sentences(tmp_path):
    lines = ["it was n't monday", "the <unk> said mr. <unk> ; 's", "quotes at N"]
    folder = _texts(tmp_path, ptb__train=f" {lines[0]}\n {lines[1]}\n\n {lines[2]}\n")
    assert _tokens(folder, sentences="lines") == lines
    assert _tokens(folder, sentences="lines", tokenizer="words")[0] == lines[0]
    # Every tokenizer keeps special words such as <unk>, and their case.
    for options in ({"tokenizer": "words"}, {"case": "upper"}, {"punctuation": "drop"}):
        tokens = _tokens(folder, sentences="lines", **options)
        assert [t.split().count("<unk>") for t in tokens] == [0, 2, 0]
    assert _tokens(folder, sentences="lines", case="upper")[2] == "QUOTES AT N"
    # By punctuation, the complete file is one sentence.
    assert len(_tokens(folder)) == 1


def test_long_sentences_are_split(tmp_path, monkeypatch):
    words = [f"w{k}" for k in range(2500)]
    expected = [" ".join(words[k : k + 1000]) for k in (0, 1000, 2000)]
    folder = _texts(tmp_path / "a", ar__1="\n".join(words))
    one_line = _texts(tmp_path / "b", ar__1=" ".join(words))
    for block in (64, 1 << 16):
        monkeypatch.setattr(text_folders, "_BLOCK", block)
        assert _tokens(folder, sentences="none") == expected
        assert _tokens(one_line, sentences="lines") == expected
        assert _tokens(one_line) == expected


def test_passages_become_clients_and_groups(tmp_path):
    folder = _texts(tmp_path, plays__1="\n".join("abcdefg"))
    options = {"sentences_per_client": 2, "sentences_per_group": 4, "split_by": "group"}
    examples, _ = read("text_folders", folder, sentences="lines", **options)
    assert (examples[0].record.client, examples[0].group) == ("plays/1#0000", "plays/1#0000")
    assert "".join(e.record.client[-1] for e in examples) == "0011223"
    assert "".join(str(e.group)[-1] for e in examples) == "0000111"


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
    job("plays", tmp_path / "play.txt", tmp_path / "s", split=("train:1",)).run(log)
    names = ("First Citizen", "ALL")
    assert stored_counts(tmp_path / "s") == {(name, "play", "train"): 1 for name in names}
    options = {"tokenizer": "letters", "case": "lower", "domain_name": "all"}
    (first, _), _ = read("plays", _text(tmp_path), **options)
    assert first.record.domain == "all"
    assert first.record.features["tokens"] == "before we proceed knowt"


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
