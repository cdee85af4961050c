"""The network that readings make, as the YAML that `simulate-trace --network` reads."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import yaml

from profiler.exchange_timing import IN_GRAPHS
from profiler.link_fit import fit_link
from profiler.network_rows import GLOO, Reading, fastest, kernels_by_size, shown
from simulator.network import Measured, Measurement, Network

HEADER = "# Written by profile-network. Sizes in bytes, times in microseconds; docs/networks.md describes the keys.\n"
NO_LINK = "no link: the readings tell no bandwidth, since sizes do not differ or larger messages take no longer"


def network_of(name: str, readings: Sequence[Reading], measurement: Measurement) -> Network:
    """The fastest kernel's time at each size, and the link that they fit."""
    fit = fit_link(fastest(readings))
    on_cpu = any(reading.kernel == GLOO for reading in readings)
    if on_cpu:
        about = f"{measurement.ranks} processes on a CPU, a trial of profile-network"
    else:
        about = f"{measurement.ranks} x {measurement.gpu} of one host, in CUDA graphs"
    return Network(
        name=name,
        about=about,
        link=None if fit is None else fit.link,
        all_reduce=_measured("all_reduce", readings),
        all_gather=_measured("all_gather", readings),
        send=_measured("send", readings),
        sources=("measured by profile-network; `measurement` says how",),
        measurement=replace(measurement, notes=(*measurement.notes, NO_LINK if fit is None else str(fit))),
    )


def _measured(exchange: str, readings: Sequence[Reading]) -> tuple[Measured, ...]:
    chosen = fastest(reading for reading in readings if reading.exchange == exchange)
    if not chosen:
        return ()
    points = tuple((reading.size, round(reading.timing.time_us, 3)) for reading in chosen)
    return (Measured(chosen[0].ranks, points, _how(exchange, chosen)),)


def _how(exchange: str, chosen: Sequence[Reading]) -> str:
    """Kernels, and how they were launched, in words."""
    one_way = ", half of a way there and back" if exchange == "send" else ""
    repeats = chosen[0].timing.repeats
    launched = (
        f"launched one by one, median of {repeats} rounds"
        if chosen[0].kernel == GLOO
        else f"{IN_GRAPHS.many} in a CUDA graph, {IN_GRAPHS.few} above {shown(IN_GRAPHS.large)},"
        f" median of {repeats} replays"
    )
    return f"{kernels_by_size(chosen)}{one_way}; {launched}"


class _Dumper(yaml.SafeDumper):
    """Writes the tuples of frozen dataclasses as lists."""


_Dumper.add_representer(tuple, yaml.SafeDumper.represent_list)


def yaml_of(network: Network) -> str:
    """The YAML; keys that hold nothing are left out."""
    return HEADER + yaml.dump(
        _without_nothing(asdict(network)), Dumper=_Dumper, sort_keys=False, width=110, default_flow_style=None
    )


def _without_nothing(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nothing(each) for key, each in value.items() if each not in (None, (), "")}
    if isinstance(value, tuple):
        return tuple(map(_without_nothing, value))
    return value


def write_text(path: Path, text: str) -> None:
    """Write a file, whole or not at all."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(text, encoding="utf-8", newline="")
    partial.replace(path)
