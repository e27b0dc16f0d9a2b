"""URLs have one spelling and never show a password."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llog.settings.urls import mask_url, normalise_url, oxia_url, parse_oxia_url


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://user:hunter2@host/db",
        "postgresql://user:hunter2@host:5432,other:5432/db?sslmode=require",
        "postgresql://:hunter2@host/db",
        "postgresql://user:hun/ter2@host/db",
        "postgresql://user:hunter2@x@host/db",
        "postgresql://host/db?password=hunter2",
        "postgresql://host/db?user=a&sslpassword=hunter2&x=1",
        "oxia://host?auth_token=hunter2",
        "put postgresql://user:hunter2@host/db failed",
        "s3://key:hunter2@bucket",
    ],
)
def test_passwords_are_masked_wherever_they_stand(url: str) -> None:
    masked = mask_url(url)
    assert "hunter2" not in masked
    assert "ter2" not in masked
    assert "***" in masked


@pytest.mark.parametrize(
    "url", ["lmdb:///data/x", "oxia://host:6648/ns", "s3://bucket/prefix", "postgresql://u@h:5/db"]
)
def test_urls_without_a_password_are_shown_as_they_are(url: str) -> None:
    assert mask_url(url) == url


@given(st.text(st.characters(blacklist_characters="*", blacklist_categories=["Cs"]), min_size=3, max_size=20))
def test_no_password_survives_masking(password: str) -> None:
    assert mask_url(f"postgresql://user:{password}@host/db") == "postgresql://user:***@host/db"


@pytest.mark.parametrize(
    ("given_url", "written"),
    [
        ("S3://bucket/", "s3://bucket"),
        ("s3://bucket/a/b/", "s3://bucket/a/b"),
        ("file:///a//b/./c/", "file:///a/b/c"),
        ("file:///with space", "file:///with space"),
        ("lmdb:///a//b/?map=1", "lmdb:///a/b?map=1"),
        ("memory://", "memory://"),
        ("memory://name/", "memory://name"),
        ("OXIA+TLS://host:6648/", "oxia+tls://host:6648"),
        ("other+x://whatever/there?is=1", "other+x://whatever/there?is=1"),
    ],
)
def test_a_url_has_one_spelling(given_url: str, written: str) -> None:
    assert normalise_url(given_url) == written
    assert normalise_url(written) == written


@pytest.mark.parametrize(
    "url",
    ["", "bucket", "/a/path", "s3:bucket", "s3://", "s3://b", "s3://bu cket", "file://a/b", "file:///", "file:///a/../b",
     "lmdb://relative", "oxia://", "oxia://host:0", "oxia://host:99999", "oxia://host/a/b", "oxia://[::1", "1x://y",
     "s3://bucket\n", "memory://" + "x" * 3_000],
)  # fmt: skip
def test_what_no_store_could_open_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        normalise_url(url)


@pytest.mark.parametrize("url", ["s3://u:hunter2@b", "oxia://u:hunter2@host:1", "oxia://u:hunter2@h℀st"])
def test_a_refusal_does_not_repeat_a_password(url: str) -> None:
    with pytest.raises(ValueError, match=r".+") as refusal:
        normalise_url(url)
    assert "hunter2" not in str(refusal.value)


def test_oxia_addresses_and_urls_convert_both_ways() -> None:
    assert oxia_url("host", "default", tls=False) == "oxia://host:6648"
    assert oxia_url("[::1]:7000", "orders", tls=True) == "oxia+tls://[::1]:7000/orders"
    assert parse_oxia_url("oxia+tls://[::1]:7000/orders") == (("[::1]:7000",), "orders", True)
