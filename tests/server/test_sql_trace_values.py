"""Values and secrets in a trace: what is shown, to the byte, and what is never."""

import contextlib
import struct
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.types.numeric import Int4, Int8

from pgtare.postgres.cluster import Cluster
from tests.sessions import Connection, eventually, one, rows, session
from tests.trace_records import Record, Trace, drain, trace_of, traced, tracing_session

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]


def bound(
    onlooker: Connection,
    client: Connection,
    sql: str,
    values: tuple[Any, ...],
    binary: bool = False,
    level: int = 4,
) -> Trace:
    """The trace of one statement with values."""
    with tracing_session(onlooker, client, level) as trace:
        client.execute(sql.encode(), values, binary=binary)
    return trace


def values_of(trace: Trace) -> list[dict[str, Any]]:
    (binds,) = trace.of("binds")
    (execution,) = [c for c in trace.calls("execute") if c.call == binds.call]
    assert binds.number <= execution.number
    found: list[dict[str, Any]] = binds.values
    return found


def test_values_of_all_forms(client: Connection, onlooker: Connection) -> None:
    sql = (
        "SELECT %s::int4, %s::int8, %s::bool, %s::text, %s::bytea, %s::uuid, %s::timestamptz, "
        "%s::float8, %s::int4, %s::name, %s::int4[]"
    )
    uuid = "00112233-4455-6677-8899-aabbccddeeff"
    given = (
        Int4(-7),
        2**40,
        True,
        "żółć",
        b"\x00\xff",
        uuid,
        "2000-01-01 00:00:01+00",
        1.5,
        None,
        "me",
        [Int4(1)],
    )
    shown = values_of(bound(onlooker, client, sql, given))
    assert [v["state"] for v in shown] == ["whole"] * 8 + ["null"] + ["whole"] * 2
    oids = [23, 20, 16, 25, 17, 2950, 1184, 701, 23, 19, 1007]
    assert [v["type"] for v in shown] == oids
    raw = [v["bytes"] for v in shown]
    assert struct.unpack("<i", raw[0]) == (-7,)
    assert struct.unpack("<q", raw[1]) == (2**40,)
    assert raw[2] == b"\1"
    assert raw[3] == "żółć".encode()
    assert raw[4] == b"\x00\xff"
    assert raw[5].hex() == uuid.replace("-", "")
    assert struct.unpack("<q", raw[6]) == (1_000_000,)
    assert struct.unpack("<d", raw[7]) == (1.5,)
    assert raw[8] == b""
    assert raw[9].rstrip(b"\0") == b"me"
    assert struct.unpack("<i", raw[10][-4:]) == (1,)
    assert [v["form"] for v in shown] == [1, 1, 1, 3, 3, 2, 1, 1, 0, 2, 3]


def test_binary_values(client: Connection, onlooker: Connection) -> None:
    shown = values_of(bound(onlooker, client, "SELECT %s::int8, %s::bytea", (Int8(5), b"\0"), True))
    assert [v["length"] for v in shown] == [8, 1]


def test_level_1_shows_none(client: Connection, onlooker: Connection) -> None:
    assert not bound(onlooker, client, "SELECT %s::int", (1,), level=1).of("binds")


def test_long_values_are_redacted_and_full_by_choice(
    client: Connection, onlooker: Connection
) -> None:
    long = "x" * 65
    (short, hidden) = values_of(bound(onlooker, client, "SELECT %s::text, %s::text", ("y", long)))
    assert (short["state"], short["bytes"]) == ("whole", b"y")
    assert (hidden["state"], hidden["length"], hidden["bytes"]) == ("redacted", 65, b"")
    client.execute("SET sql_trace.bind_length = -1")
    (full,) = values_of(bound(onlooker, client, "SELECT %s::text AS full", (long,)))
    assert (full["state"], full["bytes"]) == ("whole", long.encode())
    (cut,) = values_of(bound(onlooker, client, "SELECT %s::text AS cut", ("z" * 2_000_000,)))
    assert (cut["state"], cut["length"]) == ("cut", 2_000_000)
    assert set(cut["bytes"]) == {ord("z")}
    assert 100_000 < cut["stored"] < 300_000


def test_types_of_others_are_omitted(client: Connection, onlooker: Connection) -> None:
    client.execute("DROP TYPE IF EXISTS mood; CREATE TYPE mood AS ENUM ('fine')")
    (mood, oid) = values_of(bound(onlooker, client, "SELECT %s::mood, %s::oid", ("fine", 1)))
    assert (mood["state"], mood["bytes"]) == ("omitted", b"")
    assert oid["state"] == "whole"


def test_a_thousand_parameters(client: Connection, onlooker: Connection) -> None:
    sql = "SELECT " + ", ".join(["%s::int"] * 1000)
    shown = values_of(bound(onlooker, client, sql, tuple(Int4(n) for n in range(1000))))
    assert [struct.unpack("<i", v["bytes"])[0] for v in shown] == list(range(1000))


def test_values_of_dynamic_statements(client: Connection, onlooker: Connection) -> None:
    sql = "DO $$BEGIN EXECUTE 'SELECT $1 + oid::int FROM pg_am LIMIT 1' USING 42; END$$"
    trace = traced(onlooker, client, sql, level=4)
    (value,) = values_of(trace)
    assert struct.unpack("<i", value["bytes"]) == (42,)


def test_value_that_is_no_text_in_its_encoding(client: Connection, onlooker: Connection) -> None:
    with tracing_session(onlooker, client, 4) as trace, pytest.raises(psycopg.Error):
        client.execute("SELECT convert_from(%s::bytea, 'UTF8')", (b"\xc3\x28\xff",))
    (value,) = values_of(trace)
    assert value["bytes"] == b"\xc3\x28\xff"
    assert trace.of("error")[0].sqlstate == "22021"


def test_messages_are_shown_with_values(client: Connection, onlooker: Connection) -> None:
    with tracing_session(onlooker, client, 4) as trace, pytest.raises(psycopg.Error):
        client.execute("SELECT 'ordinary'::int")
    (error,) = trace.of("error")
    assert error.message == 'invalid input syntax for type integer: "ordinary"'


SECRETS = [
    "CREATE ROLE keeper PASSWORD 'hush'",
    "ALTER USER keeper PASSWORD 'hush'",
    "alter/* a */user\tkeeper\nPASSWORD 'hush'",
    "ALTER ROLE keeper SET work_mem = '1MB' -- hush",
    "DO $$BEGIN EXECUTE 'ALTER ROLE keeper PASSWORD ''hush'''; END$$",
    "CREATE SUBSCRIPTION s CONNECTION 'password=hush' PUBLICATION p "
    "WITH (connect = false, slot_name = NONE)",
    "DROP SUBSCRIPTION IF EXISTS nobody; SELECT 'postgresql://u:hush@h/'",
    "CREATE FOREIGN DATA WRAPPER w",
    "CREATE SERVER s FOREIGN DATA WRAPPER w OPTIONS (host 'hush')",
    "CREATE USER MAPPING FOR postgres SERVER s OPTIONS (user 'hush')",
    "SELECT dblink_connect('host=hush')",
    "CREATE ROLE keeper PASWORD 'hush'",  # does not parse
    "SELECT set_config('primary_conninfo', 'hush', false)",
    "SELECT '--', 1 AS password, 'hush'",  # no comment
    "SELECT '/*', 'postgres://u:hush@h/'",
    "SELECT 1 /* ALTER ROLE keeper VALID UNTIL 'hush' */",
    f"SELECT 'hush' AS {'x' * 40}password",
    "DO $$BEGIN EXECUTE 'ALTER SYSTEM SET ssl_passphrase_command = ''hush'' x'; END$$",
]


def test_secrets_are_in_no_record(client: Connection, onlooker: Connection) -> None:
    client.execute("SET sql_trace.level = 12; SET sql_trace.bind_length = -1")
    pid = client.info.backend_pid
    for sql in SECRETS:
        with contextlib.suppress(psycopg.Error):
            client.execute(sql.encode())
    client.execute("SELECT %s::text AS password", ("hush",))
    client.execute("SELECT 'shown'")
    data = one(onlooker, "SELECT data FROM sql_trace_drain(%s, 0)", pid)
    assert b"shown" in data
    assert b"hush" not in data
    trace = Trace(drain(onlooker, pid)[3])
    suppressed = [t for t in trace.of("text") if t.flags & 2]
    assert len(suppressed) >= len(SECRETS) - 2
    assert all(t.length > 0 and t.stored == 0 for t in suppressed)
    client.execute("DROP SUBSCRIPTION IF EXISTS s")
    client.execute("DROP FOREIGN DATA WRAPPER w CASCADE; DROP ROLE keeper")


def test_every_word_that_shows_a_secret(client: Connection, onlooker: Connection) -> None:
    """It is found anywhere in a text. Texts without such a word are passed over quickly."""
    parts = (
        "access_key api_key apikey conninfo credential crypt gen_salt hmac passcode passphr passw "
        "private_key scram secret token uescape"
    )
    texts = [f"SELECT 1 AS {'x' * at}{part.title()}" for part in parts.split() for at in (0, 5, 17)]
    texts += [f"SELECT 1 AS a{part}{'z' * 40}" for part in parts.split()]
    texts += ["SELECT 1 AS dblink_x", "SELECT 'alter role'", "SELECT 'IMPORT foreign'"]
    texts += ["SELECT 'create a user'", "SELECT 'user mapping'", "SELECT 'to program'"]
    texts += ["SELECT 'http://u:hush@h'", "SELECT 'to pr\\157gram'"]
    client.execute("SET sql_trace.level = 1")
    at = drain(onlooker, client.info.backend_pid)[0]
    for text in texts:
        client.execute(text.encode())
        ((written,), at) = drained_texts(onlooker, client, at)
        assert (written.flags, written.stored) == (2, 0), text


def drained_texts(onlooker: Connection, client: Connection, at: int) -> tuple[list[Record], int]:
    after, _, _, records = drain(onlooker, client.info.backend_pid, at)
    return [r for r in records if r.kind == "text"], after


def test_sensitive_roles_never_show_values(
    tracer: Cluster, client: Connection, onlooker: Connection
) -> None:
    onlooker.execute(
        "DROP ROLE IF EXISTS teller; DROP ROLE IF EXISTS tellers; "
        "CREATE ROLE tellers; CREATE ROLE teller IN ROLE tellers; "
        "GRANT SELECT ON ALL TABLES IN SCHEMA pg_catalog TO teller"
    )
    try:
        tracer.configure({"sql_trace.sensitive_roles": "nobody, tellers"})
        tracer.reload()
        eventually(lambda: one(client, "SHOW sql_trace.sensitive_roles") == "nobody, tellers")
        client.execute("SET sql_trace.level = 4; SET sql_trace.bind_length = -1")
        start = drain(onlooker, client.info.backend_pid)[0]
        client.execute("SELECT %s::int AS own", (1,))
        client.execute("SET ROLE teller")
        client.execute("SELECT %s::int AS theirs", (1,))
        with pytest.raises(psycopg.Error):
            client.execute("SELECT 'hush'::int")
        client.execute("RESET ROLE")
        client.execute("SELECT %s::int AS own", (1,))
        client.execute("SET ROLE teller")
        with pytest.raises(psycopg.Error):  # the last values known were those of another role
            client.execute("SELECT 'hush'::int")
        client.execute("RESET ROLE")
        trace = Trace(drain(onlooker, client.info.backend_pid, start)[3])
    finally:
        tracer.configure({"sql_trace.sensitive_roles": ""})
        tracer.reload()
        onlooker.execute("DROP OWNED BY teller; DROP ROLE teller; DROP ROLE tellers")
    states = [v["state"] for r in trace.of("binds") for v in r.values]
    assert states == ["whole", "redacted", "whole"]
    assert [e.message for e in trace.of("error")] == ["", ""]


def test_sensitive_role_that_is_set_hides_what_definers_run_for_it(
    tracer: Cluster, client: Connection, onlooker: Connection
) -> None:
    """The function has the rights of its owner, and the values of the role that called it."""
    onlooker.execute(
        "DROP ROLE IF EXISTS payroll; CREATE ROLE payroll; "
        "CREATE OR REPLACE FUNCTION public.definers_echo(v int) RETURNS int LANGUAGE plpgsql "
        "SECURITY DEFINER AS $$ DECLARE r int; BEGIN EXECUTE 'SELECT $1 AS echoed' INTO r "
        "USING v; RETURN r; END $$"
    )
    try:
        tracer.configure({"sql_trace.sensitive_roles": "payroll"})
        tracer.reload()
        eventually(lambda: one(client, "SHOW sql_trace.sensitive_roles") == "payroll")
        client.execute("SET sql_trace.level = 4; SET sql_trace.bind_length = -1")
        start = drain(onlooker, client.info.backend_pid)[0]
        client.execute("SET ROLE payroll")
        client.execute("SELECT public.definers_echo(%s::int)", (1,))
        client.execute("RESET ROLE")
        client.execute("SELECT public.definers_echo(%s::int)", (1,))
        trace = Trace(drain(onlooker, client.info.backend_pid, start)[3])
    finally:
        tracer.configure({"sql_trace.sensitive_roles": ""})
        tracer.reload()
        onlooker.execute("DROP FUNCTION public.definers_echo(int); DROP ROLE payroll")
    states = [v["state"] for r in trace.of("binds") for v in r.values]
    assert states == ["redacted"] * 2 + ["whole"] * 2  # of the client's statement, and within it


def big_text(trace: Trace, sql: str) -> Record:
    (text,) = [t for t in trace.of("text") if t.sql.startswith(sql)]
    return text


def test_long_texts_are_cut(client: Connection, onlooker: Connection) -> None:
    sql = "SELECT length('" + "a" * 3_000_000 + "')"
    text = big_text(traced(onlooker, client, sql), "SELECT length('aaa")
    assert (text.length, text.stored, text.flags) == (len(sql), 16384, 1)
    text = big_text(traced(onlooker, client, "SELECT 'üx" + "ö" * 10_000 + "'"), "SELECT 'ü")
    # between characters
    assert text.stored == 16383
    assert text.sql.endswith("ö")


def test_record_larger_than_what_is_read_at_once(client: Connection, onlooker: Connection) -> None:
    """It is passed over as lost, and what follows is read."""
    client.execute("SET sql_trace.ring_size = '128MB'; SET sql_trace.bind_length = -1")
    client.execute("SET sql_trace.level = 4")
    pid = client.info.backend_pid
    at = drain(onlooker, pid)[0]
    client.execute("SELECT length(%s::bytea)", (bytes(17 << 20),))
    client.execute("SELECT 'behind'")
    records: list[Record] = []
    total = 0
    while (read := drain(onlooker, pid, at))[0] > at:
        at, lost, _, more = read
        total += lost
        records += more
    assert total > 17 << 20
    assert any(text.sql == "SELECT 'behind'" for text in Trace(records).of("text"))


def test_texts_differ_beyond_what_is_kept(client: Connection, onlooker: Connection) -> None:
    same = "SELECT '" + "a" * 20_000
    trace = traced(onlooker, client, same + "'", same + "a'")
    assert len({c.text for c in trace.calls("execute")}) == 2


def test_secrets_of_one_length_are_distinguished(client: Connection, onlooker: Connection) -> None:
    """Where that part of the text is not kept, what is known of one says nothing of another."""
    far = "/*" + "x" * 20_000 + "*/"
    for name, state in (("pastword", "whole"), ("password", "redacted")):
        (value,) = values_of(bound(onlooker, client, f"SELECT {far} %s::text AS {name}", ("hush",)))
        assert value["state"] == state


def test_secrets_far_behind_what_is_kept(client: Connection, onlooker: Connection) -> None:
    """All of a source is searched, however little of it is kept."""
    client.execute("SET sql_trace.bind_length = -1; SET sql_trace.level = 4")
    pid = client.info.backend_pid
    lengths = (15_000, 17_000, 40_000, 200_000)
    for at in lengths:
        with contextlib.suppress(psycopg.Error):
            client.execute(f"SELECT {at}, /* {'x' * at} */ 'hush' AS password".encode())
    client.execute("SELECT 'shown'")
    data = one(onlooker, "SELECT data FROM sql_trace_drain(%s, 0)", pid)
    assert b"shown" in data
    assert b"hush" not in data
    texts = [t for t in trace_of(onlooker, pid).of("text") if t.length > lengths[0]]
    assert [t.flags & 2 for t in texts] == [2] * len(lengths)


@contextlib.contextmanager
def bound_record(
    tracer: Cluster, onlooker: Connection, shift: int, size: int
) -> Iterator[tuple[int, int, int]]:
    """A session that has bound what looks like a record of an error; shift: bytes before it.

    Yields its process, the end of its trace, and how many bytes are from that record to the end.
    """
    mark = b"here it begins: "
    value = b"." * shift + mark + struct.pack("<IHH", size, 8, 0) + b"\x01" * 16
    with session(tracer) as client:
        client.execute("SET sql_trace.level = 4")
        client.execute("SELECT length(%b::bytea)", (value,))
        pid = client.info.backend_pid
        ((end, data),) = rows(onlooker, "SELECT next, data FROM sql_trace_drain(%s, 0)", pid)
        yield pid, end, len(data) - bytes(data).index(mark) - len(mark)


def test_a_value_is_no_place_to_read_from(tracer: Cluster, onlooker: Connection) -> None:
    """However well the sizes fit from there on."""
    for shift in range(8):
        with bound_record(tracer, onlooker, shift, 0) as (_, _, left):
            if left % 8 == 0:
                break
    assert left % 8 == 0
    with bound_record(tracer, onlooker, shift, left) as (pid, end, again):
        assert again == left
        with pytest.raises(psycopg.Error, match="no record begins at this position"):
            drain(onlooker, pid, end - left)
        assert drain(onlooker, pid, end)[3] == []


def test_trace_of_a_role_that_may_not_look(tracer: Cluster, onlooker: Connection) -> None:
    """Its own trace it may read, unless something ran in it with the rights of others."""
    onlooker.execute(
        "DROP ROLE IF EXISTS plain; CREATE ROLE plain LOGIN; "
        "CREATE OR REPLACE FUNCTION by_owner() RETURNS bigint SECURITY DEFINER LANGUAGE plpgsql "
        "AS $$BEGIN RETURN (SELECT count(*) FROM pg_authid); END$$; "
        "ALTER ROLE plain SET sql_trace.level = 4"
    )
    schema = one(onlooker, "SELECT current_schema()")
    onlooker.execute(f"GRANT USAGE ON SCHEMA {schema} TO plain".encode())
    if one(onlooker, "SELECT to_regnamespace('sql_trace') IS NOT NULL"):
        onlooker.execute("GRANT USAGE ON SCHEMA sql_trace TO plain")
    try:
        with session(tracer, user="plain") as plain:
            pid = plain.info.backend_pid
            plain.execute("SELECT 'mine'")
            assert any(t.sql == "SELECT 'mine'" for t in Trace(drain(plain, pid)[3]).of("text"))
            with pytest.raises(psycopg.errors.UndefinedObject):
                drain(plain, onlooker.info.backend_pid)
            onlooker.execute("SET sql_trace.level = 1")
            onlooker.execute("SELECT 1")
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                drain(plain, onlooker.info.backend_pid)
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                plain.execute("SET sql_trace.level = 0")
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                plain.execute("SELECT sql_trace_set(%s, 0)", (pid,))
            pids = plain.execute("SELECT pid FROM pg_stat_sql_trace").fetchall()
            assert (pid,) in pids
            assert (onlooker.info.backend_pid,) not in pids
            plain.execute("SELECT by_owner()")
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                drain(plain, pid)
            assert drain(onlooker, pid)[3]
            onlooker.execute("GRANT SET ON PARAMETER sql_trace.level TO plain")
            plain.execute("SET sql_trace.level = 0")
            onlooker.execute("GRANT pg_read_all_stats TO plain")
            assert drain(plain, onlooker.info.backend_pid)[3]
    finally:
        onlooker.execute("DROP OWNED BY plain; DROP ROLE plain")


@pytest.mark.parametrize("before", ["", "x"])
def test_a_long_message_is_cut_between_letters(
    client: Connection, onlooker: Connection, before: str
) -> None:
    with tracing_session(onlooker, client, 4) as trace, pytest.raises(psycopg.DataError):
        client.execute(f"SELECT '{before}{'ö' * 1000}'::int".encode())
    (error,) = trace.of("error")
    assert error.message.endswith("ööö")
    assert error.stored == len(error.message.encode()) > 1000
    assert error.length > 2000


@pytest.mark.parametrize("values", [None, ("hush",)])
def test_statement_found_by_its_identifier_in_a_deferred_trigger(
    client: Connection, onlooker: Connection, values: tuple[str] | None
) -> None:
    """At Sync nobody knows any more what the client sent."""
    onlooker.execute(
        "CREATE TABLE slow (v text); CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS "
        "$$BEGIN EXECUTE 'SELECT ' || quote_literal(NEW.v); RETURN NEW; END$$; "
        "CREATE CONSTRAINT TRIGGER t AFTER INSERT ON slow DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION slow()"
    )
    try:
        (plan,) = one(client, "EXPLAIN (VERBOSE, FORMAT json) SELECT 'any'")
        client.execute(f"SET sql_trace.query_ids = '{plan['Query Identifier']}'".encode())
        value = "'hush'" if values is None else "%s"
        client.execute(f"INSERT INTO slow VALUES ({value}) -- password".encode(), values)
        trace = trace_of(onlooker, client.info.backend_pid)
    finally:
        onlooker.execute("DROP TABLE slow; DROP FUNCTION slow()")
    assert trace.calls("execute")
    assert set(trace.texts().values()) == {""}
