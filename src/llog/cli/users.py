"""`llog user …`: who may authenticate, and by what. Commands work on the metadata store; brokers follow within seconds.

Passwords are read from the terminal, or from standard input where that is none, never from the command line, which
other users of the machine can read. A token is shown once.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from llog.cli.exits import NOT_FOUND
from llog.cli.frame import on_log, with_stores
from llog.cli.output import AsJson, DryRun, Yes, ask, instant, print_json, print_report, print_result

if TYPE_CHECKING:
    from llog.log.context import LogContext
    from llog.security.records import UserRecord
    from llog.settings import Settings

app = typer.Typer(help="Users of Kafka and HTTP clients: passwords and tokens.", no_args_is_help=True)
token_app = typer.Typer(help="Bearer tokens of users, for HTTP.", no_args_is_help=True)
app.add_typer(token_app, name="token")

UserName = Annotated[str, typer.Argument(metavar="USER", help="The user's name, without 'User:'.")]
TokenName = Annotated[str, typer.Argument(metavar="NAME", help="A name for the token, to revoke it by.")]
NoPassword = Annotated[bool, typer.Option("--no-password", help="The user has tokens only.")]


def _password() -> str:
    """Asked for twice at a terminal, else the first line of standard input."""
    from llog.errors import InvalidArgument

    if sys.stdin.isatty():
        return str(typer.prompt("Password", hide_input=True, confirmation_prompt=True))
    line = sys.stdin.readline().rstrip("\r\n")
    if not line:
        raise InvalidArgument("password", "standard input must hold it in its first line")
    return line


@app.command()
@with_stores("metadata", audit="user.create")
def create(settings: Settings, user: UserName, no_password: NoPassword = False, as_json: AsJson = False) -> None:
    """Create a user with a password."""
    from llog.security.changes import create_user, credentials_of

    credentials = {} if no_password else credentials_of(_password())
    on_log(settings, lambda context: create_user(context, user, credentials))
    print_result(as_json, {"user": user}, f"created user {user}; without ACLs it has no rights (llog acl add)")


@app.command(name="list")
@with_stores("metadata")
def list_all(settings: Settings, as_json: AsJson = False) -> None:
    """List users, with what they can authenticate by."""
    from llog.security.changes import list_users

    users = on_log(settings, list_users)
    rows = [(name, ", ".join(sorted(one.scram)), str(len(one.tokens))) for name, one in users.items()]
    documents = [_document(name, one) for name, one in users.items()]
    print_report(as_json, documents, ("user", "password for", "tokens"), rows, empty="no users")


@app.command()
@with_stores("metadata")
def describe(settings: Settings, user: UserName, as_json: AsJson = False) -> None:
    """Show a user: mechanisms, tokens and ACLs."""
    from llog.security.acl import USER_PREFIX
    from llog.security.changes import list_acls, list_users

    async def read(context: LogContext) -> tuple[UserRecord | None, list[str]]:
        acls = [str(acl) for acl in await list_acls(context) if acl.principal == USER_PREFIX + user]
        return (await list_users(context)).get(user), acls

    found, acls = on_log(settings, read)
    if found is None:
        typer.echo(f"llog: no such user: {user}", err=True)
        raise typer.Exit(NOT_FOUND)
    if as_json:
        print_json({**_document(user, found), "acls": acls})
        return
    typer.echo(f"user {user}, created {instant(found.created_at_ms)}")
    for mechanism, one in sorted(found.scram.items()):
        typer.echo(f"  password for {mechanism} and PLAIN, {one.iterations} iterations")
    for token in found.tokens:
        end = "" if token.expires_at_ms is None else f", valid until {instant(token.expires_at_ms)}"
        typer.echo(f"  token {token.name}, created {instant(token.created_at_ms)}{end}")
    for acl in acls:
        typer.echo(f"  {acl}")


@app.command()
@with_stores("metadata", audit="user.password")
def passwd(settings: Settings, user: UserName, as_json: AsJson = False) -> None:
    """Change a user's password. Connections that are open stay so until they authenticate again."""
    from llog.security.changes import credentials_of, set_scram

    credentials = credentials_of(_password())
    on_log(settings, lambda context: set_scram(context, user, credentials, create=False))
    print_result(as_json, {"user": user}, f"changed the password of user {user}")


@app.command()
@with_stores("metadata", audit="user.delete")
def delete(
    settings: Settings, user: UserName, dry_run: DryRun = False, yes: Yes = False, as_json: AsJson = False
) -> None:
    """Delete a user with its passwords and tokens. Its ACLs stay."""
    from llog.security.changes import NoSuchUser, delete_user, list_users

    found = on_log(settings, list_users).get(user)
    if found is None:
        raise NoSuchUser(user)
    if not (dry_run or yes):
        ask(f"delete user {user} with {len(found.tokens)} tokens?")
    if not dry_run:
        on_log(settings, lambda context: delete_user(context, user))
    document = {**_document(user, found), "dry_run": dry_run}
    print_result(as_json, document, f"{'would delete' if dry_run else 'deleted'} user {user}")


@token_app.command(name="add")
@with_stores("metadata", audit="user.token")
def add_token(
    settings: Settings,
    user: UserName,
    name: TokenName,
    days: Annotated[int | None, typer.Option("--days", min=1, max=3_650, help="How long it is valid.")] = None,
    as_json: AsJson = False,
) -> None:
    """Make a token and print it; it cannot be shown again."""
    from llog.security.changes import add_token as make

    async def work(context: LogContext) -> str:
        end_ms = None if days is None else context.now_ms() + days * 86_400_000
        return await make(context, user, name, end_ms)

    token = on_log(settings, work)
    print_result(as_json, {"user": user, "name": name, "token": token}, token)


@token_app.command(name="revoke")
@with_stores("metadata", audit="user.token")
def revoke_token(settings: Settings, user: UserName, name: TokenName, as_json: AsJson = False) -> None:
    """Revoke a token."""
    from llog.security.changes import revoke_token as revoke

    on_log(settings, lambda context: revoke(context, user, name))
    print_result(as_json, {"user": user, "name": name}, f"revoked token {name} of user {user}")


def _document(name: str, user: UserRecord) -> dict[str, object]:
    """Nothing that verifies a password or a token."""
    return {
        "user": name,
        "created_at_ms": user.created_at_ms,
        "mechanisms": {mechanism: {"iterations": one.iterations} for mechanism, one in sorted(user.scram.items())},
        "tokens": [
            {"name": token.name, "created_at_ms": token.created_at_ms, "expires_at_ms": token.expires_at_ms}
            for token in user.tokens
        ],
    }
