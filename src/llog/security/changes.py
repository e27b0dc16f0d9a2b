"""Changes of users and ACLs in the metadata store.

A change is made in two writes: the record itself, then the count by which every process notices it (`SecurityFeed`). A
process that dies between them leaves a change that others see a minute later.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from llog.errors import InvalidArgument, LlogError, UncertainOutcome
from llog.formats.values import decode_value, encode_value
from llog.log.change import change_value, lost_race
from llog.log.context import LogChange, LogContext
from llog.security.acl import Acl, AclFilter
from llog.security.records import AclRecord, HttpToken, ScramCredential, SecurityState, UserRecord
from llog.security.scram import (
    HASHES,
    ITERATIONS_DEFAULT,
    SALT_BYTES,
    credential_of,
    salted_password,
)
from llog.security.view import acl_of

SECURITY_CHANGE_ROUNDS_MAX: Final = 20
USER_NAME_CHARS_MAX: Final = 100
USERS_MAX: Final = 10_000
ACLS_MAX: Final = 20_000
TOKENS_PER_USER_MAX: Final = 20
TOKEN_BYTES: Final = 32
PASSWORD_BYTES_MAX: Final = 1_024
_TOKEN_NAME_CHARS_MAX: Final = 100


class SecurityBusy(LlogError):
    """Others change the same user or ACL again and again: try later."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} was changed by others meanwhile: try again")


class NoSuchUser(InvalidArgument):
    def __init__(self, name: str) -> None:
        super().__init__("user", f"{name!r:.100} does not exist")


def check_user_name(name: str) -> str:
    if not 1 <= len(name) <= USER_NAME_CHARS_MAX or not name.isprintable() or name != name.strip():
        reason = f"{name!r:.100} must have 1 to {USER_NAME_CHARS_MAX} printable characters, no spaces around them"
        raise InvalidArgument("user", reason)
    return name


def credentials_of(password: str, *, iterations: int = ITERATIONS_DEFAULT) -> dict[str, ScramCredential]:
    """For every mechanism, from a new random salt. Takes some 10 ms."""
    encoded = password.encode()
    if not 1 <= len(encoded) <= PASSWORD_BYTES_MAX or "\x00" in password:
        raise InvalidArgument("password", f"must have 1 to {PASSWORD_BYTES_MAX} bytes, none of them zero")
    made = {}
    for mechanism, hash_name in HASHES.items():
        salt = secrets.token_bytes(SALT_BYTES)
        made[mechanism] = credential_of(
            salted_password(encoded, salt, iterations, hash_name), salt, iterations, hash_name
        )
    return made


# -- users -------------------------------------------------------------------------------------------------------------


async def create_user(context: LogContext, name: str, scram: Mapping[str, ScramCredential]) -> None:
    """`InvalidArgument` if the user exists."""
    check_user_name(name)
    await _check_count(context, users=True, more=1)
    now_ms, own = context.now_ms(), dict(scram)

    def decide(user: UserRecord | None) -> UserRecord | None:
        if user is not None and user.scram == own:
            return None  # an earlier round made it
        if user is not None:
            raise InvalidArgument("user", f"{name!r} exists: change its password instead")
        return UserRecord(scram=own, created_at_ms=now_ms)

    await _change_user(context, name, decide, "user.create")


async def set_scram(context: LogContext, name: str, scram: Mapping[str, ScramCredential], *, create: bool) -> None:
    """Set the given mechanisms and keep others. `NoSuchUser` unless the user exists or may be created."""
    check_user_name(name)
    now_ms = context.now_ms()

    def decide(user: UserRecord | None) -> UserRecord | None:
        if user is None and not create:
            raise NoSuchUser(name)
        known = user or UserRecord(created_at_ms=now_ms)
        wanted = known.scram | dict(scram)
        return None if user is not None and user.scram == wanted else replace(known, scram=wanted)

    await _change_user(context, name, decide, "user.password")


async def remove_scram(context: LogContext, name: str, mechanism: str) -> None:
    """`NoSuchUser` if the user has no such credential. A user that is left without credential and token is deleted."""
    seen = False

    def decide(user: UserRecord | None) -> UserRecord | None:
        nonlocal seen
        if user is None or mechanism not in user.scram:
            if seen:
                return None  # an earlier round removed it
            raise NoSuchUser(name)
        seen = True
        return replace(user, scram={known: one for known, one in user.scram.items() if known != mechanism})

    left = await _change_user(context, name, decide, "user.password")
    if left is not None and not left.scram and not left.tokens:
        await delete_user(context, name)


async def delete_user(context: LogContext, name: str) -> None:
    """`NoSuchUser`. Its ACLs stay: they name a principal, which need not be a user."""
    key = context.keys.user(check_user_name(name))
    record = await context.metadata.get(key, strict=True)
    if record is None:
        raise NoSuchUser(name)
    await context.metadata.delete(key)
    before = _shown(decode_value(UserRecord, record.value, key.path))
    await _count_change(context, LogChange("user.delete", name, before))


async def add_token(context: LogContext, name: str, token_name: str, expires_at_ms: int | None = None) -> str:
    """A new bearer token of the user, which nobody can read again. `NoSuchUser`; `InvalidArgument` for a name that a
    token of the user has."""
    if not 1 <= len(token_name) <= _TOKEN_NAME_CHARS_MAX or not token_name.isprintable():
        raise InvalidArgument("token name", f"must have 1 to {_TOKEN_NAME_CHARS_MAX} printable characters")
    token = secrets.token_hex(TOKEN_BYTES)
    digest = hashlib.sha256(token.encode()).digest()
    made = HttpToken(name=token_name, digest=digest, created_at_ms=context.now_ms(), expires_at_ms=expires_at_ms)

    def decide(user: UserRecord | None) -> UserRecord | None:
        if user is None:
            raise NoSuchUser(name)
        if any(known.digest == digest for known in user.tokens):
            return None
        if any(known.name == token_name for known in user.tokens):
            raise InvalidArgument(
                "token name", f"{name!r} has a token {token_name!r}: revoke it or choose another name"
            )
        if len(user.tokens) >= TOKENS_PER_USER_MAX:
            raise InvalidArgument("user", f"{name!r} has {TOKENS_PER_USER_MAX} tokens: revoke one")
        return replace(user, tokens=(*user.tokens, made))

    await _change_user(context, check_user_name(name), decide, "user.token")
    return token


async def revoke_token(context: LogContext, name: str, token_name: str) -> None:
    """`NoSuchUser`; `InvalidArgument` without such a token."""
    seen = False

    def decide(user: UserRecord | None) -> UserRecord | None:
        nonlocal seen
        if user is None:
            raise NoSuchUser(name)
        left = tuple(known for known in user.tokens if known.name != token_name)
        if len(left) == len(user.tokens):
            if seen:
                return None
            raise InvalidArgument("token name", f"{name!r} has no token {token_name!r:.100}")
        seen = True
        return replace(user, tokens=left)

    await _change_user(context, check_user_name(name), decide, "user.token")


async def _change_user(
    context: LogContext, name: str, decide: Callable[[UserRecord | None], UserRecord | None], action: str
) -> UserRecord | None:
    before: UserRecord | None = None

    def noting(user: UserRecord | None) -> UserRecord | None:
        nonlocal before
        before = user
        return decide(user)

    after, _ = await change_value(
        context,
        context.keys.user(name),
        UserRecord,
        noting,
        rounds_max=SECURITY_CHANGE_ROUNDS_MAX,
        busy=SecurityBusy(f"user {name!r}"),
        retry=lost_race,
    )
    shown = {} if before is None else _shown(before)
    await _count_change(context, LogChange(action, name, shown, {} if after is None else _shown(after)))
    return after


def _shown(user: UserRecord) -> dict[str, object]:
    """For audit lines: no verifier."""
    return {"mechanisms": ",".join(sorted(user.scram)), "tokens": ",".join(token.name for token in user.tokens)}


async def list_users(context: LogContext) -> dict[str, UserRecord]:
    users = {}
    async for record in context.metadata.scan_all(context.keys.users(), strict=True):
        parsed = context.keys.parse(record.key.path)
        if parsed is not None:
            users[parsed.name] = decode_value(UserRecord, record.value, record.key.path)
    return dict(sorted(users.items()))


# -- ACLs --------------------------------------------------------------------------------------------------------------


async def create_acls(context: LogContext, acls: Sequence[Acl]) -> None:
    """An entry that exists stays as it is. `InvalidArgument` for one that Kafka would refuse."""
    for acl in acls:
        acl.checked()
    await _check_count(context, users=False, more=len(acls))
    now_ms = context.now_ms()
    for acl in dict.fromkeys(acls):
        key = context.keys.acl(acl.id)
        record = AclRecord(
            principal=acl.principal,
            host=acl.host,
            resource_type=acl.resource_type,
            name=acl.name,
            pattern=acl.pattern,
            operation=acl.operation,
            permission=acl.permission,
            created_at_ms=now_ms,
        )
        await context.metadata.put(key, encode_value(record, key.path))
        context.on_change(LogChange("acl.create", str(acl)))
    if acls:
        await _count_change(context)


async def delete_acls(context: LogContext, filters: Sequence[AclFilter]) -> list[list[Acl]]:
    """The deleted entries, by filter; one that several filters match belongs to each."""
    known = await list_acls(context)
    matched = [[acl for acl in known if one.matches(acl)] for one in filters]
    deleted = dict.fromkeys(acl for acls in matched for acl in acls)
    for acl in deleted:
        await context.metadata.delete(context.keys.acl(acl.id))
        context.on_change(LogChange("acl.delete", str(acl)))
    if deleted:
        await _count_change(context)
    return matched


async def list_acls(context: LogContext) -> list[Acl]:
    acls = []
    async for record in context.metadata.scan_all(context.keys.acls(), strict=True):
        acl = acl_of(decode_value(AclRecord, record.value, record.key.path))
        if acl is not None:
            acls.append(acl)
    return sorted(acls)


# -- counting ----------------------------------------------------------------------------------------------------------


async def _count_change(context: LogContext, change: LogChange | None = None) -> None:
    """Other processes see the change. `change` is reported, as uncertain if they may not see it for a minute."""
    fresh_key = secrets.token_bytes(32)

    def decide(state: SecurityState | None) -> SecurityState:
        if state is None:
            return SecurityState(changes=1, salt_key=fresh_key)
        return replace(state, changes=state.changes + 1)

    certain = False
    try:
        await change_value(
            context,
            context.keys.security_state(),
            SecurityState,
            decide,
            rounds_max=SECURITY_CHANGE_ROUNDS_MAX,
            busy=_Uncounted(),
        )
        certain = True
    finally:
        if change is not None:
            context.on_change(change._replace(certain=certain))


class _Uncounted(UncertainOutcome):
    def __init__(self) -> None:
        super().__init__("the change is stored; other brokers may take a minute to see it")


async def _check_count(context: LogContext, *, users: bool, more: int) -> None:
    parent, limit = (context.keys.users(), USERS_MAX) if users else (context.keys.acls(), ACLS_MAX)
    count = 0
    async for _ in context.metadata.scan_all(parent):
        count += 1
    if count + more > limit:
        raise InvalidArgument("user" if users else "acl", f"there are {count} of at most {limit}")
