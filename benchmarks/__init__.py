"""Benchmarks of fedgc against other methods; each returns one `Report`."""

from benchmarks.report import Report, machine

__all__ = ["Report", "machine"]
