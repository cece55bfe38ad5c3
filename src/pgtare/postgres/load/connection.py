"""Connection strings for client programs: nothing secret on a command line, our own name on top."""

from __future__ import annotations

import os

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgtare.errors import UsageError
from pgtare.postgres import chosen_host
from pgtare.postgres.own_session import unreadable

#: Secrets for which libpq has no environment variable.
UNSAFE = ("sslpassword", "scram_client_key", "scram_server_key", "oauth_client_secret")


def client_connection(dsn: str, application_name: str) -> tuple[str, dict[str, str]]:
    """A connection string fit for a command line, and the environment that completes it.

    The password moves to PGPASSWORD (PGPASSFILE and ~/.pgpass work as ever), application_name to
    PGAPPNAME, as one in the string would win over it.

    Raises UsageError if the string cannot be read or holds another secret.
    """
    try:
        parameters = conninfo_to_dict(chosen_host.one_host(dsn))
    except psycopg.ProgrammingError as ex:
        raise UsageError(unreadable(ex, dsn)) from ex
    for secret in UNSAFE:
        if parameters.get(secret):
            raise UsageError(
                f"{secret} cannot be handed to the load without showing it in the list of"
                " processes: put the connection into a service file and give service=NAME"
            )
    env = {**os.environ, "PGAPPNAME": application_name, "LC_ALL": "C"}
    password = parameters.pop("password", None)
    if password is not None:
        env["PGPASSWORD"] = str(password)
    parameters.pop("application_name", None)
    parameters.pop("fallback_application_name", None)
    return make_conninfo("", **parameters), env
