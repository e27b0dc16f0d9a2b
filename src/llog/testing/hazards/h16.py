"""h16, h20: fencing says what it means, once, and inside the compare-and-set (R6)."""

from __future__ import annotations

from llog.errors import LogFenced
from llog.log.fence import fence, unfence
from llog.testing.hazards.toolkit import (
    CONTROL,
    ORDERS,
    alone,
    append,
    control_of,
    doing,
    expect,
    expect_contents,
    written,
)
from llog.testing.sim import Script, SimFault, script


@script("h16", atomic_groups=False)
def a_repeated_fence_does_not_undo_a_later_unfence(script: Script) -> None:
    written(script, b"one")
    # The operator's tool crashed after the fence; a colleague opened the log again; the tool is started once more.
    tool = script.actor("tool", doing(lambda context: fence(context, ORDERS, expected_epoch=0)))
    tool.run_until("put", CONTROL).perform(SimFault.CRASH_AFTER)
    alone(script, doing(lambda context: unfence(context, ORDERS)), "colleague")
    alone(script, doing(lambda context: fence(context, ORDERS, expected_epoch=0)), "tool")
    state = control_of(script).log_state
    expect(state == "OPEN", f"a repeated fence left the log {state}")
    # The reply alone is lost, and the tool tries again by itself.
    tool = script.actor("retrying tool", doing(lambda context: fence(context, ORDERS)))
    tool.run_until("put", CONTROL).perform(SimFault.LOST_REPLY)
    alone(script, doing(lambda context: unfence(context, ORDERS)), "colleague")
    tool.finish()
    state = control_of(script).log_state
    expect(state == "OPEN", f"a fence that was tried again left the log {state}")
    written(script, b"two")


@script("h20", atomic_groups=False)
def a_fence_between_the_look_and_the_commit(script: Script) -> None:
    written(script, b"one")
    writer = script.actor("writer", append(b"too late"))
    writer.run_until("put_object").run_until("put", CONTROL)  # it saw an open log
    alone(script, doing(lambda context: fence(context, ORDERS)), "operator")
    outcome = writer.finish()
    expect(isinstance(outcome, LogFenced), f"an append to a fenced log got: {outcome}")
    expect_contents(script, (1, b"one"))
