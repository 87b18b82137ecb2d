"""Lanes: order, exceptions, how much is under way, and their end."""

import contextlib
import threading
from collections.abc import Iterator

import pytest
import tensorflow as tf

from tff_agnostic.runtimes.devices import DeviceThreads, default_num_lanes, sum_in_order

_CPU = "/device:CPU:0"
_TIMEOUT_SECONDS = 60.0


@pytest.fixture(params=[1, 2, 5])
def lanes(request):
    lanes = DeviceThreads([_CPU], request.param)
    yield lanes
    lanes.close()


def _lane_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("lane")]


def test_results_come_in_the_order_of_the_items(lanes):
    assert list(lanes.map_in_order(lambda k: k * k, range(50))) == [k * k for k in range(50)]


def test_the_order_does_not_depend_on_which_item_is_ready_first():
    """The first item ends only after the last one, which the other lane runs."""
    lanes, last_is_done = DeviceThreads([_CPU], 2), threading.Event()

    def fn(k: int) -> int:
        if k == 0:
            assert last_is_done.wait(_TIMEOUT_SECONDS)
        if k == 3:
            last_is_done.set()
        return k

    assert list(lanes.map_in_order(fn, range(4))) == [0, 1, 2, 3]
    lanes.close()


def test_nothing_to_do_is_no_result(lanes):
    assert list(lanes.map_in_order(lambda k: k, [])) == []


def test_an_exception_comes_out_where_its_item_is_and_the_lanes_live_on(lanes):
    def fn(k: int) -> int:
        if k == 3:
            raise KeyError("three")
        return k

    found = []
    with pytest.raises(KeyError, match="three"):
        for value in lanes.map_in_order(fn, range(100)):
            found.append(value)
    assert found == [0, 1, 2]
    assert list(lanes.map_in_order(lambda k: k, range(9))) == list(range(9))


def test_an_exception_ends_the_work_that_has_not_begun(lanes):
    seen = []

    def fn(k: int) -> None:
        seen.append(k)
        raise ValueError(k)

    with pytest.raises(ValueError, match="0"):
        list(lanes.map_in_order(fn, range(1000)))
    lanes.close()
    assert len(seen) <= 2 * lanes.num_lanes


def test_items_are_taken_only_as_the_lanes_get_on(lanes):
    """Of a hundred thousand clients only those of twice as many shards as lanes are in memory."""
    taken = []

    def items():
        for k in range(40):
            taken.append(k)
            yield k

    for done, _ in enumerate(lanes.map_in_order(lambda k: k, items()), start=1):
        assert len(taken) <= done + 2 * lanes.num_lanes


def test_no_more_items_run_at_once_than_there_are_lanes(lanes):
    lock, running, most = threading.Lock(), [0], [0]

    def fn(_: int) -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        tf.reduce_sum(tf.random.stateless_normal([1000], [1, 2]))
        with lock:
            running[0] -= 1

    list(lanes.map_in_order(fn, range(60)))
    assert 1 <= most[0] <= lanes.num_lanes


def test_all_lanes_run_at_once():
    """Each item waits for the other ones, so that fewer lanes would never get on."""
    lanes, barrier = DeviceThreads([_CPU], 3), threading.Barrier(3)
    list(lanes.map_in_order(lambda _: barrier.wait(_TIMEOUT_SECONDS), range(3)))
    lanes.close()


def test_every_lane_keeps_to_a_device_and_devices_are_shared_evenly(monkeypatch):
    entered = threading.local()

    @contextlib.contextmanager
    def device(name: str) -> Iterator[None]:
        entered.device = name
        yield

    monkeypatch.setattr(tf, "device", device)
    lanes, barrier = DeviceThreads(["first", "second"], 4), threading.Barrier(4)

    def lane_and_device(_: int) -> tuple[str, str]:
        barrier.wait(_TIMEOUT_SECONDS)
        return threading.current_thread().name, entered.device

    before, after = (dict(lanes.map_in_order(lane_and_device, range(4))) for _ in range(2))
    assert before == after
    assert sorted(before.values()) == ["first", "first", "second", "second"]
    lanes.close()


def test_closing_ends_the_threads():
    before = len(_lane_threads())
    lanes = DeviceThreads([_CPU], 3)
    list(lanes.map_in_order(lambda k: k, range(10)))
    assert len(_lane_threads()) > before
    lanes.close()
    assert len(_lane_threads()) == before
    with pytest.raises(RuntimeError):
        list(lanes.map_in_order(lambda k: k, [1]))


def test_there_is_a_lane_per_processor_and_two_per_accelerator(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2})
    assert default_num_lanes(["/device:CPU:0"]) == 3
    assert default_num_lanes([f"/device:CPU:{k}" for k in range(5)]) == 5
    assert default_num_lanes(["/device:GPU:0"]) == 2
    assert default_num_lanes(["/device:GPU:0", "/device:GPU:1"]) == 4


def test_sums_run_from_left_to_right():
    assert sum_in_order("abcd", lambda a, b: f"({a}{b})") == "(((ab)c)d)"
    assert sum_in_order([3], lambda a, b: a + b) == 3
    assert sum_in_order([], lambda a, b: a + b) is None
