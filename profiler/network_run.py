"""One run of `profile-network`: check the machine, measure the ranks, write readings and network."""

import sys
import time

from profiler.clocks import ClockSampler
from profiler.network_file import network_of, write_text, yaml_of
from profiler.network_rows import Reading, csv_of, shown
from profiler.network_setup import DEFAULT_SIZES, Options, group_of, measurement_of, require_writable, tasks_of
from profiler.progress import ProgressDisplay
from profiler.ranks import measure_ranks
from simulator.network import Network, parse_network


def profile_network(options: Options, started_s: float) -> None:
    """Measure and write. Raises InputError; RankError; on Ctrl-C nothing is written."""
    require_writable(options)
    group = group_of(options)
    sizes = options.sizes or DEFAULT_SIZES[options.device]
    tasks = tasks_of(sizes, group)
    readings: list[Reading] = []
    notes = ["a trial on a CPU: no network of GPUs"] if group.device == "cpu" else []
    with ClockSampler(group.device) as clocks, ProgressDisplay(len(tasks), 0, options.quiet) as display:

        def report(result: Reading | str) -> None:
            if isinstance(result, str):
                notes.append(result)
                _tell(options, f"note: {result}")
                return
            readings.append(result)
            display.update(len(readings), f"{result.exchange} of {shown(result.size)}")

        measure_ranks(group, tasks, report)
    measurement = measurement_of(options, group, notes, clocks.seen()["sm_median"])
    network = network_of(options.name or options.out.stem, readings, measurement)
    write_text(options.readings, csv_of(readings))
    write_text(options.out, yaml_of(network))
    _conclude(options, parse_network(options.out), len(readings), time.monotonic() - started_s)


def _conclude(options: Options, network: Network, readings: int, seconds: float) -> None:
    (all_reduce,) = network.all_reduce
    ends = " and ".join(f"{us:.4g} us for {shown(size)}" for size, us in (all_reduce.points[0], all_reduce.points[-1]))
    _tell(options, f"{network.about}: an all-reduce takes {ends}")
    if network.link is not None:
        facts = f"{network.link.latency_us:.3g} us a round, {network.link.gigabytes_per_s:.4g} GB/s"
        _tell(options, f"link: {facts}, fitted")
    _tell(options, f"{readings} readings in {options.readings}, the network in {options.out}, {seconds:.0f} s")


def _tell(options: Options, line: str) -> None:
    if not options.quiet:
        print(f"profile-network: {line}", file=sys.stderr)
