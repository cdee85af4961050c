"""How far the roofline model is from published times, as Markdown tables.

    python -m profiler.imports.residuals

One line a series, whether the fit saw it or not; then each series of few points by its tokens. `docs/import-costs.md`
shows what this prints.
"""

from collections.abc import Iterator, Sequence
from statistics import mean, median

from profiler.imports.datasheet import load_hardware
from profiler.imports.published import Series, published

MOST_SHOWN = 20


def overview(series: Sequence[Series]) -> Iterator[str]:
    """A table of all series: points, mean, median and largest absolute error."""
    yield "| published times | role | points | mean error | median error | largest | bias |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for one in series:
        errors = one.errors(load_hardware(one.gpu))
        sizes = [abs(error) for error in errors]
        numbers = f"{mean(sizes):.1%} | {median(sizes):.1%} | {max(sizes):.0%} | {median(errors):+.1%}"
        yield f"| {one.name} | {one.role} | {len(errors)} | {numbers} |"


def by_point(one: Series) -> Iterator[str]:
    """A table of one series: published time, the model's, and the error, by tokens or decodes."""
    decoding = one.points[0][0].operator == "attention"
    unit, scale = ("us", 1.0) if decoding else ("ms", 1000.0)
    yield f"{one.name} ({one.role}). {one.source}."
    yield ""
    yield f"| {'decodes x entries' if decoding else 'tokens'} | published, {unit} | model, {unit} | error |"
    yield "| --- | --- | --- | --- |"
    for (point, time), error in zip(one.points, one.errors(load_hardware(one.gpu)), strict=True):
        place = f"{point.decodes} x {point.decode_context}" if decoding else f"{point.tokens}"
        digits = 0 if decoding else 2
        shown = f"{time / scale:.{digits}f} | {time / scale * (1 + error):.{digits}f} | {error:+.1%}"
        yield f"| {place} | {shown} |"


def report() -> str:
    """All tables."""
    series = published()
    parts = ["\n".join(overview(series))]
    parts += ["\n".join(by_point(one)) for one in series if len(one.points) <= MOST_SHOWN]
    return "\n\n".join(parts)


if __name__ == "__main__":
    print(report())
