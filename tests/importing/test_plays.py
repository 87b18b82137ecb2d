"""Plays: speakers, speeches, and how words are written."""

from tests.importing.harness import REAL, needs, read, refused

_PLAY = "\ufeffFirst Citizen:\nBefore we\nproceed, know't!\n\n\nALL:\nSpeak, speak.\n \nALL:\n--\n"


def _text(folder, text=_PLAY, name="play"):
    path = folder / f"{name}.txt"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_speaker_is_a_client_and_a_speech_an_example(tmp_path):
    examples, log = read("plays", _text(tmp_path))
    found = [(e.record.client, e.record.domain, e.record.features["tokens"]) for e in examples]
    assert found == [
        ("First Citizen", "play", "Before we proceed , know't !"),
        ("ALL", "play", "Speak , speak ."),
    ]
    assert [e.place for e in examples] == ["play.txt:1", "play.txt:6"]
    assert (log.num_records, log.skipped) == (3, {"speech without words": 1})


def test_letters_only_and_a_given_domain(tmp_path):
    examples, _ = read(
        "plays", _text(tmp_path), tokenizer="letters", case="lower", domain_name="all"
    )
    assert [e.record.features["tokens"] for e in examples] == [
        "before we proceed knowt",
        "speak speak",
    ]
    assert {e.record.domain for e in examples} == {"all"}


def test_a_speech_without_a_speaker_is_a_bad_record(tmp_path):
    path = _text(tmp_path, "Enter GHOST\n\nGHOST:\nMark me.\n")
    assert refused("plays", path) == (
        "play.txt:1: expected a speech that begins with a line SPEAKER:, found 'Enter GHOST'"
    )
    examples, log = read("plays", path, skip_bad=True)
    assert [e.record.client for e in examples] == ["GHOST"]
    assert log.skipped == {"speech without a speaker": 1}


def test_a_folder_without_texts_is_refused(tmp_path):
    assert "expected files .txt, found none" in refused("plays", tmp_path)


@needs("tinyshakespeare")
def test_speakers_and_words_of_shakespeare():
    examples, _ = read("plays", REAL / "tinyshakespeare", tokenizer="letters", case="lower")
    words = [word for e in examples for word in e.record.features["tokens"].split()]
    speakers = {e.record.client for e in examples}
    assert (len(speakers), len(words), len(set(words))) == (299, 192_796, 12_823)
