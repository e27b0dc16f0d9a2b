"""The processes that a load test runs against: started, recorded, watched and ended.

Every process carries LLOG_LOADTEST_RUN_DIR, the directory of its run, in its environment, and stands in `stack.json`.
`take_down` ends what either of the two shows, so it also works when the run was killed between starting a process and
recording it.
"""
