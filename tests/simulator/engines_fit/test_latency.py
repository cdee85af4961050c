"""The time from a request's arrival to the scheduler, and from the engine to its client, by the bounds of a log."""

from dataclasses import replace

import numpy as np
import pytest

from simulator.engines.latency import arrival_and_delivery, most_agreed, read_client_times
from simulator.errors import InputError
from simulator.step_log_file import read_step_log
from tests.simulator.engines_fit.synthetic import SYNC, batches, requests_csv, run, write_log

STEPS = batches(2000)
INF = np.inf


@pytest.fixture
def recorded(tmp_path):
    """A log, and what clients saw of its requests with these latencies."""
    clock = run(STEPS, SYNC, in_flight=False)
    path = write_log(tmp_path / "steps.csv.gz", STEPS, clock)

    def make(arrival_s=0.0004, delivery_s=0.0005):
        csv = requests_csv(tmp_path / "requests.csv", STEPS, clock, arrival_s, delivery_s)
        return read_step_log(path), read_client_times(csv)

    return make


@pytest.mark.parametrize("arrival_s", [0.0, 0.0004, 0.02, -0.003])
def test_latencies_come_back(recorded, arrival_s):
    """Within a millisecond of room; clocks of two processes may make one of them negative."""
    found = arrival_and_delivery(*recorded(arrival_s))
    assert 0 <= found.room_s < 0.001
    assert found.arrival_s == pytest.approx(arrival_s, abs=found.room_s)
    assert found.delivery_s == pytest.approx(0.0005, abs=1e-7)


def test_a_request_that_had_to_wait_is_no_bound(recorded):
    """A call that left others waiting may have seen it."""
    log, clients = recorded()
    expected = arrival_and_delivery(log, clients)
    log.num_waiting[:] += 1  # somebody always waits
    assert arrival_and_delivery(log, clients).room_s == INF
    log.num_waiting[:] -= 1
    arrival_s = clients.arrival_s.copy()
    for step in range(2, len(STEPS), 2):  # these came before the step before, which had no room for them
        for request, *_ in STEPS[step].chunks:
            log.num_waiting[step - 1] += 1
            arrival_s[request] -= 0.02
    clients = replace(clients, arrival_s=arrival_s)
    assert arrival_and_delivery(log, clients).arrival_s == pytest.approx(expected.arrival_s, abs=0.001)


def test_requests_of_another_run_are_refused(recorded):
    """Arrivals that most steps contradict."""
    log, clients = recorded()
    random = np.random.default_rng(0)
    others = np.sort(random.uniform(1, log.schedule_start_s[-1], len(clients.arrival_s)))
    clients = replace(clients, arrival_s=others)
    with pytest.raises(InputError, match=r"does not fit the log: \d+ of \d+ arrivals agree with its steps"):
        arrival_and_delivery(log, clients)


def test_prompts_of_another_run_are_refused(recorded):
    """The log computed more tokens of one than the file says it has."""
    log, clients = recorded()
    clients = replace(clients, prompt_tokens=clients.prompt_tokens - (np.arange(len(clients.prompt_tokens)) == 3))
    with pytest.raises(
        InputError, match=r"line \d+: request 3 has a prompt of \d+ tokens and more, in the request file"
    ):
        arrival_and_delivery(log, clients)


def test_a_log_of_other_requests_is_refused(recorded):
    """None of its requests is in the file."""
    log, clients = recorded()
    none = type(clients)(*(column[:0] for column in (clients.arrival_s, clients.first_token_s, clients.prompt_tokens)))
    with pytest.raises(InputError, match="none of the requests in the log is in the request file"):
        arrival_and_delivery(log, none)


def test_requests_that_never_finished_do_not_matter(recorded):
    """They have no first token; if none has, that is said."""
    log, clients = recorded()
    first = np.where(np.arange(len(clients.first_token_s)) % 2, clients.first_token_s, np.nan)
    assert arrival_and_delivery(log, replace(clients, first_token_s=first)).delivery_s == pytest.approx(
        0.0005, abs=1e-7
    )
    with pytest.raises(InputError, match="no request of the file has a first token"):
        arrival_and_delivery(log, replace(clients, first_token_s=first * np.nan))


@pytest.mark.parametrize(
    ("low", "high", "stretch"),
    [
        ([0.0], [2.0], (0, 2)),
        ([-INF], [2.0], (-INF, 2)),
        ([-INF, -INF, -INF], [2.0, 3.0, 1.0], (-INF, 1)),
        ([0.0, 1.0, 1.5], [2.0, 3.0, 1.7], (1.5, 1.7)),
        ([-INF, -INF, 5.0], [1.0, 2.0, 6.0], (-INF, 1)),
        ([0.0, 4.0], [2.0, 6.0], (0, 2)),
        ([0.0, 0.0], [2.0, 2.0], (0, 2)),
        ([0.0, 2.0], [2.0, 4.0], (0, 2)),
        ([1.0], [1.0], (1, 1)),
        ([-INF, 3.0, 3.0], [1.0, 4.0, 5.0], (3, 4)),
    ],
)
def test_the_stretch_that_most_intervals_share(low, high, stretch):
    """The first, if there are several."""
    assert most_agreed(np.array(low), np.array(high)) == stretch


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("arrival_s,first_token_s\n0,1\n", "prompt_tokens: column missing"),
        ("arrival_s,first_token_s,prompt_tokens\n", "arrival_s: should be numbers"),
        ("arrival_s,first_token_s,prompt_tokens\n0,soon,5\n", "first_token_s: should be numbers"),
        ("arrival_s,first_token_s,prompt_tokens\n0,1,5\n1,2,\n", "should be known of every request"),
        ("arrival_s,first_token_s,prompt_tokens\n,1,5\n1,2,5\n", "should be known of every request"),
        ("", "cannot be read"),
    ],
)
def test_a_request_file_that_is_wrong_is_named(tmp_path, text, message):
    """In one sentence."""
    path = tmp_path / "requests.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=rf"requests\.csv.*{message}"):
        read_client_times(path)
