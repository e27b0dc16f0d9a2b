"""`llog fence` and `llog unfence`: close a log to appends, and open it again. Readers go on either way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from llog.cli.exits import FAILED
from llog.cli.output import AsJson, print_json
from llog.cli.stores import MetadataUrl

if TYPE_CHECKING:
    from llog.formats.values import ControlRecord
    from llog.settings import Settings
from typing import Final

# What an operator may say about why a log is closed (HTTP takes as much).
FENCE_REASON_CHARS_MAX: Final = 1_000


Epoch = Annotated[
    int | None,
    typer.Option("--expected-epoch", help="Only if the log is at this epoch; makes a repeated command harmless."),
]


def fence(
    topic: str,
    partition: int,
    reason: Annotated[str, typer.Option("--reason", help="Shown to whoever is refused.")] = "",
    expected_epoch: Epoch = None,
    as_json: AsJson = False,
    metadata_url: MetadataUrl = None,
) -> None:
    """Close a log to appends, until `llog unfence`."""
    import asyncio

    from llog.settings import Settings

    settings = Settings.from_env(metadata_url=metadata_url)
    control = asyncio.run(_change(settings, topic, partition, True, _checked(reason), expected_epoch))
    _print(topic, partition, control, as_json, wanted="FENCED")


def unfence(
    topic: str,
    partition: int,
    expected_epoch: Epoch = None,
    as_json: AsJson = False,
    metadata_url: MetadataUrl = None,
) -> None:
    """Open a log to appends again."""
    import asyncio

    from llog.settings import Settings

    settings = Settings.from_env(metadata_url=metadata_url)
    control = asyncio.run(_change(settings, topic, partition, False, "", expected_epoch))
    _print(topic, partition, control, as_json, wanted="OPEN")


def _checked(reason: str) -> str:
    """It becomes part of the log's control record, which is read and written with every append."""
    from llog.errors import InvalidArgument

    if len(reason) > FENCE_REASON_CHARS_MAX:
        raise InvalidArgument("--reason", f"{len(reason)} characters, at most {FENCE_REASON_CHARS_MAX}")
    try:
        reason.encode()
    except UnicodeEncodeError:
        raise InvalidArgument("--reason", f"{reason!r} is not UTF-8") from None
    return reason


async def _change(
    settings: Settings, topic: str, partition: int, closing: bool, reason: str, expected_epoch: int | None
) -> ControlRecord:
    """Do it, then tell how the log stands: somebody else may have changed it in between."""
    from llog.log import fence as fencing
    from llog.log.keys import Log, check_partition, check_topic
    from llog.log.read.view import view
    from llog.opening import opened_log

    log = Log(check_topic(topic), check_partition(partition))
    async with opened_log(settings) as stores:
        if closing:
            await fencing.fence(stores.context, log, expected_epoch=expected_epoch, reason=reason)
        else:
            await fencing.unfence(stores.context, log, expected_epoch=expected_epoch)
        return (await view(stores.context, log, strict=True)).control


def _print(topic: str, partition: int, control: ControlRecord, as_json: bool, *, wanted: str) -> None:
    if as_json:
        print_json(
            {
                "topic": topic,
                "partition": partition,
                "log_state": control.log_state,
                "epoch": control.epoch,
                "fence_reason": control.fence_reason,
            }
        )
    else:
        reason = f" ({control.fence_reason})" if control.fence_reason else ""
        typer.echo(f"{topic}:{partition} is {control.log_state}{reason}, epoch {control.epoch}")
    if control.log_state != wanted:
        advice = f"look at it, then repeat with --expected-epoch {control.epoch}, or without"
        typer.echo(f"llog: it is not {wanted}: the epoch is {control.epoch} by now; {advice}", err=True)
        raise typer.Exit(FAILED)
