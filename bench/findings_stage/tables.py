"""The data of a ferry line, on which all cases of `bench.findings` play."""

from __future__ import annotations

#: ferry: the application. office: its batches. analyst: reports. lookout: who watches the server.
ROLES = """
CREATE ROLE ferry LOGIN;
CREATE ROLE office LOGIN IN ROLE ferry;
CREATE ROLE analyst LOGIN IN ROLE ferry;
CREATE ROLE lookout LOGIN IN ROLE pg_monitor;
GRANT ALL ON SCHEMA public TO ferry;
ALTER ROLE ferry SET max_parallel_workers_per_gather = 0;
ALTER ROLE office SET max_parallel_workers_per_gather = 0;
ALTER ROLE analyst SET max_parallel_workers_per_gather = 0;
"""

#: What a role that watches needs for exact waits.
MODULE_GRANTS = "GRANT SET ON PARAMETER wait_event_timing.capture, sql_trace.level TO lookout"

#: bookings.passenger has no index; cargo is larger than the buffers; of tickets.state one value is
#: rare and only at the end, so that whoever looks for the first ones in the order of tickets reads
#: them all; a lookup of timetable.stop takes locks on all partitions.
TABLES = """
SET ROLE ferry;
CREATE TABLE seats (seat int PRIMARY KEY, taken int NOT NULL);
INSERT INTO seats SELECT n, 0 FROM generate_series(1, 2000) n;
CREATE TABLE bookings (booking int PRIMARY KEY, passenger int, remark text);
INSERT INTO bookings
    SELECT n, (random() * 50000)::int, md5(n::text) FROM generate_series(1, 250000) n;
CREATE TABLE journal (entry bigserial PRIMARY KEY, line text);
CREATE TABLE outbox (message bigserial PRIMARY KEY, body text);
CREATE TABLE tickets (ticket serial PRIMARY KEY, state text, price int);
INSERT INTO tickets (state, price)
    SELECT CASE WHEN n > 199800 THEN 'refund' WHEN n % 2 = 0 THEN 'paid' ELSE 'used' END, n
    FROM generate_series(1, 200000) n;
CREATE INDEX ON tickets (state);
CREATE TABLE cargo (crate int, content text);
ALTER TABLE cargo ALTER content SET STORAGE PLAIN;
INSERT INTO cargo SELECT n, repeat('c', 1500) FROM generate_series(1, 100000) n;
CREATE TABLE harbours (harbour int PRIMARY KEY, name text);
INSERT INTO harbours SELECT n, 'harbour ' || n FROM generate_series(1, 50) n;
CREATE TABLE calls (call bigserial PRIMARY KEY, harbour int REFERENCES harbours);
CREATE TABLE fares (fare int PRIMARY KEY, amount int);
INSERT INTO fares SELECT n, n FROM generate_series(1, 1000) n;
CREATE TABLE timetable (line int, stop int) PARTITION BY LIST (line);
DO $$ BEGIN FOR n IN 1..400 LOOP
    EXECUTE format('CREATE TABLE timetable_%s PARTITION OF timetable FOR VALUES IN (%s)', n, n);
END LOOP; END $$;
CREATE INDEX ON timetable (stop);
CREATE FUNCTION work(rounds int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE x int := 0; BEGIN FOR n IN 1..rounds LOOP x := (x + n) % 1000; END LOOP; RETURN x; END $$;
RESET ROLE;
"""

#: Rows of pgbench's own tables, in 100,000.
SCALE = 5
