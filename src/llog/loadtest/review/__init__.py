"""A load test to look at: `./quick_run.sh` runs `python -m llog.loadtest.review SCENARIO`."""
