"""Persistence: checkpoints of a run, and the history of all clients and runs.

The two parts are independent. `checkpoint` keeps what a run needs to resume (files, no database);
`database.Store` keeps the history (SQLite or PostgreSQL) and returns the speeds of clients before the next
run. A driver hands records to a `writer.Keeper`, which writes them in a thread of its own and spools them to
a file while the database cannot take them.

Nothing is imported here, so that code that only needs checkpoints does not load a database library.
"""
