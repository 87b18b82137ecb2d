"""Cohorts that are read one round ahead."""

import threading

import numpy as np
import pytest

from tff_agnostic.data.sampling import CohortReader, sample_cohort
from tff_agnostic.errors import UserError

_IDS = [f"client_{k}" for k in range(9)]


class _Clients:
    """Clients that hold their own number, and say who was read."""

    def __init__(self, damaged: str = "") -> None:
        self.client_ids = _IDS
        self.read_ids: list[str] = []
        self.all_read = threading.Event()
        self._damaged = damaged

    def read(self, client_id: str) -> dict[str, np.ndarray]:
        self.read_ids.append(client_id)
        if len(self.read_ids) == 6:
            self.all_read.set()
        if client_id == self._damaged:
            raise UserError(f"{client_id}: damaged")
        return {"x": np.array([_IDS.index(client_id)])}


def _sampled(round_num: int) -> list[str]:
    return sample_cohort(_IDS, 3, seed=5, round_num=round_num)


def _ids(cohort) -> list[str]:
    return [_IDS[int(client["x"][0])] for client in cohort]


def test_rounds_have_the_cohorts_that_are_sampled_for_them():
    with CohortReader(_Clients(), _sampled, last_round=4) as reader:
        for t in (1, 2, 3, 4):
            assert _ids(reader.read(t)) == _sampled(t)


def test_a_run_may_go_on_after_any_round():
    with CohortReader(_Clients(), _sampled, last_round=9) as reader:
        for t in (7, 8, 3):
            assert _ids(reader.read(t)) == _sampled(t)


def test_the_next_cohort_is_read_before_it_is_asked_for():
    clients = _Clients()
    with CohortReader(clients, _sampled, last_round=2) as reader:
        reader.read(1)
        assert clients.all_read.wait(timeout=30)
    assert clients.read_ids == _sampled(1) + _sampled(2)


def test_nothing_is_read_after_the_last_round():
    clients = _Clients()
    with CohortReader(clients, _sampled, last_round=2) as reader:
        reader.read(1)
        reader.read(2)
    assert clients.read_ids == _sampled(1) + _sampled(2)


def test_a_damaged_client_is_an_error_of_its_own_round():
    damaged = next(k for k in _sampled(2) if k not in _sampled(1))
    with CohortReader(_Clients(damaged), _sampled, last_round=9) as reader:
        assert _ids(reader.read(1)) == _sampled(1)
        with pytest.raises(UserError, match=f"{damaged}: damaged"):
            reader.read(2)
