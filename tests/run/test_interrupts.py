"""Signals as a request to stop."""

import math
import os
import signal

import pytest

from tff_agnostic.run.process import Interrupted, StopRequest


@pytest.fixture
def handled(monkeypatch):
    """Signals that reached the handlers which were there before; none ends the test session."""
    seen: list[int] = []
    previous = {
        number: signal.signal(number, lambda n, frame: seen.append(n))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    yield seen
    for number, handler in previous.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_noted_and_the_second_acts_as_usual(handled, number):
    with StopRequest(one_request_seconds=0.0) as stop:
        assert stop.signal_number is None
        stop.check("nothing")
        os.kill(os.getpid(), number)
        assert (stop.signal_number, handled) == (number, [])
        os.kill(os.getpid(), number)
        assert handled == [number]


def test_signals_that_come_together_are_one_request(handled):
    """As of `timeout`, which signals a process and then its group."""
    with StopRequest(one_request_seconds=math.inf) as stop:
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
            os.kill(os.getpid(), number)
        assert (stop.signal_number, handled) == (signal.SIGTERM, [])
    os.kill(os.getpid(), signal.SIGTERM)
    assert handled == [signal.SIGTERM]


def test_a_noted_signal_interrupts_at_the_next_check(handled):
    with StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Interrupted) as error:
            stop.check("round 3")
    assert str(error.value) == "stopped and saved after round 3"
    assert error.value.signal_number == signal.SIGTERM
    going_on = error.value.with_command("./run train --resume")
    assert str(going_on) == "stopped and saved after round 3; go on with: ./run train --resume"
    assert going_on.signal_number == signal.SIGTERM


def test_handlers_are_restored(handled):
    with StopRequest():
        pass
    os.kill(os.getpid(), signal.SIGINT)
    assert handled == [signal.SIGINT]
