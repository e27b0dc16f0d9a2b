"""Spark: the session, the runner of pipeline tasks, and the data source `llog`.

Importing this package needs no pyspark; using it does.
"""
