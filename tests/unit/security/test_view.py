"""Users and ACLs in the store, and the view that follows them."""

from __future__ import annotations

import pytest

from llog.errors import InvalidArgument, MetadataUnavailable
from llog.log.context import LogChange, LogContext
from llog.security.acl import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from llog.security.changes import (
    NoSuchUser,
    add_token,
    create_acls,
    create_user,
    credentials_of,
    delete_acls,
    delete_user,
    list_acls,
    list_users,
    remove_scram,
    revoke_token,
    set_scram,
)
from llog.security.security import Security
from llog.security.view import VIEW_AGE_MS_MAX, VIEW_TROUBLE_MS, SecurityFeed, SecurityView, read_view
from llog.settings import Settings
from llog.stores.metadata.memory import MemoryBacking, MemoryStore
from llog.stores.objects.memory import MemoryObjectStore
from tests.contexts import log_context

READ = Acl("User:ada", "*", ResourceType.TOPIC, "orders", PatternType.LITERAL, Operation.READ, Permission.ALLOW)
CREDENTIALS = credentials_of("pencil", iterations=4096)
"""Made once, because that takes a while."""


def context(backing: MemoryBacking | None = None) -> LogContext:
    return log_context(MemoryStore(backing or MemoryBacking()), MemoryObjectStore("memory://security"))


async def test_users_come_and_go_with_passwords_and_tokens() -> None:
    log = context()
    await create_user(log, "ada", CREDENTIALS)
    with pytest.raises(InvalidArgument, match="exists"):
        await create_user(log, "ada", {})
    await add_token(log, "ada", "ci")
    with pytest.raises(InvalidArgument, match="has a token"):
        await add_token(log, "ada", "ci")
    for mechanism in CREDENTIALS:
        await remove_scram(log, "ada", mechanism)
    assert list(await list_users(log)) == ["ada"]  # with its token
    await revoke_token(log, "ada", "ci")
    await delete_user(log, "ada")
    for change in (delete_user(log, "ada"), add_token(log, "ada", "ci"), set_scram(log, "ada", {}, create=False)):
        with pytest.raises(NoSuchUser):
            await change


@pytest.mark.parametrize("name", ["", " ada", "a\nda", "a" * 101])
async def test_a_name_that_no_user_can_have_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgument):
        await create_user(context(), name, {})


async def test_entries_are_made_once_and_deleted_by_filter() -> None:
    log = context()
    write = READ._replace(operation=Operation.WRITE)
    await create_acls(log, [READ, READ, write])
    await create_acls(log, [READ])
    assert await list_acls(log) == [READ, write]
    matched = await delete_acls(log, [AclFilter(operation=Operation.READ), AclFilter(principal="User:bob")])
    assert matched == [[READ], []]
    assert await list_acls(log) == [write]


async def test_every_change_is_seen_by_another_process() -> None:
    backing, now = MemoryBacking(), [0.0]
    own, other = context(backing), context(backing)
    views: list[SecurityView | None] = []
    feed = SecurityFeed(other, lambda: now[0], views.append)
    await feed.refresh()
    for change in (
        lambda: create_user(own, "ada", CREDENTIALS),
        lambda: set_scram(own, "ada", {}, create=False),
        lambda: create_acls(own, [READ]),
        lambda: delete_acls(own, [AclFilter()]),
        lambda: delete_user(own, "ada"),
    ):
        before = len(views)
        await change()
        await feed.refresh(whole=False)
        assert len(views) == before + 1
        await feed.refresh(whole=False)
        assert len(views) == before + 1  # nothing more is read


async def test_an_unreachable_store_leaves_the_view_in_force_until_it_is_too_old() -> None:
    log, now = context(), [0.0]
    views: list[SecurityView | None] = []
    feed = SecurityFeed(log, lambda: now[0], views.append)
    await feed.refresh()
    assert feed.trouble() == ""
    error = MetadataUnavailable("key", "the store is away")
    now[0] = VIEW_TROUBLE_MS
    feed._failed(error)
    assert "stay in force" in feed.trouble()
    assert len(views) == 1
    now[0] = VIEW_AGE_MS_MAX + 1
    feed._failed(error)
    assert "nobody but super users" in feed.trouble()
    assert views[-1] is None
    await feed.refresh(whole=False)
    assert views[-1] is not None
    assert feed.trouble() == ""


async def test_tokens_are_found_by_their_digest_until_they_end() -> None:
    log = context()
    settings = Settings.from_env({}, authorization=True, metadata_url="memory://x", objects_url="memory://x")
    security = Security(settings, log, lambda: 0.0)
    await create_user(log, "ada", {})
    lasting = await add_token(log, "ada", "lasting")
    ended = await add_token(log, "ada", "ended", log.now_ms() - 1)
    await security.changed()
    assert security.principal_of_token(lasting.encode()) == "User:ada"
    assert security.principal_of_token(ended.encode()) is None
    assert security.principal_of_token(b"guess") is None
    await revoke_token(log, "ada", "lasting")
    await security.changed()
    assert security.principal_of_token(lasting.encode()) is None


async def test_unknown_users_look_like_most_users() -> None:
    log = context()
    await create_user(log, "ada", CREDENTIALS)
    view = await read_view(log)
    real, is_real = view.credential("ada", "SCRAM-SHA-256")
    fake, is_fake_real = view.credential("nobody", "SCRAM-SHA-256")
    assert (is_real, is_fake_real) == (True, False)
    assert (fake.iterations, len(fake.salt)) == (real.iterations, len(real.salt))
    assert (await read_view(log)).credential("nobody", "SCRAM-SHA-256") == (fake, False)


async def test_changes_are_reported_without_what_verifies_a_password() -> None:
    from dataclasses import replace

    changes: list[LogChange] = []
    log = replace(context(), on_change=changes.append)
    await create_user(log, "ada", CREDENTIALS)
    await create_acls(log, [READ])
    await delete_user(log, "ada")
    assert [change.action for change in changes] == ["user.create", "acl.create", "user.delete"]
    assert changes[0].after == {"mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512", "tokens": ""}
