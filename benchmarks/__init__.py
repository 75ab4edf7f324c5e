"""Benches: what the project claims, measured side by side; each gives one `Report`."""

from benchmarks.report import Report, machine

__all__ = ["Report", "machine"]
