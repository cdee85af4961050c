"""Facts of a link from readings: least squares of the alpha-beta model."""

from dataclasses import replace

import pytest

from profiler.link_fit import fit_link
from tests.profiler.network_readings import by_model, reading

SIZES = [2**power for power in range(13, 29)]


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_readings_of_the_model_give_its_facts_back(ranks):
    """Whatever the number of ranks: a round's latency, the bandwidth, and a send's own latency."""
    found = fit_link(by_model(SIZES, 3.0, 100.0, send_us=15.0, ranks=ranks))
    assert found is not None
    assert (found.link.latency_us, found.link.gigabytes_per_s) == (3.0, 100.0)
    assert found.send_latency_us == pytest.approx(15.0)
    assert max(largest for _, largest in found.errors.values()) < 1e-9


def test_a_slow_largest_message_does_not_move_the_latency():
    """Residuals are relative: by plain ones, 1 ms more at 256 MB would outweigh all that is small."""
    readings = by_model(SIZES, 3.0, 100.0, send_us=15.0)
    slow = max(readings, key=lambda each: (each.exchange == "all_reduce", each.size))
    timing = replace(slow.timing, time_us=slow.timing.time_us + 1000)
    found = fit_link([*(each for each in readings if each is not slow), replace(slow, timing=timing)])
    assert found is not None
    assert found.link.latency_us == pytest.approx(3.0, rel=0.05)
    assert found.errors["all_reduce"][1] > 0.2


def test_no_latency_is_negative():
    """Where half the size takes less than half the time it is nothing, and the bandwidth is fitted again."""
    readings = [reading("all_reduce", 10**6, 1.0), reading("all_reduce", 10**7, 20.0)]
    found = fit_link(readings)
    assert found is not None
    assert found.link.latency_us == 0
    # weights of 1 and 1/20: times of 1 kB are x, and (1000 x - 1)^2 + (10000 x / 20 - 1)^2 is least
    assert found.link.gigabytes_per_s == pytest.approx((1000**2 + 500**2) / (1000 + 500), rel=1e-3)


@pytest.mark.parametrize(
    "readings",
    [
        by_model([8192], 3.0, 100.0, 15.0),
        [reading("all_reduce", 8192, 20.0), reading("all_reduce", 2**20, 10.0), reading("send", 8192, 20.0)],
        [reading("send", 8192, 15.0), reading("send", 2**20, 25.0)],
        [],
    ],
    ids=["one size", "larger is faster", "sends alone", "nothing"],
)
def test_no_bandwidth_no_link(readings):
    """A link that the readings do not tell is not made up."""
    assert fit_link(readings) is None


def test_all_gathers_do_not_count():
    """They would give the latency of another kernel."""
    readings = by_model(SIZES, 3.0, 100.0, send_us=15.0)
    assert fit_link([*readings, reading("all_gather", 8192, 500.0)]) == fit_link(readings)


def test_the_words_state_model_method_and_errors():
    """For the YAML."""
    words = str(fit_link(by_model(SIZES, 3.0, 100.0, send_us=15.0)))
    assert "alpha-beta model, least squares of relative errors" in words
    assert "(send: 15 us)" in words
    assert "all_reduce off by 0% in the median, 0% at most; send off by" in words
