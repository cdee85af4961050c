"""The measured tables of the PyPI package `aiconfigurator-core` (Apache-2.0), read from where it is installed.

Its data lie in `aiconfigurator_core/systems/data/<gpu>/<family>/<engine>/<version>/<table>.parquet`; times in
milliseconds. `gemm_perf`: m tokens, n output and k input features, by `gemm_dtype`. `context_attention_perf`: prompts
of `isl` tokens without cached context, by batch, heads and KV heads. `generation_attention_perf`: decodes after `step`
cached tokens. Nothing of it is imported as code, and nothing is copied: the numbers stay in the package.
"""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import duckdb

from simulator.errors import InputError, nearest

PACKAGE = "aiconfigurator_core"
ENGINES = ("vllm", "sglang", "trtllm")
DTYPE = "bfloat16"
FAMILIES = {
    "gemm_perf": "gemm",
    "context_attention_perf": "attention",
    "generation_attention_perf": "attention",
}
ATTENTION_COLUMNS = (
    "kernel_source", "batch_size", "isl", "step", "num_heads", "num_key_value_heads", "head_dim", "attn_dtype",
    "kv_cache_dtype", "latency",
)  # fmt: skip

Shape = tuple[int, int]
"""Output and input features of a matrix product; or heads and KV heads of attention."""


def systems_folder() -> Path:
    """Where the package keeps its data. Raises InputError where it is not installed."""
    spec = find_spec(PACKAGE)
    for root in (spec.submodule_search_locations or []) if spec else []:
        if (Path(root) / "systems/data").is_dir():
            return Path(root) / "systems/data"
    raise InputError(
        'the package aiconfigurator-core is not installed; install it with pip install "chunkwise[imports]"',
        key="aiconfigurator",
    )


@dataclass(frozen=True, slots=True)
class Silicon:
    """The tables of one GPU (a folder of the package) as one engine's kernels gave them."""

    gpu: str
    engine: str

    def table(self, name: str) -> Path | None:
        """The newest version of a table, or None."""
        folder = systems_folder() / self.gpu / FAMILIES[name] / self.engine
        found = sorted(folder.glob(f"*/{name}.parquet"), key=lambda path: _version_key(path.parent.name))
        return found[-1] if found else None

    def version(self, name: str) -> str:
        """The engine and its version from which a table is."""
        path = self.table(name)
        return f"{self.engine} {path.parent.name}" if path else self.engine

    def token_counts(self) -> int:
        """How many token counts the matrix products have; 0 without a table."""
        if self.table("gemm_perf") is None:
            return 0
        query = f"select count(distinct m) from t where gemm_dtype = '{DTYPE}'"
        return int(self._rows("gemm_perf", query, ("gemm_dtype", "m"))[0][0])

    def gemm_us(self) -> dict[Shape, dict[int, float]]:
        """Microseconds by tokens of each (n, k) in bf16. Raises InputError where the table is missing."""
        query = f"select n, k, m, median(latency) from t where gemm_dtype = '{DTYPE}' group by all order by all"
        products: dict[Shape, dict[int, float]] = {}
        for n, k, m, latency in self._rows("gemm_perf", query, ("gemm_dtype", "m", "n", "k", "latency")):
            products.setdefault((n, k), {})[m] = 1000 * latency
        return products

    def prefill_us(self, head_dim: int) -> dict[Shape, dict[tuple[int, int], float]]:
        """Microseconds by (prompts, tokens of each), of each (heads, KV heads), no cached context."""
        return self._attention("context_attention_perf", "batch_size, isl", f"step = 0 and head_dim = {head_dim}")

    def decode_us(self, head_dim: int) -> dict[Shape, dict[tuple[int, int], float]]:
        """Microseconds by (decodes, entries each attends to, its own token included), of each (heads, KV heads)."""
        return self._attention("generation_attention_perf", "batch_size, step + 1", f"head_dim = {head_dim}")

    def kernel(self) -> str:
        """The attention kernel of most decodes."""
        query = "select kernel_source from t group by 1 order by count(*) desc, 1 limit 1"
        rows = self._rows("generation_attention_perf", query, ("kernel_source",))
        return str(rows[0][0]) if rows else "unknown"

    def _attention(self, name: str, places: str, which: str) -> dict[Shape, dict[tuple[int, int], float]]:
        """Times of full attention in bf16; of several kernels the one with most rows of a head layout."""
        full = "coalesce(window_size, 0) = 0" if "window_size" in self._columns(name) else "true"
        query = f"""
            with kept as (select *, count(*) over (partition by num_heads, num_key_value_heads, kernel_source) as held
                          from t where kv_cache_dtype = '{DTYPE}' and attn_dtype = '{DTYPE}' and {which} and {full}),
            one as (select *, rank() over (partition by num_heads, num_key_value_heads, {places}
                                                 order by held desc, kernel_source) as place from kept)
            select num_heads, num_key_value_heads, {places}, median(latency) from one where place = 1
            group by all order by all"""
        times: dict[Shape, dict[tuple[int, int], float]] = {}
        for heads, kv_heads, first, second, latency in self._rows(name, query, ATTENTION_COLUMNS):
            times.setdefault((heads, kv_heads), {})[first, second] = 1000 * latency
        return times

    def _columns(self, name: str) -> set[str]:
        path = self._required(name)
        described = duckdb.execute("select name from parquet_schema(?)", [str(path)]).fetchall()
        return {row[0] for row in described}

    def _rows(self, name: str, query: str, columns: tuple[str, ...]) -> list[tuple[Any, ...]]:
        """The answer to `query` over the table as `t`. Raises InputError where a column or the table is missing."""
        path = self._required(name)
        try:
            there = self._columns(name)
            for column in columns:
                if column not in there:
                    raise InputError(f"column missing; {nearest(column, there, 'columns')}", path=path, key=column)
            connection = duckdb.connect()
            connection.read_parquet(str(path)).create_view("t")
            return list(connection.execute(query).fetchall())
        except duckdb.Error as error:
            raise InputError(f"not readable: {str(error).splitlines()[0]}", path=path) from None

    def _required(self, name: str) -> Path:
        path = self.table(name)
        if path is None:
            held = [engine for engine in ENGINES if Silicon(self.gpu, engine).table(name)]
            listed = f"engines with it: {', '.join(held)}" if held else "no engine has it"
            problem = f"aiconfigurator-core has no {name} of {self.gpu} under {self.engine}; {listed}"
            raise InputError(problem, key="--engine")
        return path


def _version_key(version: str) -> list[tuple[int, int, str]]:
    """Versions in order: numbers as numbers, a release after its candidates."""
    parts: list[tuple[int, int, str]] = []
    for part in version.replace("rc", ".rc.").replace("post", ".post.").split("."):
        if part:
            rank = {"rc": -1, "post": 1}.get(part, 0)
            parts.append((rank, int(part) if part.isdigit() else 0, "" if part.isdigit() else part))
    return [*parts, (0, -1, "")]


def default_engine(gpu: str) -> str:
    """The engine with most token counts in its matrix products, the first of ENGINES among equals."""
    counts = {engine: Silicon(gpu, engine).token_counts() for engine in ENGINES}
    return max(ENGINES, key=lambda engine: counts[engine])
