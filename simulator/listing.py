"""`simulate-trace --list`: what can be named on the command line."""

from rich.console import Console
from rich.table import Table


def print_listing(what: str) -> None:
    """Print the policies with their options, the cost tables, models or trace formats."""
    makers = {"policies": _policies, "costs": _costs, "models": _models, "formats": _formats}
    console = Console()
    console.width = max(console.width, 100)
    console.print(makers[what]())


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for place, column in enumerate(columns):
        table.add_column(column, overflow="fold", no_wrap=place == 0)
    return table


def _policies() -> Table:
    from simulator.bundled import bundled_files
    from simulator.plugins import policy_class, policy_names, policy_options, setting_names

    table = _table("policy", "options (defaults; - = by GPU or model)", "what")
    for name in policy_names():
        kind = policy_class(name)
        options = "\n".join(f"{key} ({'-' if value is None else value})" for key, value in policy_options(kind).items())
        module = __import__(kind.__module__, fromlist=["__doc__"])
        table.add_row(name, options, (module.__doc__ or "").split("\n\n")[0].replace("\n", " "))
    for name in sorted(set(setting_names()) - set(policy_names())):
        path = next(path for path in bundled_files("policies", ".", f"{name}.yaml"))
        text = path.read_text(encoding="utf-8")
        options = "\n".join(line for line in text.splitlines() if line and not line.startswith("#"))
        table.add_row(name, options, text.splitlines()[0].lstrip("# "))
    return table


def _costs() -> Table:
    from simulator.cost_table import read_metadata, table_names

    table = _table("costs", "GPU", "model", "attention", "measured")
    for name, path in sorted(table_names().items()):
        made = read_metadata(path.with_suffix(".yaml"))
        attention = f"{made.attention.backend} {made.attention.version}"
        table.add_row(name, made.gpu.name, made.model.name, attention, made.date[:10])
    return table


def _models() -> Table:
    from simulator.models import load_model, model_names

    table = _table("model", "layers", "hidden", "heads (KV)", "weights", "KV cache a token")
    for name in model_names():
        shape = load_model(name)
        heads = f"{shape.num_attention_heads} ({shape.num_key_value_heads})"
        weights, entry = f"{shape.weight_bytes / 1e9:.1f} GB", f"{shape.kv_bytes_per_token / 1024:.0f} KiB"
        table.add_row(name, str(shape.num_hidden_layers), str(shape.hidden_size), heads, weights, entry)
    return table


def _formats() -> Table:
    from simulator.formats import formats

    table = _table("format", "recognised by")
    for reader in formats():
        table.add_row(reader.NAME, reader.DESCRIPTION)
    return table
