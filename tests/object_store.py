"""A real S3 server: versitygw, with a directory behind it."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.started_program import StartedProgram, free_port

INSTALL = "go install github.com/versity/versitygw/cmd/versitygw@latest"
KEY, SECRET = "fleet", "fleet-secret"


def require_versitygw() -> str:
    """The program; skips a test if it is missing."""
    found = shutil.which("versitygw") or shutil.which("versitygw", path=Path.home() / "go" / "bin")
    if found is None:
        pytest.skip(f"versitygw is not installed ({INSTALL})")
    return found


class ObjectStore(StartedProgram):
    """Serves buckets on a port of this machine; stopped at the end of `with`."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        #: What a client needs to reach it.
        self.environment = {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        data, notes = directory / "buckets", directory / "notes"
        data.mkdir(parents=True)
        notes.mkdir()
        command = [require_versitygw(), "--port", f"127.0.0.1:{self.port}"]
        command += ["--access", KEY, "--secret", SECRET, "--quiet"]
        command += ["posix", "--sidecar", str(notes), str(data)]
        super().__init__(command, directory / "log", self._reached)

    def _reached(self) -> None:
        socket.create_connection(("127.0.0.1", self.port), 1).close()

    def files(self) -> Any:
        """Its objects by fsspec."""
        import s3fs

        return s3fs.S3FileSystem(
            key=KEY, secret=SECRET, endpoint_url=self.url, skip_instance_cache=True
        )

    def upload(self, directory: Path, bucket: str, prefix: str) -> str:
        """Copy a directory into a new bucket. Returns its address."""
        files = self.files()
        files.mkdir(bucket)
        for path in sorted(directory.rglob("*")):
            if path.is_file():
                files.put_file(str(path), f"{bucket}/{prefix}/{path.relative_to(directory)}")
        return f"s3://{bucket}/{prefix}"
