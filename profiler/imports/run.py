"""One run of `import-costs`: from the options to the table and what is said about it."""

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from profiler.cliffs import LAYER, find_cliffs
from profiler.imports.datasheet import Hardware, load_hardware
from profiler.imports.roofline import Roofline
from profiler.imports.silicon import Silicon, default_engine
from profiler.imports.silicon_source import SiliconSource
from profiler.imports.table import DatasheetSource, PriceSource, roofline_of, write_import
from profiler.imports.vidur import VidurSource, read_vidur
from simulator.errors import InputError, nearest
from simulator.models import ModelShape, load_model

SOURCES = ("aiconfigurator", "datasheet")


@dataclass(frozen=True, slots=True)
class Options:
    """The command line of `import-costs`."""

    source: str
    model: str
    gpu: str
    tp: int = 1
    engine: str | None = None
    flops_share: float = 1.0
    out: str | None = None
    force: bool = False
    quiet: bool = False
    command: str = "import-costs"


def import_costs(options: Options) -> None:
    """Write the table. Raises InputError."""
    shape, hardware = load_model(options.model), load_hardware(options.gpu)
    if options.flops_share != 1:
        if options.source != "datasheet":
            raise InputError("only datasheet has a peak to lower", key="--flops-share")
        hardware = hardware.lowered(options.flops_share)
    path = _writable(options, shape)
    source = _source(options, shape, hardware)
    rows = write_import(path, source, shape, options.tp, hardware, options.command, options.quiet)
    if options.quiet:
        return
    modelled = int((rows["repeats"] == 0).sum())
    print(f"{len(rows)} rows in {path}, {modelled} of them from the roofline model")
    print("\n".join([*source.notes(), *largest_steps(rows)]))


def largest_steps(rows: pd.DataFrame, most: int = 3) -> list[str]:
    """The largest steps from t to t + 1 tokens, of the matrix products of a layer together, from 64 tokens on."""
    steps = [cliff for cliff in find_cliffs(rows) if cliff.operator == LAYER and cliff.tokens >= 64]
    if not steps:
        return ["no two neighbouring token counts: cliffs are smoothed over"]
    steps.sort(key=lambda step: -abs(step.growth))
    return [_told(step.tokens, step.growth) for step in steps[:most]]


def _told(tokens: int, growth: float) -> str:
    return f"{tokens + 1} tokens cost {abs(growth):.0%} {'more' if growth > 0 else 'less'} than {tokens}"


def _writable(options: Options, shape: ModelShape) -> Path:
    shard = f"@tp{options.tp}" if options.tp > 1 else ""
    path = Path(options.out or f"{shape.name}-{options.gpu}{shard}.csv")
    if path.suffix != ".csv":
        raise InputError(f'a table is a .csv file, not "{path.name}"', key="--out")
    if path.is_dir():
        raise InputError(f"{path} is a folder; name a file", key="--out")
    if path.exists() and not options.force:
        raise InputError(f"{path} exists; --force overwrites it", key="--out")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}", key="--out") from None
    return path


def _source(options: Options, shape: ModelShape, hardware: Hardware) -> PriceSource:
    """Where the times come from. Raises InputError for an unknown one."""
    roofline = roofline_of(shape, options.tp, hardware)
    if options.source == "datasheet":
        return DatasheetSource(roofline)
    if options.source == "aiconfigurator":
        return _silicon(options, roofline)
    path = Path(options.source)
    if not path.exists():
        hint = nearest(options.source, SOURCES, "sources")
        raise InputError(f'no source "{options.source}"; {hint}, or a folder with mlp.csv', key="SOURCE")
    return VidurSource(roofline, read_vidur(path, shape, options.tp))


def _silicon(options: Options, roofline: Roofline) -> SiliconSource:
    folder = roofline.hardware.sheet.silicon
    if folder is None:
        raise InputError(f"aiconfigurator-core has no measurements of {options.gpu}; use datasheet", key="--gpu")
    return SiliconSource(roofline, Silicon(folder, options.engine or default_engine(folder)))
