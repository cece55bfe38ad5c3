"""Bytes of a server as text, in any encoding that PostgreSQL has.

A letter is one that PostgreSQL itself converts to, or it is none: what Python cannot read as
PostgreSQL does is written as `\\xNN`, byte by byte.
"""

from __future__ import annotations

import codecs

#: Python's codecs, by PostgreSQL's names. Those that only clients have are the last ones.
_CODECS = {
    "UTF8": "utf-8",
    "SQL_ASCII": "utf-8",  # says nothing of its texts
    "EUC_CN": "gb2312",
    "EUC_JP": "euc_jp",
    "EUC_JIS_2004": "euc_jis_2004",
    "EUC_KR": "cp949",  # euc_kr makes one letter of four if they follow a filler
    "ISO_8859_5": "iso8859-5",
    "ISO_8859_6": "iso8859-6",
    "ISO_8859_7": "iso8859-7",
    "ISO_8859_8": "iso8859-8",
    "KOI8R": "koi8-r",
    "KOI8U": "koi8-u",
    "LATIN1": "iso8859-1",
    "LATIN2": "iso8859-2",
    "LATIN3": "iso8859-3",
    "LATIN4": "iso8859-4",
    "LATIN5": "iso8859-9",
    "LATIN6": "iso8859-10",
    "LATIN7": "iso8859-13",
    "LATIN8": "iso8859-14",
    "LATIN9": "iso8859-15",
    "LATIN10": "iso8859-16",
    "WIN866": "cp866",
    "WIN874": "cp874",
    **{f"WIN{number}": f"cp{number}" for number in range(1250, 1259)},
    "BIG5": "big5",
    "GB18030": "gb18030",
    "GBK": "gbk",
    "JOHAB": "johab",
    "SHIFT_JIS_2004": "shift_jis_2004",
    "SJIS": "shift_jis",
    "UHC": "cp949",
}
#: Encodings in which U+FFFD marks what is damaged: a byte of a letter may be an ASCII one, or,
#: in UTF-8, nothing that PostgreSQL takes is unknown to Python.
_MARKED = {"UTF8", "SQL_ASCII", "BIG5", "GB18030", "GBK", "JOHAB", "SHIFT_JIS_2004", "SJIS", "UHC"}
#: What Python reads otherwise than PostgreSQL. Each of Python's is only one letter there.
_CORRECTED = {
    "EUC_JP": str.maketrans("〜‖−¢£¬¦", "～∥－￠￡￢￤"),
    "EUC_JIS_2004": str.maketrans("￣―￥⦅⦆", "‾—¥｟｠"),
}
#: Codecs that have letters of two bytes and three.
_LONG = {_CODECS[name] for name in ("EUC_CN", "EUC_JP", "EUC_JIS_2004", "EUC_KR")}
_ESCAPED = "pgtare.escaped"


def decoded(raw: bytes, encoding: str) -> str:
    """Bytes as text. encoding: PostgreSQL's name for it."""
    name = encoding.upper()
    codec = _CODECS.get(name)
    if codec is None:  # EUC_TW, MULE_INTERNAL
        return raw.decode("ascii", "backslashreplace")
    text = raw.decode(codec, "replace" if name in _MARKED else _ESCAPED)
    return text.translate(_CORRECTED[name]) if name in _CORRECTED else text


def _escape(error: UnicodeError) -> tuple[str, int]:
    """All bytes of a letter: its second byte must not begin another."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    raw, at = error.object, error.start
    most = 1
    if error.encoding in _LONG:
        most = 3 if raw[at] == 0x8F else 2
    end = at + 1
    while end < min(at + most, len(raw)) and raw[end] >= 0x80:
        end += 1
    return "".join(f"\\x{byte:02x}" for byte in raw[at:end]), end


codecs.register_error(_ESCAPED, _escape)
