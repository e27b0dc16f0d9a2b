"""Stored values of this release: later ones must read them."""

from __future__ import annotations

import pytest

from llog.formats.values import Value, decode_value, encode_value
from llog.security.records import AclRecord, HttpToken, ScramCredential, SecurityState, UserRecord

GOLDEN: dict[str, Value] = {
    '{"v":1,"scram":{"SCRAM-SHA-256":{"salt":"c2FsdA==","iterations":4096,"stored_key":"c3RvcmVk",'
    '"server_key":"c2VydmVy"}},"tokens":[{"name":"ci","digest":"ZGlnZXN0","created_at_ms":7,"expires_at_ms":null}],'
    '"created_at_ms":5}': UserRecord(
        scram={"SCRAM-SHA-256": ScramCredential(b"salt", 4096, b"stored", b"server")},
        tokens=(HttpToken(name="ci", digest=b"digest", created_at_ms=7),),
        created_at_ms=5,
    ),
    '{"v":1,"principal":"User:ada","host":"*","resource_type":2,"name":"orders","pattern":3,"operation":3,'
    '"permission":3,"created_at_ms":5}': AclRecord(
        principal="User:ada",
        host="*",
        resource_type=2,
        name="orders",
        pattern=3,
        operation=3,
        permission=3,
        created_at_ms=5,
    ),
    '{"v":1,"changes":9,"salt_key":"a2V5"}': SecurityState(changes=9, salt_key=b"key"),
}


@pytest.mark.parametrize("text", GOLDEN)
def test_the_stored_values_are_read_before_any_was_written(text: str) -> None:
    value = GOLDEN[text]
    assert decode_value(type(value), text.encode(), "golden") == value
    assert encode_value(value).decode() == text
