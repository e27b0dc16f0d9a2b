"""A master that cannot work is refused in a sentence, before Spark tries it for minutes."""

from __future__ import annotations

import socket

import pytest

from llog.errors import InvalidArgument, SparkSessionFailed
from llog.spark.sessions.preflight import addresses_of, check_master


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*]", "local[2,4]", "local[*, 4]", "yarn", "k8s://h:1"])
def test_what_spark_accepts_is_accepted_without_asking_anybody(master: str) -> None:
    check_master(master)
    check_master("local-cluster[2,1,1024]")


@pytest.mark.parametrize("master", ["bogus", "", "local[0]", "local[x]", "spark:/host", "http://host:7077", "sc://h:x"])
def test_what_is_no_master_is_an_argument_error(master: str) -> None:
    with pytest.raises(InvalidArgument, match="Spark master"):
        check_master(master)


def test_one_address_that_answers_is_enough_and_none_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        check_master(f"spark://127.0.0.1:1,127.0.0.1:{port}")
        check_master(f"sc://127.0.0.1:{port}/;token=secret")
    for master in (f"spark://127.0.0.1:{port}", f"sc://127.0.0.1:{port}/;token=secret"):
        with pytest.raises(SparkSessionFailed, match=f"nothing answers at 127.0.0.1:{port}") as raised:
            check_master(master)
        assert "secret" not in str(raised.value)


@pytest.mark.parametrize("master", ["spark://a..b:7077", f"sc://{'a' * 70}:1"])
def test_a_host_that_no_name_server_would_take_is_nobody(master: str) -> None:
    with pytest.raises(SparkSessionFailed, match="nothing answers at a"):
        check_master(master)


@pytest.mark.parametrize("master", ["sc://h:15002;token=secret", "sc://h:99999/;token=secret"])
def test_a_token_is_not_told_with_what_is_wrong_in_front_of_it(master: str) -> None:
    with pytest.raises(InvalidArgument, match="Spark master: 'sc://h") as raised:
        check_master(master)
    assert "secret" not in str(raised.value)


def test_ports_that_are_not_named_are_sparks_own() -> None:
    assert addresses_of("spark://a,b:1") == [("a", 7_077), ("b", 1)]
    assert addresses_of("sc://a/;user_id=ada") == [("a", 15_002)]
