"""A Spark Connect server that somebody set up without llog in mind: `python -m tests.spark.connect_server PORT`.

It says `ready` when it listens, and serves until its standard input ends.
"""

from __future__ import annotations

import os
import sys

from llog.spark.sessions.session import prepare_environment

MASTER = "local[2,4]"


def main(port: str) -> None:
    from pyspark.sql import SparkSession

    prepare_environment(MASTER)
    config = {
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": port,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
    }
    builder = SparkSession.builder.master(MASTER)
    for name, value in config.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    print("ready", flush=True)
    sys.stdin.read()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
    os._exit(0)
