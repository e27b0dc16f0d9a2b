"""Load tests: `llog loadtest`. A scenario names a stack, a load and faults; a run leaves a directory of artefacts.

scenario/     what a YAML file may say, and the shipped scenarios
artifacts.py  the files of a run; run_directory.py  where they are; routing.py  which broker a partition goes to
stack/        starts and ends stores, brokers, compactors; faults
client/       the load generator: producers and consumers in processes of their own
collect/      samples of metrics and processes; reconciliation; summary.json
report/       the HTML report, comparison of runs
review/       Prometheus and Grafana beside a run
"""
