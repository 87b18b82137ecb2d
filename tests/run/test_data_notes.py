"""Remarks about the clients of a run."""

import numpy as np
import pytest

from tff_agnostic.data.clients import FirstExamples, InMemoryClients
from tff_agnostic.data.data_warnings import Remark
from tff_agnostic.program.runs.build import data_remarks
from tff_agnostic.program.runs.data_notes import dominant_clients
from tff_agnostic.program.runs.options import RunConfig
from tff_agnostic.tasks.task import Task


def test_dominant_client_is_named_with_its_share():
    # A single client has 41 of the first domain's 100 examples.
    first = [41, *[2] * 28, 3]
    counts = np.stack([first, [5] * 30], axis=1)
    (remark,) = dominant_clients(counts, ("rural", "urban"), "train")
    assert remark.figures == {"split": "train", "domains": {"rural": 0.41}}
    assert "rural (41%, 30 clients)" in remark.text


def test_few_equal_clients_are_not_dominant():
    assert dominant_clients(np.array([[5, 0], [5, 9], [5, 9]]), ("a", "b"), "test") == []
    assert dominant_clients(np.zeros([0, 2], int), ("a", "b"), "test") == []


def _clients(**domain_ids):
    return InMemoryClients({k: {"domain_id": np.array(v, np.int32)} for k, v in domain_ids.items()})


def _task(train, test=_clients(t=[0, 1, 2] * 100), **more):
    return Task(("x", "y", "z"), train, test, model=None, **more)  # type: ignore[arg-type]


def test_remarks_name_limits_and_small_domains():
    chosen = Remark("words_cut", "of the task", {})
    train = FirstExamples(_clients(a=[0] * 150, b=[1] * 120), 100)
    task = _task(train, _clients(t=[0] * 100 + [1] * 3), remarks=lambda: [chosen])
    actual = data_remarks(task, RunConfig(max_examples=100))
    without = "domains_without_examples"
    assert [(remark.kind, remark.figures.get("split")) for remark in actual] == [
        ("words_cut", None),
        ("examples_beyond", None),
        (without, "train"),
        (without, "test"),
        ("small_domains", "test"),
    ]
    _, beyond, train_without, test_without, small = (remark.figures for remark in actual)
    assert (beyond["examples"], beyond["examples_left_out"]) == (270, 70)
    assert train_without["domains"] == test_without["domains"] == ["z"]
    assert small["domains"] == {"y": 3}


def test_balanced_data_have_no_remarks():
    assert data_remarks(_task(_clients(a=[0, 1, 2] * 100)), RunConfig()) == []


@pytest.mark.parametrize("count", [200, 201])
def test_more_than_200_clients_are_not_read(count):
    class Counted(InMemoryClients):
        reads = 0

        def read(self, client_id):
            Counted.reads += 1
            return super().read(client_id)

    clients = Counted({str(k): {"domain_id": np.zeros(1, np.int32)} for k in range(count)})
    actual = data_remarks(_task(clients), RunConfig())
    assert (Counted.reads, bool(actual)) == ((200, True) if count == 200 else (0, False))


def test_held_out_examples_are_reported():
    task = _task(_clients(a=[0, 1] * 50, b=[1] * 20, c=[2], d=[]))

    def kept_out(share, **config):
        remarks = data_remarks(task, RunConfig(**config), kept_out=share)
        return [remark for remark in remarks if remark.kind == "examples_kept_out"]

    assert kept_out(0.0) == []
    (actual,) = kept_out(0.2)
    assert "about 19.8% of the examples of train (24 of 121) are not trained on" in actual.text
    assert "1 of 4 clients have a single example, train on it and measure nothing" in actual.text
    (capped,) = kept_out(0.5, max_examples=10)
    assert capped.figures["examples_kept_out"] == 10
