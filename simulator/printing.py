"""Tables on the terminal."""

from rich.console import Console
from rich.table import Table


def print_table(console: Console, table: Table) -> None:
    """Print without the spaces that fill each line: they would come along where a table is copied."""
    with console.capture() as shown:
        console.print(table)
    console.out("\n".join(line.rstrip() for line in shown.get().splitlines()), highlight=False)
