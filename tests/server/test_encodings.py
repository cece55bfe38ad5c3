"""Texts of databases of every encoding are read as PostgreSQL itself converts them, or escaped."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pgtare.observing.trace.file import record_decoder
from pgtare.postgres import own_session
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.encoded_text import decoded
from tests.unit.made_traces import StreamBuilder

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

#: How many letters Python does not know; of EUC_TW none of those that are not ASCII.
LACKING = {"EUC_JP": 189, "EUC_KR": 1, "EUC_TW": 5864}
#: PostgreSQL converts none of its letters to UTF8; these are an ä, as LATIN1 has it, and a 丂.
MULE = b"\x81\xe4\x91\xb0\xa1"
SERVER_ENCODINGS = [
    *("EUC_CN", "EUC_JP", "EUC_JIS_2004", "EUC_KR", "EUC_TW"),
    *(f"ISO_8859_{number}" for number in range(5, 9)),
    *("KOI8R", "KOI8U"),
    *(f"LATIN{number}" for number in range(1, 11)),
    *("WIN866", "WIN874", *(f"WIN{number}" for number in range(1250, 1259))),
]
#: Every letter of an encoding that is not ASCII, in its bytes and as PostgreSQL converts it.
LETTERS = """
SELECT code, pg_temp.converted(code, %(encoding)s)
FROM (
    SELECT set_byte('\\x00', 0, a) FROM generate_series(128, 255) a WHERE NOT %(long)s
    UNION ALL
    SELECT set_byte(set_byte('\\x0000', 0, a), 1, b)
    FROM generate_series(161, 254) b, generate_series(161, 254 + 1) c, LATERAL (
        SELECT CASE WHEN c = 255 THEN 142 ELSE c END AS a
    ) d WHERE %(long)s
    UNION ALL
    SELECT set_byte(set_byte('\\x8f0000', 1, a), 2, b)
    FROM generate_series(161, 254) a, generate_series(161, 254) b WHERE %(long)s
) codes (code)
WHERE pg_temp.converted(code, %(encoding)s) IS NOT NULL
"""
CONVERTED = """
CREATE FUNCTION pg_temp.converted(code bytea, encoding name) RETURNS text LANGUAGE plpgsql AS $$
BEGIN RETURN convert_from(code, encoding); EXCEPTION WHEN OTHERS THEN RETURN NULL; END $$
"""


@pytest.fixture(scope="module")
def utf8(wheel: Binaries) -> Iterator[Cluster]:
    with Cluster(wheel) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def letters(utf8: Cluster) -> dict[str, list[tuple[bytes, str]]]:
    """By encoding, what PostgreSQL converts."""
    with utf8.connect() as conn:
        assert conn.info.parameter_status("server_encoding") == "UTF8"
        conn.execute(CONVERTED)
        return {
            encoding: conn.execute(
                LETTERS, {"encoding": encoding, "long": encoding.startswith("EUC")}
            ).fetchall()
            for encoding in SERVER_ENCODINGS
        }


def escaped(raw: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in raw)


def test_no_encoding_of_the_server_is_left_out(utf8: Cluster) -> None:
    with utf8.connect() as conn:
        found = conn.execute(
            "SELECT name FROM generate_series(0, 34) n, pg_encoding_to_char(n) name"
            " WHERE name <> ''"
        ).fetchall()
    known = {"UTF8", "SQL_ASCII", "MULE_INTERNAL", *SERVER_ENCODINGS}
    assert {name for (name,) in found} <= known


@pytest.mark.parametrize("encoding", SERVER_ENCODINGS)
def test_every_letter(letters: dict[str, list[tuple[bytes, str]]], encoding: str) -> None:
    """One by one, and in a text, where one that Python does not know must not shift the rest."""
    found = letters[encoding]
    assert len(found) > 80
    read = [decoded(raw, encoding) for raw, _ in found]
    unknown = [raw for (raw, _), text in zip(found, read, strict=True) if text == escaped(raw)]
    assert len(unknown) == LACKING.get(encoding, 0)
    assert [
        (raw, text, given)
        for (raw, given), text in zip(found, read, strict=True)
        if text not in (given, escaped(raw))
    ] == []
    assert decoded(b"".join(raw for raw, _ in found), encoding) == "".join(read)


@pytest.mark.parametrize(
    "encoding",
    [
        *(
            pytest.param(one, marks=[pytest.mark.slow] * (one not in ("EUC_JP", "LATIN1")))
            for one in SERVER_ENCODINGS
        ),
        "MULE_INTERNAL",
        "SQL_ASCII",
        "UTF8",
    ],
)
def test_a_database_and_a_trace_of_it(
    utf8: Cluster, letters: dict[str, list[tuple[bytes, str]]], encoding: str
) -> None:
    """A text without any ASCII, as a session of ours reads it, and as a trace holds it."""
    some = letters.get(encoding, [])[-200:]
    raw, text = b"".join(raw for raw, _ in some), "".join(text for _, text in some)
    if encoding == "MULE_INTERNAL":
        raw = MULE
    elif not some:
        raw, text = "żółć丂".encode(), "żółć丂"
    if encoding in ("EUC_TW", "MULE_INTERNAL"):  # Python has no codec for them
        text = escaped(raw)
    elif encoding == "EUC_JP":
        text = decoded(raw, encoding)  # checked above, letter by letter
    with utf8.connect() as conn:
        conn.execute(
            f"CREATE DATABASE d ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0".encode()
        )
    try:
        with own_session.connect(utf8.dsn("d")) as conn:
            assert conn.info.parameter_status("server_encoding") == encoding
            for binary in (False, True):
                found = conn.execute(
                    "SELECT convert_from(%s, getdatabaseencoding())", (raw,), binary=binary
                ).fetchone()
                assert found == (text,)
            assert conn.execute(
                "SELECT ARRAY[convert_from(%s, getdatabaseencoding())]", (raw,)
            ).fetchone() == ([text],)
    finally:
        with utf8.connect() as conn:
            conn.execute("DROP DATABASE d WITH (FORCE)")
    stream = StreamBuilder()
    stream.session(encoding=encoding)
    stream.text(1, raw)
    stream.plan(2, b'[{"id": 0, "relation": "public.\\"' + raw + b'\\""}]')
    read = record_decoder.decode([(0, stream.data)])
    assert read.texts[1].text == text
    assert read.plans == {2: [{"id": 0, "relation": f'public."{text}"'}]}
    assert read.notes == []


@pytest.mark.parametrize(
    ("raw", "encoding", "text"),
    [
        (b"\xad\xa1\xb0\xa1", "EUC_JP", "\\xad\\xa1亜"),
        (b"\xb0\xa1\xb0", "EUC_JP", "亜\\xb0"),
        (b"\xb0A", "EUC_CN", "\\xb0A"),
        (b"\xaa\xe1", "WIN1253", "\\xaaα"),
        (b"SELECT \xe1", "MULE_INTERNAL", "SELECT \\xe1"),
        (b"\xff", "UTF8", "\ufffd"),
        (b"\xff", "SQL_ASCII", "\ufffd"),
        (b"\xff", "UNHEARD_OF", "\\xff"),
    ],
)
def test_what_is_damaged_is_marked(raw: bytes, encoding: str, text: str) -> None:
    assert decoded(raw, encoding) == text
