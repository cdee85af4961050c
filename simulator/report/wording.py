"""Numbers and names as people read them: three digits, milliseconds below a second, names cut to fit."""

import math
from collections.abc import Sequence


def significant(value: float) -> str:
    """Three significant digits without an exponent and with thousands separators: 0.0123, 1.23, 45.6, 1,235.

    From a thousand on every integer digit is kept. NaN and infinities are a dash.
    """
    if not math.isfinite(value):
        return "-"
    if value == 0:
        return "0"
    rounded = float(f"{value:.3g}")  # first, so that 9.996 becomes 10.0 and not 10.00
    digits = 2 - math.floor(math.log10(abs(rounded)))
    return f"{rounded:.{digits}f}" if digits > 0 else f"{value:,.0f}"


def duration(seconds: float) -> str:
    """Seconds with the unit that suits their size: 45.2 ms, 1.84 s."""
    if not math.isfinite(seconds):
        return "-"
    return f"{significant(seconds * 1e3)} ms" if abs(seconds) < 0.9995 else f"{significant(seconds)} s"


def tick(seconds: float) -> str:
    """A latency axis' round tick: 20 ms, 1 s."""
    if seconds == 0:
        return "0"
    return f"{seconds * 1e3:g} ms" if abs(seconds) < 1 else f"{seconds:,g} s"


def count(number: float) -> str:
    """An axis' round count: 500, 2k, 1.5M."""
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:g}{suffix}"
    return f"{number:g}"


def shorten(text: str, limit: int) -> str:
    """`text` on one line in at most `limit` characters, the middle left out: names differ at both ends."""
    line = " ".join(text.split())
    if len(line) <= limit:
        return line
    head = (limit - 1) // 2
    return f"{line[:head]}…{line[head + 1 - limit :]}"


def listed(names: Sequence[str]) -> str:
    """'a', 'a and b', 'a, b and c'."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def opening(text: str) -> str:
    """`text` at the start of a sentence; p99 stays small."""
    return text if text[1:2].isdigit() else text[:1].upper() + text[1:]
