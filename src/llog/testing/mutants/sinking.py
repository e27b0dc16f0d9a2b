"""Mutants of the sink: h24 and h24b."""

from __future__ import annotations

from llog.testing.mutants.mutant import Edit, Mutant

COMMIT = "llog.pipeline.sink.commit"
PERFORM = "llog.pipeline.sink.perform"
PLAN = "llog.pipeline.sink.plan"
QUERY = "llog.pipeline.sink.query"
VACUUM = "llog.pipeline.vacuum.job"

SINKING = (
    Mutant(
        "h24",
        "protocol section 11: the commit plan is created if absent",
        (Edit(PLAN, "encode_value(plan, key.path), expected=version))", "encode_value(plan, key.path)))"),),
    ),
    Mutant(
        "h24",
        "protocol section 11: a driver that finds a plan finishes that plan, not its own uploads",
        (
            Edit(COMMIT, "    stored = await find_plan(context, batch)\n", "    stored: StoredPlan | None = None\n"),
            Edit(
                PLAN,
                "                return current\n",
                "                return current._replace(plan=replace(plan, confirmed=True))\n",
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
        "no more slices of a log share an epoch than it remembers, and a slice before those is a duplicate, which is "
        "in the log: each suffices",
        (
            Edit(PLAN, "first = 0 if part.n % WINDOW == 0 else", "first = 0 if part.n == 0 else"),
            Edit(PLAN, "plan.first_epoch + part.n // WINDOW,", "plan.first_epoch,"),
            Edit(
                PERFORM,
                "elif isinstance(outcome, ProducerEpochFenced | DuplicateSequence):",
                "elif isinstance(outcome, ProducerEpochFenced):",
            ),
        ),
        "window",
    ),
    Mutant(
        "h24",
        "an old epoch means that the slice is in the log",
        (Edit(PERFORM, "elif isinstance(outcome, ProducerEpochFenced | DuplicateSequence):", "elif False:"),),
        "fenced",
    ),
    Mutant(
        "h24",
        "the slices of a log are appended in order, each only after the previous one",
        (
            Edit(
                PLAN,
                "        others.append(ClaimedSlice(part, claim))",
                "        others.insert(0, ClaimedSlice(part, claim))",
            ),
        ),
        "order",
    ),
    Mutant(
        "h24",
        "a driver acts on a plan only while the query's head is at its batch",
        (Edit(QUERY, "        if head.batch != batch.number:\n", "        if False:\n"),),
        "void",
    ),
    Mutant(
        "h24",
        "the head never moves back to an earlier batch",
        (
            Edit(QUERY, "    return head.batch > batch.number or not", "    return not"),
            Edit(QUERY, "if head.batch > batch.number and strict:", "if False:"),
        ),
        "back",
    ),
    Mutant(
        "h24",
        "the plan of the previous batch is finished first",
        (Edit(COMMIT, "    await _finish_previous(context, batch, admission)\n", ""),),
        "before",
    ),
    Mutant(
        "h24",
        "protocol section 11: nothing is appended before the plan is recorded",
        (
            Edit(
                COMMIT,
                "    return await put_plan(context, _plan(context, batch, admission, slices, plan_id), slices, void)",
                "    plan = _plan(context, batch, admission, slices, plan_id)\n"
                "    await perform(context, plan, slices)\n"
                "    return await put_plan(context, plan, slices, void)",
            ),
        ),
        "early",
    ),
    Mutant(
        "h24b",
        "a plan is confirmed only when none of its blobs is too old for its log",
        (Edit(COMMIT, "return part.created_at_ms >= control.commit_horizon_ms", "return True"),),
        "confirm",
    ),
    Mutant(
        "h24b",
        "an unconfirmed plan is never performed",
        (
            Edit(
                COMMIT,
                "        confirmation = await confirm(context, stored)\n        if confirmation.stored is None:\n",
                "        confirmation = Confirmation(stored)\n        if confirmation.stored is None:\n",
            ),
        ),
        "unconfirmed",
    ),
    Mutant(
        "h24b",
        "vacuum keeps blobs that an unfinished plan names",
        (
            Edit(
                VACUUM, "            candidates = self._not_planned(candidates, lambda candidate: candidate.uri)\n", ""
            ),
        ),
        "plans",
    ),
    Mutant(
        "h24b",
        "vacuum reads plans after it raised the horizons",
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
