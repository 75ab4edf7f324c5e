"""The log line of a round."""

from fedgc.history import RoundRow


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
