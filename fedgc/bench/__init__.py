"""Benches: what the project claims, measured side by side; each gives one `Report`."""

from fedgc.bench.report import Report, machine

__all__ = ["Report", "machine"]
