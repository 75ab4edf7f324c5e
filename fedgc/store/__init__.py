"""The memory of the system: what every client did, kept across runs, restarts and crashes.

Two memories that fail apart. `checkpoint` keeps what a run needs to go on (files, no database);
`database.Store` keeps what happened (SQLite or PostgreSQL), and gives the speeds back before the next
run. A driver hands records to a `keeper.Keeper`, which writes them beside the training and keeps them
aside while the database cannot take them.

Nothing is imported here, so that whoever needs checkpoints alone does not load a database library.
"""
