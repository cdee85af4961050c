"""Random hosts: their times are of the order of the steps of the random workloads, a microsecond or a few."""

from hypothesis import strategies as st

from simulator.engines.profile import Aftermath, HostTime, Launch, Mode
from tests.reference_host import Host

SIZES = [[], [1, 2, 4, 8], [1, 2, 4, 8, 16, 24, 32, 48, 64, 96]]
host_times = st.builds(HostTime, st.sampled_from([0, 0, 0.125, 0.5, 1, 3, 15]), st.sampled_from([0, 0, 0.125, 0.375]))
gpu_times = st.builds(HostTime, st.sampled_from([0, 0, 0.25, 1]), st.sampled_from([0, 0.125]))
launches = st.builds(Launch, host_times, st.sampled_from([0, 0, 0.25, 1, 6]), gpu_times)
modes = st.builds(
    Mode,
    schedule=host_times,
    collect_us=st.sampled_from([0, 0, 0.25, 2]),
    update=host_times,
    between=host_times,
    full=launches,
    piecewise=launches,
    eager=launches,
    aftermath=st.builds(Aftermath, st.sampled_from([0, 0.375, 2]), st.sampled_from([0, 1, 3, 10])),
    arrival_us=st.sampled_from([0, 0, 0.75, 5]),
    delivery_us=st.sampled_from([0, 1.25]),
)
hosts = st.builds(Host, modes, st.sampled_from(SIZES), st.sampled_from([1, 2]), st.booleans())
