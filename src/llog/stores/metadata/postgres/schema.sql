-- The tables and functions of one llog metadata store in PostgreSQL, schema version 1.
--
-- Names in braces are filled in by schema.py. Everything that must happen in one transaction is one function, so that
-- a call is one statement: one round trip, committed or not as a whole.
--
-- Correctness depends on three rules:
--   barrier   Every function that changes records first takes the shared barrier lock (watch.py takes it exclusively),
--             then locks session rows, then record rows in key order. All use this order, so there is no deadlock.
--   own       A transaction draws a version only for a key with a row that it owns: it locked or inserted the row and
--             keeps it until commit. So an earlier writer of the key has drawn AND committed its version before, and
--             the sequence (CACHE 1) only increases: versions of a key increase, also after deletes. Drawing in the
--             INSERT itself would be wrong: the insert may wait for another writer of the key after the draw, and that
--             writer may draw a higher version, commit, and have its record deleted.
--   snapshot  READ COMMITTED (set by every connection): each statement sees everything committed before it began, so
--             checks after locking see the current rows.

CREATE TABLE {version_table} (version integer NOT NULL);

CREATE SEQUENCE {sequence} AS bigint MINVALUE 1 CACHE 1 NO CYCLE;

-- "C" compares bytes. The key begins with the parent, so the direct children of a parent are adjacent and in order.
-- Version 0 marks a row that a transaction inserted to own an absent key; it is never committed.
-- Pages have free space, because most writes replace a value.
CREATE TABLE {records} (
    parent  text COLLATE "C" NOT NULL,
    name    text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    session bigint,
    value   bytea NOT NULL,
    PRIMARY KEY (parent, name)
) WITH (fillfactor = 80);

CREATE INDEX ON {records} (session) WHERE session IS NOT NULL;

-- A session, or (with prefixes) the watch lease of one store.
CREATE TABLE {sessions} (
    id         bigint PRIMARY KEY,
    client     text NOT NULL,
    timeout_ms integer NOT NULL,
    expires_at timestamptz NOT NULL,
    prefixes   text[]
) WITH (fillfactor = 50);

-- Announce changes (version 0: deleted), many per notification, but only watched ones: commits that notify wait for
-- each other in the whole server.
CREATE FUNCTION {announce}(in_paths text[], in_versions bigint[]) RETURNS void LANGUAGE plpgsql AS $body$
DECLARE
    watched text[];
BEGIN
    SELECT array_agg(DISTINCT p.prefix) INTO watched
      FROM {sessions} s, unnest(s.prefixes) AS p(prefix)
     WHERE s.prefixes IS NOT NULL;
    IF watched IS NULL THEN
        RETURN;
    END IF;
    IF cardinality(watched) > {prefixes_max} THEN
        watched := ARRAY[''];
    END IF;
    PERFORM pg_notify({channel}, string_agg(chunked.line, E'\n'))
       FROM (SELECT l.line, (sum(octet_length(l.line) + 1) OVER (ORDER BY l.i) - octet_length(l.line) - 1)::bigint
                            / {payload_bytes} AS chunk
               FROM (SELECT c.i, c.version || ' ' || c.path AS line
                       FROM unnest(in_paths, in_versions) WITH ORDINALITY AS c(path, version, i)
                      WHERE EXISTS (SELECT FROM unnest(watched) AS w(prefix)
                                     WHERE w.prefix = '' OR c.path = w.prefix
                                        OR starts_with(c.path, w.prefix || '/'))) AS l) AS chunked
      GROUP BY chunked.chunk;
END
$body$;

-- Many groups of writes. A null value deletes. Expected: null = whatever is there, -1 = absent, else that version.
-- The answer has one number per write: the new version, 0 for a delete, or why its group changed nothing:
-- -1 not at the expected version, -2 its session is gone, -3 another write of the group was refused.
CREATE FUNCTION {write}(
    in_groups integer[], in_parents text[], in_names text[], in_values bytea[], in_expected bigint[], in_sessions bigint[]
) RETURNS bigint[] LANGUAGE plpgsql AS $body$
DECLARE
    codes   bigint[];
    results bigint[];
    paths   text[];
    plain   boolean;
BEGIN
    PERFORM pg_advisory_xact_lock_shared({lock_class}, {lock_object});
    IF in_sessions IS NOT NULL THEN
        -- Heartbeats go on (they change no key column); ending the session waits for us.
        PERFORM FROM {sessions} WHERE id = ANY (in_sessions) ORDER BY id FOR KEY SHARE;
    END IF;

    -- Own every key, in key order. WHERE false updates nothing, but the row is locked all the same.
    INSERT INTO {records} AS r (parent, name, version, value)
    SELECT w.parent, w.name, 0, ''
      FROM unnest(in_parents, in_names) AS w(parent, name)
     ORDER BY w.parent COLLATE "C", w.name COLLATE "C"
        ON CONFLICT (parent, name) DO UPDATE SET version = r.version WHERE false;

    SELECT array_agg(CASE WHEN j.code < 0 THEN j.code WHEN j.worst < 0 THEN -3 ELSE 0 END ORDER BY j.i),
           bool_and(j.worst = 0 AND j.is_put)
      INTO codes, plain
      FROM (SELECT c.i, c.code, c.is_put, min(c.code) OVER (PARTITION BY c.in_group) AS worst
              FROM (SELECT w.i, w.in_group, w.value IS NOT NULL AS is_put,
                           CASE WHEN w.session IS NOT NULL AND NOT EXISTS (
                                         SELECT FROM {sessions} s
                                          WHERE s.id = w.session AND s.expires_at > clock_timestamp()) THEN -2
                                WHEN w.expected IS NULL THEN 0
                                WHEN r.version > 0 AND (r.session IS NULL OR EXISTS (
                                         SELECT FROM {sessions} s
                                          WHERE s.id = r.session AND s.expires_at > clock_timestamp()))
                                THEN CASE WHEN r.version = w.expected THEN 0 ELSE -1 END
                                WHEN w.expected = -1 AND w.value IS NOT NULL THEN 0
                                ELSE -1
                           END AS code
                      FROM unnest(in_groups, in_parents, in_names, in_values, in_expected, in_sessions)
                           WITH ORDINALITY AS w(in_group, parent, name, value, expected, session, i)
                      JOIN {records} r ON r.parent = w.parent AND r.name = w.name) AS c) AS j;

    IF NOT plain THEN
        -- What is to be deleted, and the rows that only served to own a key.
        WITH gone AS (
            DELETE FROM {records} r
             USING unnest(in_parents, in_names, in_values, codes) AS w(parent, name, value, code)
             WHERE r.parent = w.parent AND r.name = w.name
               AND ((w.code = 0 AND w.value IS NULL) OR (w.code < 0 AND r.version = 0))
            RETURNING r.parent, r.name, r.version)
        SELECT array_agg(CASE WHEN gone.parent = '' THEN gone.name ELSE gone.parent || '/' || gone.name END)
          INTO paths FROM gone WHERE gone.version > 0;
        IF paths IS NOT NULL THEN
            PERFORM {announce}(paths, array_fill(0::bigint, ARRAY[cardinality(paths)]));
        END IF;
    END IF;

    WITH changed AS (
        UPDATE {records} r SET version = nextval({sequence_name}), value = w.value, session = w.session
          FROM unnest(in_parents, in_names, in_values, in_sessions, codes)
               WITH ORDINALITY AS w(parent, name, value, session, code, i)
         WHERE r.parent = w.parent AND r.name = w.name AND w.code = 0 AND w.value IS NOT NULL
        RETURNING w.i, r.version, r.parent, r.name),
    answered AS (
        SELECT i, version, CASE WHEN parent = '' THEN name ELSE parent || '/' || name END AS path FROM changed
        UNION ALL
        SELECT w.i, w.code, NULL FROM unnest(in_values, codes) WITH ORDINALITY AS w(value, code, i)
         WHERE w.code < 0 OR w.value IS NULL)
    SELECT array_agg(version ORDER BY i), array_agg(path ORDER BY i) FILTER (WHERE path IS NOT NULL)
      INTO results, paths FROM answered;
    IF paths IS NOT NULL THEN
        PERFORM {announce}(paths, ARRAY(SELECT v FROM unnest(results) WITH ORDINALITY AS u(v, i) WHERE v > 0 ORDER BY i));
    END IF;
    RETURN results;
END
$body$;

-- Remove the records of sessions that this transaction has just deleted: no write can bind to them any more.
CREATE FUNCTION {drop_records}(in_ids bigint[]) RETURNS void LANGUAGE plpgsql AS $body$
DECLARE
    paths text[];
BEGIN
    PERFORM FROM {records} WHERE session = ANY (in_ids) ORDER BY parent, name FOR UPDATE;
    WITH gone AS (
        DELETE FROM {records} r WHERE r.session = ANY (in_ids) RETURNING r.parent, r.name)
    SELECT array_agg(CASE WHEN gone.parent = '' THEN gone.name ELSE gone.parent || '/' || gone.name END)
      INTO paths FROM gone;
    IF paths IS NOT NULL THEN
        PERFORM {announce}(paths, array_fill(0::bigint, ARRAY[cardinality(paths)]));
    END IF;
END
$body$;

CREATE FUNCTION {end_session}(in_id bigint) RETURNS boolean LANGUAGE plpgsql AS $body$
BEGIN
    PERFORM pg_advisory_xact_lock_shared({lock_class}, {lock_object});
    DELETE FROM {sessions} WHERE id = in_id;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM {drop_records}(ARRAY[in_id]);
    RETURN true;
END
$body$;

-- Remove what ran out. A session in use right now (a heartbeat, a write bound to it) is left for the next sweep.
CREATE FUNCTION {sweep}() RETURNS bigint LANGUAGE plpgsql AS $body$
DECLARE
    ids bigint[];
BEGIN
    IF NOT EXISTS (SELECT FROM {sessions} WHERE expires_at <= clock_timestamp()) THEN
        RETURN 0;
    END IF;
    PERFORM pg_advisory_xact_lock_shared({lock_class}, {lock_object});
    WITH expired AS (
        SELECT id FROM {sessions} WHERE expires_at <= clock_timestamp()
         ORDER BY id LIMIT {sweep_max} FOR UPDATE SKIP LOCKED),
    dropped AS (
        DELETE FROM {sessions} s USING expired WHERE s.id = expired.id RETURNING s.id)
    SELECT array_agg(id) INTO ids FROM dropped;
    IF ids IS NULL THEN
        RETURN 0;
    END IF;
    PERFORM {drop_records}(ids);
    RETURN cardinality(ids);
END
$body$;
