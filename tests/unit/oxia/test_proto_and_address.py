"""The committed stubs are the proto's, need no newer protobuf than we say, and URLs are taken apart strictly."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from llog.errors import SettingsError
from llog.settings.urls import OxiaTarget
from llog.stores.metadata.oxia.client.proto import generate, pb
from llog.stores.metadata.oxia.mapping import parse_url


def test_committed_stubs_match_the_proto() -> None:
    if importlib.util.find_spec("grpc_tools") is None:
        pytest.skip("grpcio-tools is not installed")
    for name, text in generate.generate().items():
        committed = (Path(generate.__file__).parent / name).read_text()
        assert committed == text, f"{name} is out of date: run python -m {generate.__name__}"


def test_stubs_do_not_demand_the_protobuf_they_were_made_with() -> None:
    text = (Path(generate.__file__).parent / "llog_oxia_pb2.py").read_text()
    assert "runtime_version" not in text


def test_message_names_are_our_own() -> None:
    """Another Oxia client in this process may have registered the original ones."""
    assert pb.WriteRequest.DESCRIPTOR.full_name == "llog.oxia.WriteRequest"


def test_a_map_of_older_servers_reads_as_our_list_of_notifications() -> None:
    # field 4, a map entry {1: "k", 2: {type: 2}}
    wire = bytes([0x10, 5, 0x22, 7, 0x0A, 1, ord("k"), 0x12, 2, 0x08, 2])
    batch = pb.NotificationBatch.FromString(wire)
    assert batch.offset == 5
    assert [(entry.key, entry.value.type) for entry in batch.notifications] == [("k", pb.KEY_DELETED)]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("oxia://localhost", OxiaTarget(("localhost:6648",), "", False)),
        ("oxia://localhost:1234/prod", OxiaTarget(("localhost:1234",), "prod", False)),
        ("oxia+tls://a:1,b.example,10.0.0.1:3/x", OxiaTarget(("a:1", "b.example:6648", "10.0.0.1:3"), "x", True)),
        ("oxia://[::1]:7", OxiaTarget(("[::1]:7",), "", False)),
    ],
)
def test_urls_are_taken_apart(url: str, expected: OxiaTarget) -> None:
    assert parse_url(url) == expected


@pytest.mark.parametrize(
    "url",
    ["oxia://", "oxia:///ns", "oxia://a:0", "oxia://a:70000", "oxia://a:x", "oxia://a,,b", "oxia://a/b/c", "oxia://a b",
     "http://a", "oxia", "oxia://user@a", "oxia://a/ns?x=1"],
)  # fmt: skip
def test_anything_else_is_a_settings_error_that_says_what_is_accepted(url: str) -> None:
    with pytest.raises(SettingsError, match=r"LLOG_METADATA_URL.* is not usable: .*accepted: oxia://host"):
        parse_url(url)
