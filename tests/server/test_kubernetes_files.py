"""The files in deploy/kubernetes: what a cluster would refuse, and the agent as its pod runs it."""

from __future__ import annotations

import configparser
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from psycopg.conninfo import conninfo_to_dict

import pgtare
from pgtare.keeping.spool.reader import query
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.modules import PRELOAD_ORDER
from tests.commands import read_until
from tests.prometheus import fetch
from tests.servers import serving
from tests.sessions import eventually
from tests.started_program import free_port

KUBERNETES = Path(__file__).parents[2] / "deploy" / "kubernetes"
#: Kinds of operators, whose schemas come with the operators alone.
OPERATORS = ("postgresql.cnpg.io/", "monitoring.coreos.com/")


def documents(name: str) -> dict[str, Any]:
    """The documents of a file by their kind."""
    return {each["kind"]: each for each in yaml.safe_load_all((KUBERNETES / name).read_text())}


@pytest.fixture
def agent() -> dict[str, Any]:
    return documents("agent.yaml")


@pytest.fixture
def pod(agent: dict[str, Any]) -> Any:
    return agent["StatefulSet"]["spec"]["template"]["spec"]


@pytest.mark.parametrize("path", sorted(KUBERNETES.glob("*.yaml")), ids=lambda path: path.name)
def test_kubernetes_knows_every_field(path: Path) -> None:
    for document in documents(path.name).values():
        if not document["apiVersion"].startswith(OPERATORS):
            version = kubernetes_validate.latest_version()
            kubernetes_validate.validate(document, version, strict=True)


def test_one_agent_with_a_volume_and_few_rights(agent: dict[str, Any], pod: Any) -> None:
    spec = agent["StatefulSet"]["spec"]
    (container,) = pod["containers"]
    assert spec["replicas"] == 1
    (claim,) = spec["volumeClaimTemplates"]
    mounts = {each["name"]: each for each in container["volumeMounts"]}
    assert "readOnly" not in mounts[claim["metadata"]["name"]]
    assert set(mounts) == {"spool", *(volume["name"] for volume in pod["volumes"])}
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    containerfile = (KUBERNETES.parents[1] / "Containerfile").read_text()
    assert f"\nUSER {pod['securityContext']['runAsUser']}\n" in containerfile
    assert "[agent,clickhouse,embedded]" in containerfile  # agent.toml may name a store
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_secrets_are_in_a_mounted_file_alone(pod: Any) -> None:
    secret = documents("secret-example.yaml")["Secret"]
    volume = {each["name"]: each for each in pod["volumes"]}["servers"]
    mounted, authority = (each["secret"] for each in volume["projected"]["sources"])
    assert mounted["name"] == secret["metadata"]["name"]
    assert {item["key"] for item in mounted["items"]} <= set(secret["stringData"])
    # who answers must be who was meant, before libpq says the password
    places = {each["name"]: each["mountPath"] for each in pod["containers"][0]["volumeMounts"]}
    (item,) = authority["items"]
    for entry in service_file().values():
        assert entry["sslmode"] == "verify-full"
        assert entry["sslrootcert"] == f"{places['servers']}/{item['path']}"
    (variable,) = pod["containers"][0]["env"]
    assert set(variable) == {"name", "value"}
    text = (KUBERNETES / "agent.yaml").read_text()
    assert secret["stringData"]["password"] not in text
    assert "password=" not in text


def test_what_refers_to_each_other_has_the_same_names(agent: dict[str, Any]) -> None:
    labels = agent["StatefulSet"]["spec"]["template"]["metadata"]["labels"]
    service = agent["Service"]
    assert service["spec"]["selector"].items() <= labels.items()
    monitor = documents("servicemonitor.yaml")["ServiceMonitor"]["spec"]
    assert monitor["selector"]["matchLabels"] == service["metadata"]["labels"]
    assert monitor["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]
    example = documents("cloudnativepg-example.yaml")
    spec, database = example["Cluster"]["spec"], example["Database"]["spec"]
    assert spec["postgresql"]["shared_preload_libraries"] == list(PRELOAD_ORDER)
    assert [each["name"] for each in database["extensions"]] == list(PRELOAD_ORDER)
    (role,) = spec["managed"]["roles"]
    secret = documents("secret-example.yaml")["Secret"]
    assert role["passwordSecret"]["name"] == secret["metadata"]["name"]
    (section, entry), *_ = service_file().items()
    assert entry["user"] == role["name"] == secret["stringData"]["username"]
    assert entry["password"] == secret["stringData"]["password"]
    assert entry["host"] == f"{example['Cluster']['metadata']['name']}-rw"
    assert f'dsn = "service={section}"' in agent["ConfigMap"]["data"]["agent.toml"]
    for name in ("agent.yaml", "cloudnativepg-example.yaml"):
        text = (KUBERNETES / name).read_text()
        assert pgtare.__version__ in text


def service_file() -> dict[str, dict[str, str]]:
    """The sections of the example's file of services."""
    parser = configparser.ConfigParser(default_section="")
    parser.read_string(documents("secret-example.yaml")["Secret"]["stringData"]["pg_service.conf"])
    return {name: dict(parser[name]) for name in parser.sections()}


@pytest.mark.server
@pytest.mark.usefixtures("as_root")
@pytest.mark.slow
def test_the_agent_runs_as_in_the_pod(
    wheel: Binaries, open_directory: Path, agent: dict[str, Any], pod: Any
) -> None:
    """The pod's arguments and files, with every file system read-only but the volume.

    It is the first process of its own, without capabilities and without a home.
    """
    if subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"], check=False).returncode:
        pytest.skip("needs namespaces of its own")
    (container,) = pod["containers"]
    places = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}

    def moved(text: str) -> str:
        """With places of the test's own for those where the pod mounts its volumes."""
        for name, path in places.items():
            text = text.replace(f"{path}/", f"{open_directory / name}/")
        return text

    for name in places:
        (open_directory / name).mkdir()
    text = moved(agent["ConfigMap"]["data"]["agent.toml"])
    with serving(wheel, tcp=True) as cluster:
        with cluster.connect() as connection:
            connection.execute("CREATE ROLE watcher LOGIN PASSWORD 'change-me' IN ROLE pg_monitor")
        ((section, entry),) = service_file().items()
        where = conninfo_to_dict(cluster.dsn(tcp=True))
        del entry["sslrootcert"]  # it has no certificate
        entry |= {key: str(where[key]) for key in ("host", "port", "dbname")} | {
            "sslmode": "prefer"
        }
        lines = [f"[{section}]", *(f"{key}={value}" for key, value in entry.items())]
        (open_directory / "servers" / "pg_service.conf").write_text("\n".join(lines))
        metrics = free_port()
        (open_directory / "config" / "agent.toml").write_text(text.replace("9187", str(metrics)))
        variables = [f"{each['name']}={moved(each['value'])}" for each in container["env"]]
        command = [
            *("unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-ec", _AS_THE_POD),
            *("sh", open_directory / "spool", "env", "-i", "PATH=/usr/bin:/bin", *variables),
            *(sys.executable, "-m", "pgtare", *map(moved, container["args"])),
        ]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            try:
                read_until(process, "waits=exact")
                address = f"http://127.0.0.1:{metrics}/metrics"
                eventually(lambda: "pgtare_active_seconds_total{" in fetch(address), 60)
            finally:
                (child,) = (
                    Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
                )
                os.kill(int(child), signal.SIGTERM)
                _, log = process.communicate(timeout=30)
    assert process.returncode == 0, log
    assert query(open_directory / "spool" / "spool", "SELECT count(*) FROM waits").rows[0][0] > 0


#: All is read-only but the directory that is named; then what follows runs without capabilities.
_AS_THE_POD = """
    mount --bind "$1" "$1"
    findmnt -rno TARGET | while read -r place; do
        [ "$place" = "$1" ] || mount -o remount,bind,ro "$place" 2>/dev/null || true
    done
    ! touch /tmp/pgtare-test 2>/dev/null || exit 3
    shift
    cd /
    exec setpriv --no-new-privs --bounding-set=-all --inh-caps=-all --ambient-caps=-all "$@"
"""
