"""Test the Helm chart, rendered by Helm itself: manifests match their schemas, and run what compose runs."""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import kubernetes_validate
import pytest
import yaml

from fedgc.store.vault import PASSPHRASE_IN
from tests.docker.test_shipped import DOCKER, GIVEN, SERVICES, compose, exists, variables_of_fedgc

helm = pytest.importorskip("helm_python", reason="no wheel of Helm for this kind of machine")

CHART = DOCKER / "helm"
SERVER = {"server": {"advertise": "fl.example.org:443"}}
CLIENT = {"client": {"enabled": True, "server": "fl.example.org:443"}}
ALL = {
    "server": {**SERVER["server"], "database": "database", "tasks": "tasks"},
    "client": {
        **CLIENT["client"],
        **{"policy": "rules", "tasks": "tasks", "data": "data", "passphrase": "vault"},
        "autoscaling": {"enabled": True, "run": "ward", "max": 3},
    },
    "site": {"enabled": True, "consortium": "fl.example.com:443", "name": "north", "passphrase": "vault"},
    "metrics": {"enabled": True, "from": [{"namespaceSelector": {}}]},
}
VALUES = {
    "server": SERVER,
    "queue": {"server": {**SERVER["server"], "queue": True}},
    "clients": {"server": {"enabled": False}, **CLIENT},
    "all": ALL,
}
BAD = {
    "server.advertise: needed the address that clients dial": {},
    "client.server: needed the server's address": {"server": {"enabled": False}, "client": {"enabled": True}},
    "client.autoscaling.min: saw 5, needed at most client.autoscaling.max, 4": {
        "server": {"enabled": False},
        "client": {**CLIENT["client"], "autoscaling": {"enabled": True, "min": 5, "max": 4}},
    },
    "site.consortium: needed the address": {**SERVER, "site": {"enabled": True}},
    "site.enabled: saw server.enabled = false": {"server": {"enabled": False}, "site": {"enabled": True}},
    "additional properties 'sever' not allowed": {"sever": {}},
    "at '/metrics/clientGain'": {**SERVER, "metrics": {"clientGain": 2}},
    "at '/site/settings'": {**SERVER, "site": {"settings": 'script="a.py"'}},
}
NODE_CONFIGS = ("data='/data/ward.pt'", 'data="/data/ward.pt" note="it\'s"', "pace-s=0.5", "")
MASKED = 'federation="/gateway-keys/all.fed" vault="/state/gateway/north.db"'
HEALTH = ("startupProbe", "readinessProbe", "livenessProbe")


def rendered(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    with helm.Chart.load(str(CHART)) as chart:
        files = chart.render(values, name="ward", namespace="fleet")
    return [each for text in files.values() for each in yaml.safe_load_all(text) if each]


@cache
def manifests(name: str) -> list[dict[str, Any]]:
    return rendered(VALUES[name])


def containers(name: str) -> dict[str, dict[str, Any]]:
    specs = [each["spec"]["template"]["spec"] for each in manifests(name) if each["kind"] == "StatefulSet"]
    return {each["name"]: each for spec in specs for each in spec["containers"]}


@pytest.mark.parametrize("name", VALUES)
def test_chart_renders_valid_manifests(name: str):
    for each in manifests(name):
        kubernetes_validate.validate(each, kubernetes_validate.latest_version(), strict=True)


def test_unknown_field_of_manifest_is_detected():
    broken = {**manifests("server")[0], "metadta": {}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize("message", BAD)
def test_wrong_values_of_chart_are_refused(message: str):
    with pytest.raises(helm.HelmError, match=re.escape(message)):
        rendered(BAD[message])


def test_linter_of_helm_finds_no_fault():
    found = helm.lint(str(CHART), ALL)
    assert found["errors"] == []
    assert [each for each in found["messages"] if each["severity"] > 1] == []


def test_containers_of_chart_run_commands_of_compose():
    pods = containers("all") | containers("server") | containers("queue")
    compared = [(path, name) for path, name in SERVICES if name in pods]
    assert {name for _, name in compared} == {"server", "run", "queue", "proxy", "client", "gateway"}
    for path, name in compared:
        service, pod = compose.service(path, name, GIVEN), pods[name]
        assert tuple(pod.get("args", ())) == service.command
        probes = [tuple(pod[probe].get("exec", {}).get("command", ())) for probe in HEALTH if probe in pod]
        assert service.health in probes
        assert set(service.environment) - {each["name"] for each in pod["env"]} <= {"FEDGC_DB"}


def test_upgrade_replaces_pods_that_were_never_ready():
    """With the default, OrderedReady, Kubernetes waits for such a pod before it updates it."""
    sets = [each["spec"] for each in manifests("all") if each["kind"] == "StatefulSet"]
    assert [each["podManagementPolicy"] for each in sets] == ["Parallel", "Parallel"]


def test_full_disk_restarts_no_client():
    for name in ("client", "gateway"):
        container = containers("all")[name]
        for probe in HEALTH:
            words = container[probe]["exec"]["command"]
            assert ("--live" in words) is (probe != "readinessProbe")


def test_pods_of_chart_are_confined():
    for each in manifests("all"):
        if each["kind"] != "StatefulSet":
            continue
        spec = each["spec"]["template"]["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["automountServiceAccountToken"] is False
        for container in spec["containers"]:
            tight = container["securityContext"]
            assert (tight["readOnlyRootFilesystem"], tight["allowPrivilegeEscalation"]) == (True, False)
            assert container["resources"]["limits"]["memory"]
            assert any(probe in container for probe in HEALTH)
            assert {each["name"] for each in container["env"]} <= variables_of_fedgc() | {"FLWR_HOME"}
            if "proxy" not in container["image"]:
                exists(tuple(container["args"]))


def variables(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    specs = [each["spec"]["template"]["spec"] for each in rendered(values) if each["kind"] == "StatefulSet"]
    (found,) = [each for spec in specs for each in spec["containers"] if each["name"] == name]
    return {each["name"]: each.get("value") for each in found["env"]}


@pytest.mark.parametrize("text", NODE_CONFIGS)
def test_node_config_reaches_client_as_it_was_given(text: str):
    told = variables({"client": {**CLIENT["client"], "nodeConfig": text}, **SERVER}, "client")
    assert told["FEDGC_NODE_CONFIG"] == text


def test_settings_of_site_reach_gateway_in_quotes():
    settings = "min-clients=3 script='it'"
    site = {"enabled": True, "consortium": "fl.example.com:443", "name": "north", "settings": settings}
    told = variables({**SERVER, "site": site}, "gateway")
    assert told["FEDGC_NODE_CONFIG"] == (
        f'site-fleet="local" site-home="/state/flower" site-settings="{settings}"'
    )
    masked = variables({**SERVER, "site": {**site, "nodeConfig": MASKED}}, "gateway")
    assert masked["FEDGC_NODE_CONFIG"] == f"{told['FEDGC_NODE_CONFIG']} {MASKED}"


def test_passphrase_of_vault_comes_from_secret():
    found = {
        name: [each["valueFrom"] for each in container.get("env", []) if each["name"] == PASSPHRASE_IN]
        for name, container in containers("all").items()
    }
    secret = {"secretKeyRef": {"name": "vault", "key": "passphrase"}}
    assert {name: each for name, each in found.items() if each} == {"client": [secret], "gateway": [secret]}


def test_client_of_chart_sees_only_its_own_key():
    (client,) = [each for each in manifests("clients") if each["kind"] == "StatefulSet"]
    spec = client["spec"]["template"]["spec"]
    (keys,) = [each for each in spec["containers"][0]["volumeMounts"] if each["mountPath"] == "/keys"]
    assert keys["subPathExpr"] == "$(FEDGC_NAME)"
    (volume,) = [each["secret"] for each in spec["volumes"] if each["name"] == "keys"]
    paths = {each["key"]: each["path"] for each in volume["items"]}
    assert paths["ward-client-0.key"] == "ward-client-0/client.key"


def test_autoscaler_follows_clients_wanted():
    (scaler,) = [each for each in manifests("all") if each["kind"] == "HorizontalPodAutoscaler"]
    (metric,) = scaler["spec"]["metrics"]
    assert metric["external"]["metric"]["name"] == "fedgc_clients_wanted"
    assert metric["external"]["target"] == {"type": "AverageValue", "averageValue": "1"}
    (client,) = [
        each
        for each in manifests("all")
        if each["kind"] == "StatefulSet" and each["metadata"]["name"] == "ward-client"
    ]
    assert "replicas" not in client["spec"], "the autoscaler sets them"
    keys = next(each for each in client["spec"]["template"]["spec"]["volumes"] if each["name"] == "keys")
    assert len(keys["secret"]["items"]) == 2 * scaler["spec"]["maxReplicas"]


def test_only_proxy_and_metrics_are_reached():
    policies = {
        each["metadata"]["name"]: each["spec"] for each in manifests("all") if each["kind"] == "NetworkPolicy"
    }
    ports = [port["port"] for rule in policies["ward-server"]["ingress"] for port in rule["ports"]]
    assert ports == [8443, 8600]
    assert policies["ward-client"]["ingress"] == []
    assert [port["port"] for port in policies["ward-client"]["egress"][0]["ports"]] == [53, 53, 443, 8443]
