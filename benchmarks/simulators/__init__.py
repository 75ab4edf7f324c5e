"""Simulators as programs: each trains the work of `femnist_like`, and prints when each round ended.

Those of others run in an interpreter that has their packages.
"""
