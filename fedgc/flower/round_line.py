"""The row of a round: its log line, and what the links know of its clients."""

from dataclasses import replace

from fedgc.history import ClientRow, RoundRow
from fedgc.links.links import Link


def line_of(row: RoundRow) -> str:
    """Return the log line of a round."""
    up = sum(client.up_bytes for client in row.clients)
    down = sum(client.down_bytes for client in row.clients)
    control = sum(client.control_bytes for client in row.clients)
    loss = "-" if row.loss is None else f"{row.loss:.4g}"
    return (
        f"round {row.round} {row.outcome} version={row.version} loss={loss}"
        f" covered={row.covered}/{row.chunks} blocks={row.blocks} clients={len(row.clients)}"
        f" working_s={row.working_s:.3f} collecting_s={row.collecting_s:.3f}"
        f" up={up} down={down} control={control} discarded={row.discarded} repairs={row.repairs}"
        f" reason={row.reason!r}"
    )


def with_traffic(row: ClientRow, link: Link, refused: int) -> ClientRow:
    """Return a client's row with its bytes, and with what was refused beside `refused` events."""
    amounts = link.settle(row.client)
    return replace(
        row,
        up_bytes=amounts.up_bytes,
        down_bytes=amounts.down_bytes,
        control_bytes=amounts.control_bytes,
        upload_s=amounts.upload_s,
        download_s=amounts.download_s,
        refused=row.refused + amounts.refused + refused,
        link=link.link(row.client),
    )
