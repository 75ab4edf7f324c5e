"""Programs whose processes are killed: each trains the same work, and counts its steps in files.

Those of other frameworks run in an interpreter that has their packages.
"""
