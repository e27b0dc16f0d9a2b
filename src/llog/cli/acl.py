"""`llog acl …`: what principals may do. Commands work on the metadata store; brokers follow within seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from llog.cli.exits import FAILED
from llog.cli.frame import on_log, with_stores
from llog.cli.output import AsJson, DryRun, print_report, print_result

if TYPE_CHECKING:
    from llog.log.context import LogContext
    from llog.security.acl import Acl, AclFilter
    from llog.settings import Settings

app = typer.Typer(help="Access control lists: what principals may do.", no_args_is_help=True)

PrincipalName = Annotated[str, typer.Argument(metavar="PRINCIPAL", help="Such as User:ada; User:* is everybody.")]
OperationName = Annotated[str, typer.Argument(metavar="OPERATION", help="READ, WRITE, DESCRIBE, … or ALL.")]
KindName = Annotated[str, typer.Argument(metavar="TYPE", help="topic, group, cluster or transactional-id.")]
ResourceName = Annotated[str, typer.Argument(metavar="NAME", help="Of the resource; * is all of the type.")]
Host = Annotated[str, typer.Option("--host", help="Only from this address; * is any.")]
_ANY_HOST = "*"


@app.command()
@with_stores("metadata", audit="acl.create")
def add(
    settings: Settings,
    principal: PrincipalName,
    operation: OperationName,
    kind: KindName,
    name: ResourceName = "kafka-cluster",
    prefixed: Annotated[bool, typer.Option("--prefixed", help="NAME is a prefix of names.")] = False,
    deny: Annotated[bool, typer.Option("--deny", help="Deny instead of allow; a denial outweighs all else.")] = False,
    host: Host = _ANY_HOST,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Allow a principal an operation."""
    from llog.security.acl import Acl, Operation, PatternType, Permission, ResourceType, named
    from llog.security.changes import create_acls

    acl = Acl(
        principal,
        host,
        named(ResourceType, kind),
        name,
        PatternType.PREFIXED if prefixed else PatternType.LITERAL,
        named(Operation, operation),
        Permission.DENY if deny else Permission.ALLOW,
    ).checked()
    if not dry_run:
        on_log(settings, lambda context: create_acls(context, [acl]))
    document = {**_document(acl), "dry_run": dry_run}
    print_result(as_json, document, f"{'would add' if dry_run else 'added'}: {acl}")


@app.command(name="list")
@with_stores("metadata")
def list_all(
    settings: Settings,
    principal: Annotated[str | None, typer.Option("--principal", help="Only of this principal.")] = None,
    kind: Annotated[str | None, typer.Option("--type", help="Only about this type of resources.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="Only those that cover this name.")] = None,
    as_json: AsJson = False,
) -> None:
    """List access control entries."""
    wanted = _filter(principal, kind, name)

    async def read(context: LogContext) -> list[Acl]:
        from llog.security.changes import list_acls

        return [acl for acl in await list_acls(context) if wanted.matches(acl)]

    _print(as_json, on_log(settings, read), empty="no ACLs")


@app.command()
@with_stores("metadata", audit="acl.delete")
def remove(
    settings: Settings,
    principal: PrincipalName,
    operation: Annotated[str | None, typer.Option("--operation", help="Only entries for this operation.")] = None,
    kind: Annotated[str | None, typer.Option("--type", help="Only about this type of resources.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="Only entries with exactly this name.")] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Remove the entries of a principal, or some of them."""
    from llog.security.acl import Operation, PatternType, named
    from llog.security.changes import delete_acls, list_acls

    wanted = _filter(principal, kind, name)._replace(pattern=PatternType.ANY)
    if operation is not None:
        wanted = wanted._replace(operation=named(Operation, operation))

    async def work(context: LogContext) -> list[Acl]:
        if dry_run:
            return [acl for acl in await list_acls(context) if wanted.matches(acl)]
        return (await delete_acls(context, [wanted]))[0]

    _print(as_json, on_log(settings, work), empty="no such ACLs")


@app.command()
@with_stores("metadata")
def check(
    settings: Settings,
    principal: PrincipalName,
    operation: OperationName,
    kind: KindName,
    name: ResourceName = "kafka-cluster",
    host: Annotated[str, typer.Option("--host", help="The client's address.")] = "127.0.0.1",
    as_json: AsJson = False,
) -> None:
    """Say whether a principal may do something, and by which entries. Exits with 1 if not."""
    from llog.security.acl import EVERYONE, WILDCARD, Operation, ResourceType, named
    from llog.security.changes import list_acls
    from llog.security.rules import Access

    wanted, resource = named(Operation, operation), named(ResourceType, kind)
    acls = on_log(settings, list_acls)
    is_super = principal in settings.super_users
    allowed = is_super or Access(principal, host, acls).allows(wanted, resource, name)
    about = [
        str(acl)
        for acl in acls
        if acl.resource_type is resource
        and acl.covers(name)
        and acl.principal in (principal, EVERYONE)
        and acl.host in (host, WILDCARD)
    ]
    verdict = "allowed" if allowed else "denied"
    reason = "a super user" if is_super else "; ".join(about) or "no entry is about it"
    document = {"principal": principal, "allowed": allowed, "super_user": is_super, "entries": about}
    print_result(as_json, document, f"{verdict}: {reason}")
    if not allowed:
        raise typer.Exit(FAILED)


def _filter(principal: str | None, kind: str | None, name: str | None) -> AclFilter:
    from llog.security.acl import AclFilter, PatternType, ResourceType, named

    resource = ResourceType.ANY if kind is None else named(ResourceType, kind)
    return AclFilter(principal, None, resource, name, PatternType.MATCH if name else PatternType.ANY)


_COLUMNS = ("principal", "permission", "operation", "type", "name", "pattern", "host")


def _document(acl: Acl) -> dict[str, object]:
    return dict(zip(_COLUMNS, _row(acl), strict=True))


def _row(acl: Acl) -> tuple[str, ...]:
    return (
        acl.principal,
        acl.permission.name,
        acl.operation.name,
        acl.resource_type.name,
        acl.name,
        acl.pattern.name,
        acl.host,
    )


def _print(as_json: bool, acls: list[Acl], *, empty: str) -> None:
    print_report(as_json, [_document(acl) for acl in acls], _COLUMNS, [_row(acl) for acl in acls], empty=empty)
