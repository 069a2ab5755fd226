"""What a terminal has room for."""

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table


def fits(table: Table, console: Console) -> bool:
    """Whether the table can be printed without cutting or wrapping a cell."""
    return Measurement.get(console, console.options.update(max_width=10_000), table).maximum <= console.width
