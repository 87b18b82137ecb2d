"""Folders of texts: clients, groups, sentences, and how words are written."""

from pathlib import Path

import pytest

from tests.importing.harness import REAL, needs, read, refused
from tff_agnostic.importing import text_folders


def _texts(folder: Path, **texts: str) -> Path:
    """Writes texts named DOMAIN__NAME."""
    for name, text in texts.items():
        domain, _, document = name.partition("__")
        path = folder / domain / f"{document}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def _tokens(folder: Path, **options: str) -> list[str]:
    examples, _ = read("text_folders", folder, **options)
    return [str(example.record.features["tokens"]) for example in examples]


def test_a_file_is_a_client(tmp_path):
    folder = _texts(tmp_path, ar__1="Hola . ¿ Qué tal ?", es__1="Vale", ar__2="No , no !\nSí .")
    examples, log = read("text_folders", folder)
    found = [(e.record.client, e.record.domain, e.place, e.group) for e in examples]
    assert found == [
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


def test_passages_are_clients_and_their_file_is_the_group(tmp_path):
    folder = _texts(tmp_path, ar__film="a . b . c . d . e .")
    examples, _ = read("text_folders", folder, sentences_per_client=2)
    clients = [e.record.client for e in examples]
    assert clients == ["ar/film#0000"] * 2 + ["ar/film#0001"] * 2 + ["ar/film#0002"]
    assert {e.group for e in examples} == {"ar/film"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Ya ... ¿ Sí ? !", ["Ya ...", "¿ Sí ? !"]),
        ("uno … dos", ["uno …", "dos"]),
        ("Sr. Paz .", ["Sr. Paz ."]),
        ("a\t b \n\n c", ["a b c"]),
        (". . .", []),
        ("- . a .", ["a ."]),
    ],
)
def test_where_sentences_end(tmp_path, text, expected):
    assert _tokens(_texts(tmp_path, ar__1=text)) == expected


def test_sentences_without_words_are_counted(tmp_path):
    _, log = read("text_folders", _texts(tmp_path, ar__1="- . a . ¿ ?", ar__2="' !"))
    assert log.skipped == {"sentence without words": 3}
    assert log.num_records == 4


def test_text_as_for_two_domain_language_models(tmp_path):
    folder = _texts(tmp_path, ar__1="¿ Qué es l'amour , niño ? Sí .")
    tokens = _tokens(folder, case="upper", punctuation="drop")
    assert tokens == ["QUÉ ES L'AMOUR NIÑO", "SÍ"]
    assert _tokens(folder, case="lower")[0] == "¿ qué es l'amour , niño ?"


def test_text_that_is_not_tokenised(tmp_path):
    folder = _texts(tmp_path, ar__1="¿Qué tal, l'amour? Bien... bien-hecho.")
    assert _tokens(folder, tokenizer="words") == [
        "¿ Qué tal , l'amour ?",
        "Bien ...",
        "bien-hecho .",
    ]


def test_blocks_do_not_break_words_or_letters(tmp_path, monkeypatch):
    text = "El niño está aquí . ¿ Dónde está ? " * 5
    folder = _texts(tmp_path, ar__1=text)
    whole = _tokens(folder)
    for size in (1, 2, 3, 7, 64):
        monkeypatch.setattr(text_folders, "_BLOCK", size)
        if size > 6:
            assert _tokens(folder) == whole
        else:
            # Longer than a block, words are cut; letters never are.
            assert "".join(_tokens(folder)).replace(" ", "") == text.replace(" ", "")


def test_a_text_without_ends_is_cut(tmp_path):
    lengths = [len(t.split()) for t in _tokens(_texts(tmp_path, ar__1="word " * 2500))]
    assert lengths == [1000, 1000, 500]


def test_files_below_a_domain(tmp_path):
    folder = _texts(tmp_path, ar__1="a .")
    (folder / "ar" / "more").mkdir()
    (folder / "ar" / "more" / "1.txt").write_text("b .")
    (folder / "ar" / "notes.md").write_text("no text")
    clients = [e.record.client for e in read("text_folders", folder)[0]]
    assert clients == ["ar/1", "ar/more/1"]


def test_two_inputs_with_the_same_names(tmp_path):
    a, b = _texts(tmp_path / "a", ar__1="a"), _texts(tmp_path / "b", ar__1="b")
    assert "expected different names in different inputs" in refused("text_folders", [a, b])


def test_a_byte_order_mark_is_no_text(tmp_path):
    folder = _texts(tmp_path, ar__1="")
    (folder / "ar" / "1.txt").write_text("Hola .", encoding="utf-8-sig")
    assert _tokens(folder) == ["Hola ."]


@pytest.mark.parametrize("start", [0, 10, 70_000, 200_001])
def test_another_encoding_is_named_with_its_place(tmp_path, start):
    folder = _texts(tmp_path, ar__1="")
    path = folder / "ar" / "1.txt"
    path.write_bytes(b"a" * start + "é . ".encode("latin-1") + b"b . " * 20)
    message = f"{path}: expected UTF-8, found byte 0xe9 at offset {start}"
    assert refused("text_folders", folder) == message


def test_a_letter_that_is_cut_off_at_the_end(tmp_path):
    folder = _texts(tmp_path, ar__1="")
    (folder / "ar" / "1.txt").write_bytes("fin é".encode()[:-1])
    assert refused("text_folders", folder).endswith("found byte 0xc3 at offset 4")


def test_what_is_refused(tmp_path):
    assert "expected a folder with a folder for each domain" in refused("text_folders", tmp_path)
    (tmp_path / "ar").mkdir()
    assert refused("text_folders", tmp_path).endswith("ar: expected files .txt, found none")
    path = tmp_path / "ar" / "1.txt"
    path.touch()
    assert refused("text_folders", tmp_path) == f"{path}: expected data, found an empty file"
    assert "expected a folder with a folder for each domain" in refused("text_folders", path)


@needs("activ_es")
def test_the_real_films():
    documents = text_folders.find_inputs([REAL / "activ_es"])
    assert len(documents) == 128 + 119 + 182
