"""`simulate-trace --list`: what can be named on the command line."""

import sys
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

from simulator.printing import print_table


def print_listing(what: str) -> None:
    """Print the policies with their options, the cost tables, models, engine profiles or trace formats."""
    makers = {
        "policies": _policies,
        "costs": _costs,
        "models": _models,
        "engines": _engines,
        "networks": _networks,
        "formats": _formats,
    }
    console = Console()
    console.width = max(console.width, 110 if what == "costs" else 100)
    print_table(console, makers[what]())


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for place, column in enumerate(columns):
        table.add_column(column, overflow="fold", no_wrap=place == 0)
    return table


def _policies() -> Table:
    from simulator.plugins import experiment_files, policy_names, setting_names

    table = _table("policy", "what, and options with their defaults (- = by GPU or model)")
    for name in sorted({*policy_names(), *setting_names()}):
        what, options = _policy(name) if name in policy_names() else _setting(name)
        shown = [f"  {key} ({'-' if value is None else value})" for key, value in options.items()]
        table.add_row(name, Text("\n".join([what, *shown])))
    table.add_row()
    for path in experiment_files():
        table.add_row("", Text(f"simulate-trace policies/{path.name}: {_title(path)}"))
    return table


def _title(path: Path) -> str:
    """A YAML's first line, a comment."""
    return path.read_text(encoding="utf-8").splitlines()[0].lstrip("# ").replace("`", "")


def _policy(name: str) -> tuple[str, dict[str, Any]]:
    """The first paragraph of a policy's module, and its options."""
    from simulator.plugins import policy_class, policy_options

    kind = policy_class(name)
    text = (sys.modules[kind.__module__].__doc__ or "").split("\n\n")[0]
    return " ".join(text.replace("`", "").split()), policy_options(kind)


def _setting(name: str) -> tuple[str, dict[str, Any]]:
    """The first line of a ready-made setting, and all options of its policy as it sets them."""
    from simulator.plugins import setting_files

    path = next(path for path in setting_files() if path.stem.replace("_", "-") == name)
    options = yaml.safe_load(path.read_text(encoding="utf-8"))
    policy = options.pop("policy")
    return f"{_title(path)} A setting of {policy}.", {**_policy(policy)[1], **options}


def _costs() -> Table:
    from simulator.cost_table import read_metadata
    from simulator.named_tables import table_names

    table = _table("costs (= the same table)", "GPU", "model", "TP", "attention", "measured")
    names: dict[Path, list[str]] = {}
    for name, path in sorted(table_names().items()):
        names.setdefault(path, []).append(name)
    for path, alike in names.items():
        made = read_metadata(path.with_suffix(".yaml"))
        attention = f"{made.attention.backend} {made.attention.version}"
        degree = str(made.tensor_parallel)
        measured = made.date[:10] if made.source == "measured" else f"no, {made.source}"
        table.add_row("\n= ".join(sorted(alike, key=len)), made.gpu.name, made.model.name, degree, attention, measured)
    return table


def _models() -> Table:
    from simulator.models import load_model, model_names

    table = _table("model", "layers", "hidden", "heads (KV)", "weights", "KV cache a token")
    for name in model_names():
        shape = load_model(name)
        heads = f"{shape.num_attention_heads} ({shape.num_key_value_heads})"
        weights, entry = _size(shape.weight_bytes, 1000, ("kB", "MB", "GB")), _size(shape.kv_bytes_per_token, 1024)
        table.add_row(name, str(shape.num_hidden_layers), str(shape.hidden_size), heads, weights, entry)
    return table


def _size(number: float, base: int, units: tuple[str, ...] = ("KiB",)) -> str:
    """Bytes in the largest of `units` (powers of `base`) that they fill; below the first, in bytes."""
    for power, unit in reversed(list(enumerate(units, 1))):
        if number >= base**power:
            return f"{number / base**power:.{1 if unit == 'GB' else 0}f} {unit}"
    return f"{number:.0f} B"


def _engines() -> Table:
    from simulator.engines.profile import NONE, engine_names, load_engine

    table = _table("engine", "what, and what its modes were fitted on")
    table.add_row(NONE, "GPU time only")
    for name in sorted(engine_names()):
        profile = load_engine(name)
        assert profile is not None
        modes = {"synchronous": profile.synchronous, "asynchronous": profile.asynchronous}
        fits = [f"  {mode}: {what.fit or 'no fit is recorded'}" for mode, what in modes.items()]
        table.add_row(name, Text("\n".join([profile.about, *fits])))
    return table


def _networks() -> Table:
    from simulator.network import load_network, network_names

    table = _table("network", "what; an all-reduce of 64 kB and 16 MB among two, us", "usual for")
    for name in sorted(network_names()):
        network = load_network(name)
        times = " and ".join(f"{network.all_reduce_us(size, 2):.3g}" for size in (2**16, 2**24))
        measured = "measured" if network.all_reduce else "by a datasheet"
        table.add_row(name, f"{network.about}: {times}, {measured}", ", ".join(network.default_for))
    return table


def _formats() -> Table:
    from simulator.formats import formats

    table = _table("format", "recognised by")
    for reader in formats():
        table.add_row(reader.NAME, reader.DESCRIPTION)
    return table
