"""Ways in which a secret can come near a trace: data for every version that is traced.

In each case `hush` is the secret: no trace may hold it. The harness gives it a number of its own,
so that a leak names its case.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bound:
    """A statement with values, by the extended protocol. named: prepared first, in a request."""

    sql: str
    values: tuple[str, ...]
    named: bool = False


@dataclass(frozen=True)
class Pipeline:
    """Messages that are sent before any is answered.

    parses: statements by name; binds: the name of one and its values.
    """

    parses: tuple[tuple[str, str], ...]
    binds: tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True)
class Called:
    """A function that the client calls past SQL, as libpq does for large objects."""

    function: str
    value: str


@dataclass(frozen=True)
class Copied:
    """COPY FROM STDIN, with these lines."""

    sql: str
    lines: str


@dataclass(frozen=True)
class Stopped:
    """A statement that another session cancels; or, with terminate, whose session it ends."""

    sql: str
    terminate: bool = False


Step = str | Bound | Pipeline | Called | Copied | Stopped


@dataclass(frozen=True)
class Case:
    """Steps of a traced session. before: what a session that is not traced runs first."""

    name: str
    steps: tuple[Step, ...]
    before: tuple[str, ...] = ()


def _case(name: str, *steps: Step, before: tuple[str, ...] = ()) -> Case:
    return Case(name, steps, before)


#: Run once on each server, by a session that is not traced.
SETUP = (
    "CREATE ROLE keeper",
    "CREATE TABLE vault (v text)",
    "CREATE TABLE counts (n int)",
    "CREATE TABLE keys (password text UNIQUE)",
    "CREATE FOREIGN DATA WRAPPER w",
    "CREATE SERVER far FOREIGN DATA WRAPPER w",
    "CREATE FUNCTION echo(x text) RETURNS text LANGUAGE plpgsql AS $$DECLARE y text; BEGIN "
    "EXECUTE 'SELECT $1' INTO y USING x; EXECUTE 'SELECT ' || quote_literal(x); RETURN y; END$$",
    "CREATE FUNCTION calm(x text) RETURNS text LANGUAGE plpgsql AS $$BEGIN RETURN 'calm'; END$$",
    "CREATE FUNCTION fail(x text) RETURNS text LANGUAGE plpgsql AS $$BEGIN RETURN 1 / 0; END$$",
    "CREATE PROCEDURE keep(x text) LANGUAGE plpgsql AS $$BEGIN "
    "COMMIT; EXECUTE 'SELECT ' || quote_literal(x); END$$",
    "CREATE PROCEDURE hand_on(x text) LANGUAGE plpgsql AS $$BEGIN "
    "EXECUTE 'INSERT INTO gates SELECT v FROM vault /* pass' || 'word */'; COMMIT; END$$",
    "CREATE FUNCTION echoes() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN "
    "EXECUTE 'SELECT ' || quote_literal(NEW.v); RETURN NEW; END$$",
    "CREATE TABLE doors (v text)",
    "CREATE TRIGGER t AFTER INSERT ON doors FOR EACH ROW EXECUTE FUNCTION echoes()",
    "CREATE TABLE gates (v text)",
    "CREATE CONSTRAINT TRIGGER t AFTER INSERT ON gates DEFERRABLE INITIALLY DEFERRED "
    "FOR EACH ROW EXECUTE FUNCTION echoes()",
    "CREATE FUNCTION open_gate(x text) RETURNS void LANGUAGE plpgsql AS $$BEGIN "
    "EXECUTE 'INSERT INTO gates VALUES (' || quote_literal(x) || ') /* pass' || 'word */'; END$$",
    "CREATE FUNCTION refuses() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN "
    "RAISE EXCEPTION 'not %', NEW.v; END$$",
    "CREATE TABLE walls (v text)",
    "CREATE CONSTRAINT TRIGGER t AFTER INSERT ON walls DEFERRABLE INITIALLY DEFERRED "
    "FOR EACH ROW EXECUTE FUNCTION refuses()",
    "CREATE FUNCTION unparsed() RETURNS void LANGUAGE plpgsql AS $$BEGIN "
    "EXECUTE 'alter role r password ''' || (SELECT v FROM vault); END$$",
    "CREATE FUNCTION unparsed_reported() RETURNS void LANGUAGE plpgsql AS $$BEGIN "
    "EXECUTE 'alter role r password ''' || (SELECT v FROM vault); "
    "EXCEPTION WHEN others THEN RAISE EXCEPTION 'failed: %', SQLERRM; END$$",
    "CREATE FUNCTION running_reported() RETURNS void LANGUAGE plpgsql AS $$BEGIN "
    "EXECUTE (SELECT v FROM vault); "
    "EXCEPTION WHEN others THEN RAISE EXCEPTION 'failed: %', SQLERRM; END$$",
    "CREATE FUNCTION failing() RETURNS void LANGUAGE plpgsql AS $$BEGIN "
    "EXECUTE 'ALTER ROLE nobody PASSWORD ' || quote_literal((SELECT v FROM vault)); END$$",
    "CREATE FUNCTION wrong() RETURNS int LANGUAGE sql AS "
    "$$SELECT 1; /* password */ SELECT v::int FROM vault$$",
    "CREATE FUNCTION wrong_reported() RETURNS void LANGUAGE plpgsql AS $$BEGIN PERFORM wrong(); "
    "EXCEPTION WHEN others THEN RAISE EXCEPTION 'failed: %', SQLERRM; END$$",
    "CREATE FUNCTION raising() RETURNS void LANGUAGE plpgsql AS $$BEGIN "
    "RAISE EXCEPTION 'the password is %', (SELECT v FROM vault); END$$",
    "CREATE FUNCTION raising_no_memory() RETURNS void LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION "
    "'the password is %', (SELECT v FROM vault) USING ERRCODE = '53200'; END$$",
    "CREATE FUNCTION hinting() RETURNS void LANGUAGE plpgsql AS $$BEGIN "
    "RAISE EXCEPTION '%', (SELECT v FROM vault) USING HINT = 'choose another password'; END$$",
    "CREATE FUNCTION looping() RETURNS void LANGUAGE plpgsql AS $$DECLARE r record; BEGIN "
    "FOR r IN SELECT echo(v) AS password FROM vault, generate_series(1, 30) LOOP "
    "PERFORM 1 FROM pg_am; END LOOP; END$$",
)

_VAULT = ("TRUNCATE vault", "INSERT INTO vault VALUES ('hush')")

#: A cursor that the trace did not see begin.  Cursors of statements that differ only in names as
#: long as these mostly lie in the same place, one after another.
_UNSEEN = (
    "DECLARE c CURSOR FOR SELECT echo(v) AS password FROM vault",
    "SET sql_trace.level = 12",
    "FETCH c",
    "CLOSE c",
)


def _places(times: int) -> tuple[str, ...]:
    """Unseen cursors, each after traced ones: closed in the trace, and when it had ended."""
    step = (
        "SET sql_trace.level = 12",
        "DECLARE c CURSOR FOR SELECT calm(v) AS filename FROM vault",
        "DECLARE d CURSOR FOR SELECT calm(v) AS filename FROM vault",
        "FETCH c",
        "CLOSE c",
        "SET sql_trace.level = 0",
        "CLOSE d",
    )
    return ("BEGIN", *(step + _UNSEEN) * times, "COMMIT")


def _failed(times: int) -> tuple[str, ...]:
    """The same, after a traced cursor that failed while nothing was traced.

    The cursor is older than the savepoint, and the executor never ends what failed: nothing says
    that it is gone.
    """
    step = (
        "SET sql_trace.level = 12",
        "DECLARE c CURSOR FOR SELECT fail(v) AS filename FROM vault",
        "SET sql_trace.level = 0",
        "SAVEPOINT s",
        "FETCH c",
        "ROLLBACK TO s",
        "CLOSE c",
    )
    return ("BEGIN", *(step + _UNSEEN) * times, "COMMIT")


_RATES = ("sql_trace.statement_rate = 0", "sql_trace.statement_rate = 1")
_LEVELS = ("sql_trace.level = 0", "sql_trace.level = 12")
_AT_ONCE = ("SET CONSTRAINTS ALL IMMEDIATE",)

CASES = (
    # roles
    _case("create role", "CREATE ROLE r1 PASSWORD 'hush'"),
    _case("create user", "CREATE USER r2 WITH LOGIN ENCRYPTED PASSWORD 'hush'"),
    _case("create group", "CREATE GROUP r3 PASSWORD 'hush'"),
    _case("alter user", "alter user keeper password 'hush'"),
    _case("alter role, by the extended protocol", Bound("ALTER ROLE keeper PASSWORD 'hush'", ())),
    _case("validity", "ALTER ROLE keeper VALID UNTIL 'hush'"),
    _case("setting of a role", "ALTER ROLE keeper SET work_mem = '1MB' -- hush"),
    _case("verifier", "ALTER USER keeper PASSWORD 'SCRAM-SHA-256$4096:hush$a:b'"),
    _case("verifier elsewhere", "SELECT 'SCRAM-SHA-256$4096:hush$a:b'"),
    _case("role that is not there", "ALTER ROLE nobody PASSWORD 'hush'"),
    _case("literal that does not end", "ALTER ROLE keeper PASSWORD 'hush"),
    _case("option that is not there", "CREATE ROLE r4 PASWORD 'hush'"),
    _case(
        "in a transaction that failed",
        "BEGIN",
        "SELECT 1/0",
        "ALTER ROLE keeper PASSWORD 'hush'",
        "ROLLBACK",
    ),
    # comments
    _case("leading comment", "/* password of bob */ SELECT 'hush'"),
    _case("leading comment, a value", Bound("/* password of bob */ SELECT $1::text", ("hush",))),
    _case(
        "leading comment, prepared",
        Bound("/* password of bob */ SELECT $1::text", ("hush",), named=True),
    ),
    _case("leading line", "-- passphrase\nSELECT 'hush'"),
    _case("leading comment, failing", "/* password */ SELECT 'hush'::int"),
    _case("leading comment, value fails", Bound("/* password */ SELECT $1::int", ("hush",))),
    _case("trailing comment", "SELECT 'hush' -- password"),
    _case("in a comment", "/* ALTER ROLE keeper VALID UNTIL 'hush' */ SELECT 1"),
    _case("between words", "ALTER /* a */ ROLE -- b\n keeper VALID UNTIL 'hush'"),
    _case("nested comments", "ALTER /* a /* b c d */ e */ USER keeper VALID 'hush'"),
    _case("comment that is none", "SELECT '--', 1 AS password, 'hush'"),
    _case("comment that does not end", "SELECT '/*', 'postgres://u:hush@h/'"),
    # several statements
    _case("before it", "SELECT 'hush'; ALTER ROLE keeper PASSWORD 'x'"),
    _case("after it", "ALTER ROLE keeper PASSWORD 'x'; SELECT 'hush'"),
    _case("one of three", "SELECT 1; /* password */ SELECT 'hush'; SELECT 2"),
    _case("one of three fails", "SELECT 1; SELECT 'hush'::int; SELECT 'password'"),
    # nested
    _case("block", "DO $$BEGIN EXECUTE 'ALTER ROLE keeper PASSWORD ''hush'''; END$$"),
    _case(
        "concatenated", "DO $$BEGIN EXECUTE 'ALTER' || ' ROLE keeper VALID UNTIL ''hush'''; END$$"
    ),
    _case(
        "quoted by dollars", "DO $a$BEGIN EXECUTE $b$alter role keeper password 'hush'$b$; END$a$"
    ),
    _case("nested, does not parse", "SELECT unparsed()", before=_VAULT),
    _case(
        "nested, does not parse, caught and reported", "SELECT unparsed_reported()", before=_VAULT
    ),
    _case(
        "nested, does not parse, in a cursor",
        "BEGIN",
        "DECLARE c CURSOR FOR SELECT unparsed()",
        "FETCH c",
        "ROLLBACK",
        before=_VAULT,
    ),
    _case(
        "nested and stored, does not parse, caught and reported",
        "SELECT running_reported()",
        before=("TRUNCATE vault", "INSERT INTO vault VALUES ('alter role r password ''hush')"),
    ),
    _case("nested, fails", "SELECT failing()", before=_VAULT),
    _case("nested, value fails", "SELECT wrong()", before=_VAULT),
    _case("nested, value fails, caught and reported", "SELECT wrong_reported()", before=_VAULT),
    _case("in a message", "SELECT raising()", before=_VAULT),
    _case("in a message, said to be of no memory", "SELECT raising_no_memory()", before=_VAULT),
    _case("hint", "SELECT hinting()", before=_VAULT),
    _case("handed on", "SELECT echo('hush') AS password"),
    _case("handed on, a value", Bound("SELECT echo($1) AS password", ("hush",))),
    _case("handed on by a procedure", "CALL keep('hush') -- password"),
    _case("handed on by a trigger", "INSERT INTO doors VALUES ('hush') -- password"),
    _case("handed on by a deferred trigger", "INSERT INTO gates VALUES ('hush') -- password"),
    _case(
        "handed on at Sync",
        Bound("INSERT INTO gates VALUES ($1) -- password", ("hush",)),
        Pipeline(
            (("gate", "INSERT INTO gates VALUES ($1) -- password"), ("one", "SELECT 1")),
            (("gate", ("hush",)), ("one", ())),
        ),
    ),
    _case("handed on after a call past SQL", Called("open_gate", "hush")),
    _case(
        "handed on by a call past SQL",
        "BEGIN",
        "INSERT INTO gates VALUES ('plain') -- password",
        Called("echo", "hush"),
        "ROLLBACK",
    ),
    _case(
        "in a deferred trigger's message",
        *("BEGIN", "INSERT INTO walls VALUES ('plain') -- password", "COMMIT"),
        *("BEGIN", "INSERT INTO walls VALUES ('hush') -- password", "COMMIT"),
        "SET sql_trace.level = 0",
        *("BEGIN", "INSERT INTO walls VALUES ('hush') -- password"),
        *("SET sql_trace.level = 12", "COMMIT"),
    ),
    _case(
        "handed on at COMMIT",
        "BEGIN",
        "INSERT INTO gates VALUES ('hush') -- password",
        "SELECT 1",
        "COMMIT",
    ),
    _case(
        "handed on at once",
        "BEGIN",
        Bound("INSERT INTO gates VALUES ($1) -- password", ("hush",)),
        "SET CONSTRAINTS ALL IMMEDIATE",
        "COMMIT",
    ),
    _case(
        "handed on at a procedure's COMMIT",
        "DO $$BEGIN INSERT INTO gates VALUES ('hush') /* password */; COMMIT; END$$",
        "DO $$BEGIN EXECUTE 'INSERT INTO gates VALUES (''hush'') /* pass' || 'word */'; "
        "COMMIT; END$$",
        "CALL hand_on('plain')",
        before=_VAULT,
    ),
    *(
        _case(
            f"handed on at COMMIT, {how}",
            f"SET {off}",
            "BEGIN",
            "INSERT INTO gates VALUES ('hush') -- password",
            f"SET {on}",
            "SELECT 1",
            *at_once,
            "COMMIT",
        )
        for how, off, on, at_once in (
            ("by a request that was not drawn", *_RATES, ()),
            ("at a level that was raised", *_LEVELS, ()),
            ("at once, by a request that was not drawn", *_RATES, _AT_ONCE),
            ("at once, at a level that was raised", *_LEVELS, _AT_ONCE),
        )
    ),
    _case("handed on in a loop", "SELECT looping()", before=_VAULT),
    _case(
        "function's body",
        "CREATE FUNCTION body() RETURNS void LANGUAGE plpgsql AS $$BEGIN "
        "ALTER ROLE keeper PASSWORD 'hush'; END$$",
        "SELECT body()",
    ),
    # prepared statements and cursors
    _case(
        "EXECUTE",
        "PREPARE p (text) AS SELECT $1 AS password",
        "EXECUTE p('hush')",
        "EXPLAIN EXECUTE p('hush')",
        "CREATE TEMP TABLE made AS EXECUTE p('hush')",
    ),
    _case(
        "EXECUTE by the extended protocol",
        "PREPARE ext (text) AS SELECT $1 AS password",
        Bound("EXECUTE ext('hush')", ()),
        Bound("EXPLAIN ANALYZE EXECUTE ext('hush')", (), named=True),
        Bound("CREATE TEMP TABLE ext_made AS EXECUTE ext('hush')", ()),
    ),
    _case(
        "EXECUTE and an error in one message",
        "PREPARE several (text) AS SELECT $1 AS password",
        "EXECUTE several('hush'); SELECT no_such_column",
    ),
    _case(
        "EXECUTE in a transaction that has failed",
        "PREPARE broken (text) AS SELECT $1 AS password",
        "BEGIN",
        "SELECT 1 / 0",
        "EXECUTE broken('hush')",
        Bound("EXECUTE broken('hush')", ()),
        "ROLLBACK",
    ),
    _case(
        "EXECUTE of what is gone",
        "PREPARE gone (text) AS SELECT $1 AS password",
        "DEALLOCATE gone; EXECUTE gone('hush')",
    ),
    _case("cursor", "BEGIN", "DECLARE c CURSOR FOR SELECT 'hush' AS password", "FETCH c", "COMMIT"),
    _case(
        "cursor that hands on",
        "BEGIN",
        "DECLARE c CURSOR FOR SELECT echo(v) AS password FROM vault",
        "SELECT 1",
        "FETCH c",
        "COMMIT",
        before=_VAULT,
    ),
    _case(
        "cursor of before the trace",
        "SET sql_trace.level = 0",
        "BEGIN",
        "DECLARE c CURSOR FOR SELECT echo(v) AS password FROM vault",
        "SET sql_trace.level = 12",
        "FETCH c",
        "COMMIT",
        before=_VAULT,
    ),
    _case("cursors of before the trace, in the places of others", *_places(5), before=_VAULT),
    _case(
        "cursor of before the trace, in the place of one that failed", *_failed(5), before=_VAULT
    ),
    _case("plan", "EXPLAIN SELECT 'hush' AS password"),
    _case("value", Bound("SELECT $1::text AS password", ("hush",))),
    _case(
        "value of a prepared statement", Bound("SELECT $1::text AS password", ("hush",), named=True)
    ),
    _case("value that fails", Bound("SELECT $1::int AS password", ("hush",))),
    _case(
        "value of a prepared statement that fails",
        Bound("SELECT $1::int AS password", ("hush",), named=True),
    ),
    _case(
        "pipeline",
        Pipeline(
            (("a", "SELECT $1::text AS password"), ("b", "SELECT 1")), (("a", ("hush",)), ("b", ()))
        ),
    ),
    _case(
        "pipeline, fails in the first of two",
        Pipeline(
            (("c", "SELECT $1::int AS password"), ("d", "SELECT $1::int")), (("c", ("hush",)),)
        ),
    ),
    _case(
        "pipeline, fails in one of before",
        Pipeline((("e", "SELECT $1::int AS password"),), ()),
        Pipeline((("f", "SELECT $1::int"),), (("e", ("hush",)),)),
    ),
    _case(
        "duplicate",
        "INSERT INTO keys SELECT v FROM vault",
        "INSERT INTO keys SELECT v FROM vault",
        before=_VAULT,
    ),
    # COPY
    _case("COPY", "COPY (SELECT 'hush' AS password) TO STDOUT"),
    _case("COPY from a program", "COPY counts FROM PROGRAM 'echo hush'"),
    _case(
        "options of a program",
        "COPY counts TO PROGRAM 'true --repo1-cipher-pass=hush'",
        "COPY counts FROM PROGRAM 'true --key hush'",
        "COPY counts FROM PROGRAM 'true -phush'",
    ),
    _case(
        "options of a command elsewhere",
        "ALTER SYSTEM SET archive_command = 'true --repo1-cipher-pass=hush' x",
        "SELECT 'mount --pass hush'",
        "SELECT 'sshpass -p hush ssh host'",
    ),
    _case("COPY of lines", Copied("COPY counts FROM STDIN /* passwords */", "hush\n")),
    # connections
    _case("dblink", "SELECT dblink_connect('host=hush')"),
    _case("dblink in a block", "DO $$BEGIN PERFORM dblink('host=hush', 'SELECT 1'); END$$"),
    _case(
        "wrapper",
        "CREATE FOREIGN DATA WRAPPER w1 OPTIONS (a 'hush')",
        "ALTER FOREIGN DATA WRAPPER w OPTIONS (a 'hush')",
    ),
    _case(
        "server",
        "CREATE SERVER s1 FOREIGN DATA WRAPPER w OPTIONS (host 'hush')",
        "ALTER SERVER far OPTIONS (ADD host 'hush')",
    ),
    _case(
        "user mapping",
        "CREATE USER MAPPING FOR postgres SERVER far OPTIONS (user 'hush')",
        "ALTER USER MAPPING FOR postgres SERVER far OPTIONS (SET user 'hush')",
    ),
    _case(
        "foreign table",
        "CREATE FOREIGN TABLE ft (a int) SERVER far OPTIONS (key 'hush')",
        "ALTER FOREIGN TABLE ft OPTIONS (SET key 'hush')",
        "ALTER TABLE ft OPTIONS (SET key 'hush')",
        "ALTER TABLE ft OPTIONS (DROP key, ADD other 'hush')",
        "ALTER TABLE ft ALTER COLUMN a OPTIONS (key 'hush')",
        "ALTER TABLE ft ADD COLUMN b int OPTIONS (key 'hush')",
        "ALTER VIEW ft OPTIONS (key 'hush')",
        "ALTER FOREIGN TABLE ft ALTER COLUMN a OPTIONS (SET key 'hush')",
        "DO $$BEGIN ALTER TABLE ft OPTIONS /* of w */ (SET other 'hush'); END$$",
        "ALTER TABLE ft OPTIONS (SET other 'hush',)",
        "CREATE TABLE t (a int OPTIONS (key 'hush'))",
        "IMPORT FOREIGN SCHEMA s FROM SERVER far INTO public OPTIONS (key 'hush')",
    ),
    _case(
        "subscription",
        "CREATE SUBSCRIPTION s CONNECTION 'host=hush' PUBLICATION p "
        "WITH (connect = false, slot_name = NONE)",
        "ALTER SUBSCRIPTION s CONNECTION 'host=hush'",
    ),
    _case("address", "SELECT 'postgresql://bob:hush@db/'"),
    _case("address of something else", "SELECT 'https://bob:hush@example.com/'"),
    _case(
        "signs in the password of an address",
        "SELECT 'postgres://bob:a/b#hush@db/'",
        "SELECT 'https://bob:a/hush@example.com/'",
        "SELECT 'redis://:a#hush@example.com'",
        "SELECT 'redis://:9#hush@example.com'",
        "SELECT 'https://bob:a?hush@example.com', 'https://example.com:443/'",
        "SELECT 'https://bob:12/hush@example.com'",
        "SELECT 'https://bob:12?hush@example.com'",
    ),
    _case(
        "headers",
        "SELECT 'Authorization: Bearer hush'",
        "SELECT http_header('Authorization', 'Basic hush')",
        """SELECT '{"authorization": "hush"}'""",
        "SELECT 'X-API-Key: hush'",
        "SELECT 'x-access-key: hush'",
        "SELECT 'x-api\tkey: hush'",
        "SELECT '-----BEGIN PRIVATE  KEY-----\nhush'",
        "SELECT 'AccountKey=hush;EndpointSuffix=a'",
        """SELECT '{"accessKey": "hush"}'""",
        """SELECT '{"privateKey": "hush"}'""",
    ),
    *(
        _case(f"{kind}private key", f"SELECT '-----BEGIN {kind}PRIVATE KEY-----\nhush'")
        for kind in ("", "RSA ", "EC ", "DSA ", "OPENSSH ", "ENCRYPTED ", "PGP ")
    ),
    *(
        _case(f"word: {word}", f"SELECT 'hush' AS {word}", Bound(f"SELECT $1 AS {word}", ("hush",)))
        for word in (
            *("pwd", "user_pwd", "pass", "userpass", "MyPass"),
            *("db_pass", "PASS2", "dbPass", "pass_hash"),
        )
    ),
    # settings
    _case(
        "primary_conninfo",
        "ALTER SYSTEM SET primary_conninfo = 'host=hush'",
        "ALTER SYSTEM RESET primary_conninfo",
        "SELECT set_config('primary_conninfo', 'hush', true)",
    ),
    _case(
        "ssl_passphrase_command",
        "ALTER SYSTEM SET ssl_passphrase_command = 'echo hush' x",
        "DO $$BEGIN EXECUTE 'ALTER SYSTEM SET ssl_passphrase_command = ''hush'' x'; END$$",
    ),
    _case(
        "settings",
        "SET keeper.password = 'hush'",
        "SET keeper.api_key TO 'hush'",
        "SELECT set_config('keeper.secret', 'hush', false)",
        "ALTER DATABASE postgres SET keeper.token = 'hush'",
    ),
    _case("value of a setting", Bound("SELECT set_config('keeper.password', $1, true)", ("hush",))),
    _case(
        "application",
        "SET application_name = 'password=hush'",
        "SELECT 1",
        "RESET application_name",
    ),
    # functions
    _case(
        "pgcrypto",
        "SELECT crypt('hush', gen_salt('bf'))",
        "SELECT pgp_sym_encrypt('a', 'hush')",
        "SELECT hmac('a', 'hush', 'sha256')",
        "SELECT encrypt('a', 'hush', 'aes')",
        "SELECT decrypt('a', 'hush', 'aes')",
        "SELECT pgp_pub_decrypt('a', 'hush')",
        "SELECT digest('hush', 'sha256')",
        "SELECT digest\f\v('hush', 'sha256')",
        "SELECT public.\"digest\" /* of bob */ ('hush', 'sha256')",
    ),
    _case(
        "pgcrypto, a value",
        Bound("SELECT pgp_sym_encrypt('a', $1)", ("hush",)),
        Bound("SELECT public.digest($1, 'sha256')", ("hush",)),
    ),
    # spelling
    _case("escapes", r"DO $$BEGIN EXECUTE E'\x61lter r\157le keeper valid until \'hush\''; END$$"),
    _case("escaped blank", r"DO $$BEGIN EXECUTE E'create\nserver far options (a ''hush'')'; END$$"),
    _case("escapes of Unicode", r"SELECT U&'\0061lter \+000072ole keeper valid until', 'hush'"),
    _case("other escapes", "SELECT U&'!0061lter !0072ole' UESCAPE '!', 'hush'"),
    _case("capitals", "cReAtE rOlE r5 VaLiD UNTIL 'hush'"),
    _case("other letters", "SELECT 'żółć hush 密码' AS \"пароль_password\""),
    _case("blanks that are none", "CREATE\u00a0SERVER far OPTIONS (a 'hush')"),
    _case("name that is long", f"SELECT 'hush' AS {'x' * 40}password"),
    _case(
        "name in another encoding",
        "SET client_encoding = 'LATIN1'",
        "SELECT 'hush'::int AS motdepassword",
        "RESET client_encoding",
    ),
    # length
    _case("word behind what is kept", f"SELECT 'hush', '{'x' * 40_000}' AS password"),
    _case(
        "word behind what is kept, a value",
        Bound(f"SELECT $1::text, '{'x' * 40_000}' AS password", ("hush",)),
    ),
    _case("word behind what is kept, fails", f"SELECT 'hush'::int, '{'x' * 40_000}' AS password"),
    _case(
        "word far behind, in another statement",
        f"SELECT 'hush'; /* {'x' * 300_000} */ SELECT 1; SELECT 2 AS password",
    ),
    _case("secret behind what is kept", f"SELECT '{'x' * 40_000}' AS password, 'hush'"),
    _case(
        "word far behind, nested",
        f"DO $$BEGIN EXECUTE 'SELECT ''hush'' /* {'x' * 100_000} password */'; END$$",
    ),
    # interrupted
    _case("cancelled", Stopped("SELECT pg_sleep(10), 'hush' AS password")),
    _case(
        "cancelled within", Stopped("DO $$BEGIN PERFORM pg_sleep(10), 'hush' AS password; END$$")
    ),
    _case("ended", Stopped("SELECT pg_sleep(10), 'hush' AS password", terminate=True)),
    _case(
        "timed out",
        "SET statement_timeout = 20",
        "SELECT pg_sleep(10), 'hush' AS password",
        "RESET statement_timeout",
    ),
)

#: Statements that are shown, although they look like some of these. Each has `plain` in it.
NEAR_MISSES = (
    "SELECT 'plain' AS passenger, 1 AS bypass, 2 AS compass, 3 AS pass_count, 4 AS passed",
    "SELECT 'plain', 'BYPASS', 'passing', 'two passes', 'wdpw', 'use_bypass', 'trespass'",
    "SELECT 'plain' AS authorization_date, 'bearer bonds', 'basic'",
    "SET SESSION AUTHORIZATION DEFAULT /* plain */",
    "SELECT 'plain' AS digest",
    "SELECT 'plain' FROM (VALUES (1)) AS d (digest), (VALUES (2)) AS e (digested)",
    "SELECT digest IN (1), 'plain' FROM (SELECT 1 AS digest) AS d",
    "SELECT 'https://example.com/@plain', 'https://example.com:8080/a', 'a@example.com'",
    "SELECT 'https://example.com/?a=b:c', 'plain@example.com'",
    "SELECT api.key, 'plain' FROM (SELECT 1 AS key) AS api",
    "CREATE PUBLICATION plain FOR TABLE counts",
    "ALTER TABLE counts ADD options text DEFAULT 'plain'",
    "INSERT INTO options (a) VALUES ('plain')",
    "CREATE TABLE plain (a int, FOREIGN KEY (a) REFERENCES counts (n), PRIMARY KEY (a))",
)
