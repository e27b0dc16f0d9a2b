"""Mutants of the Spark sink: row h24."""

from __future__ import annotations

from llog.testing.mutants.mutant import Edit, Mutant

COMMIT = "llog.pipeline.sink_commit"
PERFORM = "llog.pipeline.sink_perform"
PLAN = "llog.pipeline.sink_plan"
QUERY = "llog.pipeline.sink_query"

SINKING = (
    Mutant(
        "h24",
        "section 11: the commit plan is created if absent",
        (Edit(COMMIT, "encode_value(plan, key.path), expected=ABSENT))", "encode_value(plan, key.path)))"),),
    ),
    Mutant(
        "h24",
        "section 11: whoever finds a plan finishes that plan; its own uploads are committed instead",
        (
            Edit(COMMIT, "    found = await _find(context, batch)\n", "    found = None\n"),
            Edit(
                COMMIT,
                "return _Found(decode_plan(record.value, key.path), record.version)\n        return",
                "return _Found(plan, record.version)\n        return",
            ),
        ),
        "own",
    ),
    Mutant(
        "h24",
        "no two batches of a query share an epoch",
        (Edit(QUERY, "_moved(head, batch, producer_id, first_epoch + epochs)", "_moved(head, batch, producer_id, 0)"),),
        "epoch",
    ),
    Mutant(
        "h24",
        "no more slices of a log share an epoch than it remembers",
        (
            Edit(PLAN, "first = 0 if part.n % WINDOW == 0 else", "first = 0 if part.n == 0 else"),
            Edit(PLAN, "plan.first_epoch + part.n // WINDOW,", "plan.first_epoch,"),
        ),
        "window",
    ),
    Mutant(
        "h24",
        "an old epoch means that the slice is there already",
        (Edit(PERFORM, "elif isinstance(outcome, ProducerEpochFenced):", "elif False:"),),
        "fenced",
    ),
    Mutant(
        "h24",
        "the slices of a log are appended in order, each only when the one before is there",
        (Edit(PLAN, "        others.append(Claimed(part, claim))", "        others.insert(0, Claimed(part, claim))"),),
        "order",
    ),
    Mutant(
        "h24",
        "a plan is acted on only while the query's head stands at its batch",
        (Edit(QUERY, "        if head.batch != batch.number:\n", "        if False:\n"),),
        "void",
    ),
    Mutant(
        "h24",
        "the head never goes back to an earlier batch",
        (
            Edit(QUERY, "    return head.batch > batch.number or not", "    return not"),
            Edit(QUERY, "if head.batch > batch.number and strict:", "if False:"),
        ),
        "back",
    ),
    Mutant(
        "h24",
        "the plan of the batch before is finished first",
        (Edit(COMMIT, "    await _finish_before(context, batch, admitted)\n", ""),),
        "before",
    ),
    Mutant(
        "h24",
        "section 11: nothing is appended before the plan is recorded",
        (
            Edit(
                COMMIT,
                "    return await _create(context, batch, _plan(context, batch, admitted, slices, plan_id), slices)",
                "    plan = _plan(context, batch, admitted, slices, plan_id)\n"
                "    await perform(context, plan, slices)\n"
                "    return await _create(context, batch, plan, slices)",
            ),
        ),
        "early",
    ),
)
