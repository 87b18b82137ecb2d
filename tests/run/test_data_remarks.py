"""What a run says of its data before the first round."""

import numpy as np
import pytest

from tff_agnostic.data.clients import FirstExamples, InMemoryClients
from tff_agnostic.data.data_warnings import Remark
from tff_agnostic.run.build import data_remarks
from tff_agnostic.run.options import RunConfig
from tff_agnostic.tasks.task import Task


def _clients(**domain_ids):
    return InMemoryClients({k: {"domain_id": np.array(v, np.int32)} for k, v in domain_ids.items()})


def _task(train, test, **more):
    return Task(("x", "y", "z"), train, test, model=None, **more)  # type: ignore[arg-type]


def test_remarks_of_a_run():
    own = Remark("words_cut", "of the task", {})
    train = _clients(a=[0] * 150, b=[1] * 120)
    task = _task(FirstExamples(train, 100), _clients(t=[0] * 100 + [1] * 3), remarks=lambda: [own])
    found = data_remarks(task, RunConfig(max_examples=100))
    assert [remark.kind for remark in found] == [
        "words_cut",
        "examples_beyond",
        "domains_without_examples",
        "domains_without_examples",
        "small_domains",
    ]
    _, beyond, train_without, test_without, small = found
    # Of all that clients have, not of what --max_examples leaves.
    assert (beyond.figures["examples"], beyond.figures["examples_left_out"]) == (270, 70)
    assert train_without.figures == {"split": "train", "domains": ["z"]}
    assert test_without.figures == {"split": "test", "domains": ["z"]}
    assert small.figures["domains"] == {"y": 3}


def test_nothing_to_say():
    clients = _clients(a=[0, 1, 2] * 100)
    assert data_remarks(_task(clients, clients), RunConfig()) == []


@pytest.mark.parametrize("count", [200, 201])
def test_many_clients_are_not_read(count):
    class Counted(InMemoryClients):
        reads = 0

        def read(self, client_id):
            Counted.reads += 1
            return super().read(client_id)

    clients = Counted({str(k): {"domain_id": np.zeros(1, np.int32)} for k in range(count)})
    task = _task(clients, _clients(t=[0, 1, 2] * 100))
    found = data_remarks(task, RunConfig())
    assert (Counted.reads, bool(found)) == ((200, True) if count == 200 else (0, False))


def test_the_price_of_examples_that_are_kept_out_is_said():
    train = _clients(a=[0, 1] * 50, b=[1] * 20, c=[2], d=[])
    task = _task(train, _clients(t=[0, 1, 2] * 100))
    assert "examples_kept_out" not in [remark.kind for remark in data_remarks(task, RunConfig())]
    (found,) = [
        remark
        for remark in data_remarks(task, RunConfig(), kept_out=0.2)
        if remark.kind == "examples_kept_out"
    ]
    assert found.text == (
        "about 19.8% of the examples of train (24 of 121) are not trained on: losses are measured "
        "on them, by --domain_loss_share=0.2. 1 of 4 clients have a single example, train on it "
        "and measure nothing."
    )
    beside, *_ = data_remarks(task, RunConfig(max_examples=10), kept_out=0.5)[1:]
    assert beside.figures["examples_kept_out"] == 10
