"""The data pipeline: jobs that reorganise, clean, check and export log data.

Each job is a driver, which speaks the protocol (claims, swaps, cursors), and tasks, which only move bytes. Tasks are
plain functions that know nothing of Spark: `llog.spark` executes them on a cluster, `runtime.tasks.LocalTasks` in this
process. There is no second engine.
"""
