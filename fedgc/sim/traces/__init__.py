"""Traces of real machines: a table of times, and link speeds in JSON."""

from fedgc.sim.traces.links import read_links
from fedgc.sim.traces.table import read_names, read_table

__all__ = ["read_names", "read_table", "read_links"]
