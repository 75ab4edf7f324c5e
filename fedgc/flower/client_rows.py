"""A client's row of a round, with what its link has counted."""

from dataclasses import replace

from fedgc.history import ClientRow
from fedgc.links.links import Link


def counted(row: ClientRow, link: Link, refused: int) -> ClientRow:
    """Return the row with the bytes and times of its link, which counts anew, and the messages refused."""
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
