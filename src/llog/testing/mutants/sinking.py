"""Mutants of the Spark sink: rows h24 and h24b."""

from __future__ import annotations

from llog.testing.mutants.mutant import Edit, Mutant

COMMIT = "llog.pipeline.sink.commit"
CONFIRM = "llog.pipeline.sink.confirm"
PERFORM = "llog.pipeline.sink.perform"
PLAN = "llog.pipeline.sink.plan"
QUERY = "llog.pipeline.sink.query"
RECORDS = "llog.pipeline.sink.records"
VACUUM = "llog.pipeline.vacuum.job"

SINKING = (
    Mutant(
        "h24",
        "section 11: the commit plan is created if absent",
        (Edit(RECORDS, "encode_value(plan, key.path), expected=version))", "encode_value(plan, key.path)))"),),
    ),
    Mutant(
        "h24",
        "section 11: whoever finds a plan finishes that plan; its own uploads are committed instead",
        (
            Edit(COMMIT, "    found = await find(context, batch)\n", "    found: Found | None = None\n"),
            Edit(
                RECORDS,
                "                return there\n",
                "                return there._replace(plan=replace(plan, confirmed=True))\n",
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
                "    return await put_plan(context, _plan(context, batch, admitted, slices, plan_id), slices, void)",
                "    plan = _plan(context, batch, admitted, slices, plan_id)\n"
                "    await perform(context, plan, slices)\n"
                "    return await put_plan(context, plan, slices, void)",
            ),
        ),
        "early",
    ),
    Mutant(
        "h24b",
        "a plan is confirmed only when none of its blobs is too old for its log",
        (Edit(CONFIRM, "return part.created_at_ms >= control.commit_horizon_ms", "return True"),),
        "confirm",
    ),
    Mutant(
        "h24b",
        "nothing is performed of a plan that is not confirmed",
        (
            Edit(
                COMMIT,
                "        told = await confirm(context, found)\n        if told.found is None:\n",
                "        told = Confirmation(found)\n        if told.found is None:\n",
            ),
            Edit(COMMIT, "import confirm\n", "import Confirmation, confirm\n"),
        ),
        "unconfirmed",
    ),
    Mutant(
        "h24b",
        "vacuum keeps what an unfinished plan names",
        (Edit(VACUUM, "            candidates = self._not_planned(candidates)\n", ""),),
        "plans",
    ),
    Mutant(
        "h24b",
        "vacuum asks for plans after it has raised the horizons",
        (
            Edit(
                VACUUM,
                "                self._planned = await planned_blobs(self.context, now_ms=self._now_ms)\n",
                "                pass\n",
            ),
        ),
        "asked",
    ),
)
