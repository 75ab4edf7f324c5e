"""The tables in SQLAlchemy; `migrations` holds how a database reached them.

The history of a client is kept per task, since the speed at one task says nothing about another. `tracks`
holds the totals of a client at a task. `recents` is a ring of the last `WINDOW` rounds in which it took part:
an index of constant size, so that the speeds of a fleet are read in the same time after ten rounds and after
ten thousand.

`client_rounds` is the one table that grows with clients times rounds, so its only key is its own, in the
order of writing (in SQLite the key *is* the table), and it holds numbers instead of texts. Times are seconds
since 1970 on the server's clock.
"""

from typing import Final

from sqlalchemy import BigInteger, Double, ForeignKey, String, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

WINDOW: Final = 32  # rounds of a client at a task from which speeds are computed


class Table(DeclarativeBase):
    """The base of all tables."""

    type_annotation_map = {float: Double}  # noqa: RUF012  SQLAlchemy's interface


class Task(Table):
    """A task by its name in the settings."""

    __tablename__ = "tasks"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)


class Client(Table):
    """A client by its identity; its name and node id may change."""

    __tablename__ = "clients"
    id: Mapped[int] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(unique=True)
    name: Mapped[str]
    site: Mapped[str]
    link: Mapped[str]
    first_seen: Mapped[float]
    last_seen: Mapped[float]


class Run(Table):
    """A run, resumed or not; `present` is the state of the current round.

    `initial_metrics` are those of the model before the first round, as JSON.
    """

    __tablename__ = "runs"
    id: Mapped[int] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(unique=True)
    task_id: Mapped[int] = mapped_column(ForeignKey("tasks.id"))
    settings: Mapped[str]
    state: Mapped[str]
    reason: Mapped[str]
    started: Mapped[float]
    ended: Mapped[float | None]
    present: Mapped[str]
    present_at: Mapped[float]
    initial_metrics: Mapped[str] = mapped_column(server_default="{}")


class Round(Table):
    """A round, with the totals of its clients, which outlive the client rows."""

    __tablename__ = "rounds"
    __table_args__ = (UniqueConstraint("run_id", "round"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("runs.id"))
    round: Mapped[int]
    version: Mapped[int]
    started: Mapped[float]
    working_s: Mapped[float]
    collecting_s: Mapped[float]
    outcome: Mapped[str]
    chunks: Mapped[int]
    covered: Mapped[int]
    short: Mapped[str]
    replicas: Mapped[int]
    blocks: Mapped[int]
    needed: Mapped[int]
    amplification: Mapped[float | None]
    error: Mapped[float | None]
    loss: Mapped[float | None]
    samples: Mapped[int] = mapped_column(BigInteger)
    skips: Mapped[int]
    takes: Mapped[int]
    pruned: Mapped[int]
    repairs: Mapped[int]
    reason: Mapped[str]
    metrics: Mapped[str]
    clients: Mapped[int]
    finished: Mapped[int] = mapped_column(BigInteger)
    counted: Mapped[int] = mapped_column(BigInteger)
    up_bytes: Mapped[int] = mapped_column(BigInteger)
    down_bytes: Mapped[int] = mapped_column(BigInteger)
    control_bytes: Mapped[int] = mapped_column(BigInteger)
    known_samples: Mapped[int] = mapped_column(BigInteger)
    counted_samples: Mapped[int] = mapped_column(BigInteger)
    left_out: Mapped[str]


class ClientRound(Table):
    """One client in one round. `implausible` counts its impossible claims."""

    __tablename__ = "client_rounds"
    __table_args__ = {"sqlite_with_rowid": False}  # noqa: RUF012  as SQLAlchemy asks for it
    round_id: Mapped[int] = mapped_column(ForeignKey("rounds.id"), primary_key=True, autoincrement=False)
    client_id: Mapped[int] = mapped_column(ForeignKey("clients.id"), primary_key=True, autoincrement=False)
    finished: Mapped[int]
    counted: Mapped[int]
    steps: Mapped[int]
    busy_s: Mapped[float]
    step_s: Mapped[float | None]
    spread_s: Mapped[float | None]
    upload_s: Mapped[float]
    download_s: Mapped[float]
    up_bytes: Mapped[int] = mapped_column(BigInteger)
    down_bytes: Mapped[int] = mapped_column(BigInteger)
    control_bytes: Mapped[int] = mapped_column(BigInteger)
    refused: Mapped[int]
    implausible: Mapped[int]
    failure: Mapped[str | None]
    link: Mapped[str | None]


class Score(Table):
    """The figures of one client for the model after a round, as JSON; round 0 is the initial model."""

    __tablename__ = "scores"
    __table_args__ = {"sqlite_with_rowid": False}  # noqa: RUF012  as SQLAlchemy asks for it
    run_id: Mapped[int] = mapped_column(ForeignKey("runs.id"), primary_key=True, autoincrement=False)
    round: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    client_id: Mapped[int] = mapped_column(ForeignKey("clients.id"), primary_key=True, autoincrement=False)
    samples: Mapped[int] = mapped_column(BigInteger)
    metrics: Mapped[str]


class Track(Table):
    """A client at a task: totals over all rounds, folded or not; `rows` also advances the ring."""

    __tablename__ = "tracks"
    __table_args__ = {"sqlite_with_rowid": False}  # noqa: RUF012  as SQLAlchemy asks for it
    task_id: Mapped[int] = mapped_column(ForeignKey("tasks.id"), primary_key=True, autoincrement=False)
    client_id: Mapped[int] = mapped_column(ForeignKey("clients.id"), primary_key=True, autoincrement=False)
    rows: Mapped[int]
    finished: Mapped[int] = mapped_column(BigInteger)
    counted: Mapped[int] = mapped_column(BigInteger)
    failures: Mapped[int]
    implausible: Mapped[int]


class Recent(Table):
    """The ring: the rows of a client's last rounds at a task in `client_rounds`.

    The slot precedes the client in the key: clients of one round are then written side by side.
    """

    __tablename__ = "recents"
    __table_args__ = {"sqlite_with_rowid": False}  # noqa: RUF012  as SQLAlchemy asks for it
    task_id: Mapped[int] = mapped_column(ForeignKey("tasks.id"), primary_key=True, autoincrement=False)
    slot: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    client_id: Mapped[int] = mapped_column(ForeignKey("clients.id"), primary_key=True, autoincrement=False)
    round_id: Mapped[int] = mapped_column(ForeignKey("rounds.id"))


class Summary(Table):
    """The folded client rows of one client in one run."""

    __tablename__ = "summaries"
    __table_args__ = {"sqlite_with_rowid": False}  # noqa: RUF012  as SQLAlchemy asks for it
    run_id: Mapped[int] = mapped_column(ForeignKey("runs.id"), primary_key=True, autoincrement=False)
    client_id: Mapped[int] = mapped_column(ForeignKey("clients.id"), primary_key=True, autoincrement=False)
    rows: Mapped[int]
    finished: Mapped[int] = mapped_column(BigInteger)
    counted: Mapped[int] = mapped_column(BigInteger)
    steps: Mapped[int] = mapped_column(BigInteger)
    busy_s: Mapped[float]
    timed: Mapped[int]
    step_sum_s: Mapped[float]
    step_squares: Mapped[float]
    upload_s: Mapped[float]
    download_s: Mapped[float]
    up_bytes: Mapped[int] = mapped_column(BigInteger)
    down_bytes: Mapped[int] = mapped_column(BigInteger)
    control_bytes: Mapped[int] = mapped_column(BigInteger)
    refused: Mapped[int]
    implausible: Mapped[int]
    failures: Mapped[int]


class Decision(Table):
    """A decision: what was chosen, from what, and why."""

    __tablename__ = "decisions"
    id: Mapped[int] = mapped_column(primary_key=True)
    stamp: Mapped[str | None] = mapped_column(String(64), unique=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("runs.id"), index=True)
    round: Mapped[int]
    at: Mapped[float]
    what: Mapped[str]
    basis: Mapped[str]
    reason: Mapped[str]


class Audit(Table):
    """Joins, refusals, keys; triggers prevent changes and removal of rows."""

    __tablename__ = "audit"
    id: Mapped[int] = mapped_column(primary_key=True)
    stamp: Mapped[str | None] = mapped_column(String(64), unique=True)
    at: Mapped[float]
    run: Mapped[str]
    kind: Mapped[str]
    who: Mapped[str]
    what: Mapped[str]


class Queued(Table):
    """A run in the queue. Numbers of removed entries are not given again."""

    __tablename__ = "queue"
    __table_args__ = {"sqlite_autoincrement": True}  # noqa: RUF012  as SQLAlchemy asks for it
    id: Mapped[int] = mapped_column(primary_key=True)
    run: Mapped[str]
    folder: Mapped[str]
    settings: Mapped[str]
    priority: Mapped[int]
    state: Mapped[str]
    reason: Mapped[str]
    added: Mapped[float]
    began: Mapped[float | None]
    ended: Mapped[float | None]
    process: Mapped[str]
