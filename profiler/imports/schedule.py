"""The constants of the attention kernel's replay for an imported table, fitted to its rows as for a measured one."""

from dataclasses import replace

import numpy as np
import pandas as pd

from profiler.fit import fit_aloud
from simulator.cost_table import CostTable, TableMetadata

NOT_FITTED = "the attention kernel's schedule could not be fitted to the rows; its constants are a guess from a few"
FITTED = (
    "decodes of unlike contexts, several chunks and chunks beside decodes are priced by replaying the kernel's schedule"
    " as fitted to the rows; attention_model.error says how far it is from them"
)


def with_attention_model(rows: pd.DataFrame, metadata: TableMetadata, quiet: bool = True) -> TableMetadata:
    """`metadata` with `attention_model`, or with a note where there is none to be had. Some tens of seconds.

    Unless `quiet` the progress is shown.
    """
    attention = rows[rows["operator"] == "attention"]
    decodes, chunks = attention["decodes"] > 0, attention["prefills"] > 0
    kinds = (decodes & ~chunks, ~decodes & (attention["prefills"] == 1), decodes & chunks)
    if not all(kind.any() for kind in kinds):
        return replace(metadata, notes=(*metadata.notes, NOT_FITTED))
    table = CostTable("", {str(name): rows[name].to_numpy() for name in rows}, metadata, "")
    try:
        times = fit_aloud(table, "import-costs", quiet)
    except np.linalg.LinAlgError:  # rows that say nothing of the constants
        return replace(metadata, notes=(*metadata.notes, NOT_FITTED))
    return replace(metadata, attention_model=times, notes=(*metadata.notes, FITTED))
