"""Rows of the history, and messages about rounds and about runs that do not begin."""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Final

from fedgc.errors import numbered
from fedgc.history import ClientRow, RoundRow
from fedgc.messages import SUMMED
from fedgc.round.departures import LEFT
from fedgc.round.machine import Round
from fedgc.round.scheduler import WorkSummary
from fedgc.run.chunk_table import Holdings

SPENT: Final = (
    "its sum was asked for and made no new model; no site masks one model for two sums: begin a run with "
    "another seed"
)
ALL_LEFT: Final = "all clients have left"
NAMED: Final = 3  # clients in a remark
NOTHING: Final = ("empty", "aborted")  # outcomes without any finished work


def fault_of(over: Round) -> str:
    """Return the first fault of a client in this round, with the client; empty if there was none."""
    failures = zip(over.plan.clients, over.statistics.failure, strict=True)
    return next((f"{client}: {failure}" for client, failure in failures if failure), "")


def awaited_in(over: Round) -> frozenset[str]:
    """Return the clients that a round with a sum waited for and that gave nothing by then."""
    if over.outcome not in SUMMED:
        return frozenset()
    return frozenset(over.plan.clients[w] for w in over.statistics.awaited)


def have_left(row: RoundRow) -> bool:
    """Whether no client of a round has failed; one that was lost after it had said that it leaves has not."""
    return all(each.failure in ("", LEFT) for each in row.clients)


def row_of(over: Round, summary: WorkSummary, *, coded: bool) -> RoundRow:
    """Return the row of a closed round."""
    plan, result = over.plan, over.result
    statistics, solution = over.statistics, result.solution if result else None
    whole = 1 if coded and result else 0  # under masks each client sends one vector for all its work
    return RoundRow(
        round=over.assignment.number,
        version=over.assignment.version,
        started=over.started_at,
        working_s=over.working_s,
        collecting_s=over.closed_at - over.started_at - over.working_s,
        outcome=over.outcome or "stopped",
        chunks=len(plan.chunks),
        covered=summary.covered,
        short=over.short,
        replicas=plan.placement.replicas,
        blocks=solution.blocks if solution else whole,
        needed=len(solution.needed) if solution else len(result.counted) if result else 0,
        amplification=solution.amplification if solution else None,
        error=over.error,
        loss=summary.loss,
        samples=plan.samples,
        skips=statistics.skips,
        takes=statistics.takes,
        pruned=statistics.pruned,
        repairs=statistics.repairs,
        reason="; ".join(filter(None, [over.reason, *_remarks(over)])),
        clients=tuple(_client_row(over, w, coded=coded) for w in range(len(plan.clients))),
    )


def _remarks(over: Round) -> Iterator[str]:
    """Return notes on a round for the user."""
    statistics, plan = over.statistics, over.plan
    if plan.chosen_from:
        yield f"asked {len(plan.clients)} of {plan.chosen_from} clients"
    if late := len(over.roster.late):
        yield f"{late} updates of earlier rounds" if late > 1 else "1 update of an earlier round"
    if part := statistics.counted_in_part:
        yield f"{numbered(len(part), 'chunk')} in part, the first is {part[0]}: updates far longer than usual"
    if without := _without_model(over):
        more = f" and {len(without) - NAMED} more" if len(without) > NAMED else ""
        yield f"the model was still on its way to {', '.join(without[:NAMED])}{more}"
    if statistics.disputed:
        clients_w = sorted({w for disputing in statistics.disputed.values() for w in disputing})
        clients = ", ".join(plan.clients[w] for w in clients_w)
        yield f"replicas of {len(statistics.disputed)} chunks differ among {clients}: unknown whose are wrong"


def _without_model(over: Round) -> list[str]:
    """Return the clients that a round with a sum has ended without, as their model takes longer."""
    roster = over.roster
    if over.outcome not in SUMMED:
        return []
    loading = over.loading - roster.deaf  # of those nothing is known before they report
    awaited = (w for w in sorted(roster.live) if not over.statistics.counted[w])
    return [over.plan.clients[w] for w in awaited if over.plan.clients[w] in loading]


def _client_row(over: Round, w: int, *, coded: bool) -> ClientRow:
    statistics = over.statistics
    finished = statistics.finished[w] if coded else statistics.counted[w] + statistics.discarded[w]
    # A client that waits at gate.max-gap reports the time of steps that it did in earlier rounds.
    step_s = statistics.step_s[w] if finished or statistics.steps[w] else []
    mean = sum(step_s) / len(step_s) if step_s else 0.0
    return ClientRow(
        client=over.plan.clients[w],
        finished=finished,
        counted=statistics.counted[w],
        steps=statistics.steps[w],
        busy_s=statistics.busy_s[w],
        step_s=mean if step_s else None,
        spread_s=math.sqrt(sum((each - mean) ** 2 for each in step_s) / len(step_s)) if step_s else None,
        refused=statistics.refused[w],
        failure=statistics.failure[w],
    )


def with_coverage(row: RoundRow, over: Round, holdings: Holdings, present: Collection[str]) -> RoundRow:
    """Return the row with its data coverage, and with clients whose data was refused."""
    short, refused = set(row.short), holdings.refused
    summed = row.outcome in SUMMED
    there = (chunk for chunk in over.plan.chunks if holdings.knows(chunk.number))
    counted = sum(chunk.samples for chunk in there if chunk.number not in short)
    planned = tuple(
        replace(each, refused=each.refused + 1) if each.client in refused else each for each in row.clients
    )
    listed = {each.client for each in row.clients}
    idle = [client for client in refused if client in present and client not in listed]
    others = tuple(ClientRow(client, refused=1, failure=refused[client]) for client in idle)
    return replace(
        row,
        clients=planned + others,
        known_samples=over.plan.samples if over.plan.chosen_from else holdings.samples,
        counted_samples=counted if summed else 0,
        left_out=left_out(refused),
    )


def left_out(refused: Mapping[str, str]) -> str:
    """Return the clients whose data was refused, and the first one's reason."""
    if not refused:
        return ""
    count = f"{len(refused)} clients were" if len(refused) > 1 else "1 client was"
    client, why = next(iter(refused.items()))
    return f"{count} refused data: {client}: {why}"


def chunkless(present: Mapping[str, Collection[int]], refused: Mapping[str, str]) -> str:
    """Return how many of the clients hold no chunk, and why."""
    count = sum(not numbers for numbers in present.values())
    why = left_out(refused)
    return f", and {count} that hold no chunk{f' ({why})' if why else ''}" if count else ""


def caused(cause: str, what: str) -> str:
    """Return what happened with its cause, if that is known, before it.

    >>> caused("a: no disk", "3 rounds in a row gave nothing"), caused("", "it ended")
    ('a: no disk; 3 rounds in a row gave nothing', 'it ended')
    """
    return f"{cause}; {what}" if cause else what


def fewer_would_do(seen: int, least: int, wanted: int) -> str:
    """Return the setting with which a run begins with the present clients, if there are some.

    >>> fewer_would_do(2, 1, 3)
    '; min-clients = 2 begins with them'
    """
    return f"; min-clients = {seen} begins with them" if least <= seen < wanted else ""
