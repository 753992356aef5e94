"""The files that start Reprise on a cluster, held against the schemas of the programs that read them."""

import copy
import importlib
import pathlib
import re
from typing import Any

import pytest
import yaml
from pydantic import ValidationError
from ray.autoscaler._private.util import prepare_config, validate_config
from ray.serve.schema import ServeDeploySchema

from deployments.config import AppConfig

ROOT = pathlib.Path(__file__).parents[2]
SERVE_FILES = sorted((ROOT / "deployments" / "configs").glob("*.yaml"))


def cluster() -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load((ROOT / "cluster.yaml").read_text())
    return values


def check(config: dict[str, Any]) -> dict[str, Any]:
    """Do what `ray up` does before it touches anything."""
    prepared: dict[str, Any] = prepare_config(copy.deepcopy(config))
    validate_config(prepared)
    return prepared


def test_ray_accepts_the_cluster_file() -> None:
    prepared = check(cluster())
    assert set(prepared["available_node_types"]) == {"head", "cpu", "gpu"}
    assert prepared["available_node_types"]["gpu"]["resources"]["GPU"] == 1
    assert not any("GPU" in prepared["available_node_types"][name]["resources"] for name in ("head", "cpu"))


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"max_wrkers": 3}, "max_wrkers"),
        ({"max_workers": "four"}, "four"),
        ({"head_node_type": "no"}, "head_node_type"),
    ],
)
def test_ray_would_tell_of_a_mistake(change: dict[str, Any], word: str) -> None:
    with pytest.raises(Exception, match=word):
        check(cluster() | change)


def test_nothing_of_the_cluster_faces_the_world() -> None:
    config = cluster()
    assert config["provider"]["use_internal_ips"] is True
    for rule in config["provider"]["security_group"]["IpPermissions"]:
        assert all(entry["CidrIp"] != "0.0.0.0/0" for entry in rule["IpRanges"])
    (head,) = [line for line in config["head_start_ray_commands"] if "start --head" in line]
    assert "--dashboard-host=127.0.0.1" in head
    for line in (head, config["worker_start_ray_commands"][-1]):
        assert "RAY_AUTH_MODE=token" in line
        assert re.search(r"--node-ip-address=\$\(hostname -I", line)


@pytest.mark.parametrize("path", SERVE_FILES, ids=lambda path: path.stem)
def test_serve_accepts_its_config_file(path: pathlib.Path) -> None:
    values = yaml.safe_load(path.read_text())
    schema = ServeDeploySchema.model_validate(values)
    # Serve ignores what it does not know, so a misspelt key would go unnoticed.
    assert set(values) <= set(ServeDeploySchema.model_fields)
    assert schema.http_options.host == "127.0.0.1"
    application, *others = schema.applications
    module, _, name = application.import_path.partition(":")
    assert callable(getattr(importlib.import_module(module), name))
    config = AppConfig.model_validate(application.args)
    assert [other.route_prefix for other in others] == (["/llm"] if config.diff.base_url else [])
    for other in others:  # vLLM, which it imports, is not in every environment
        port, prefix = schema.http_options.port, other.route_prefix
        assert other.import_path == "ray.serve.llm:build_openai_app"
        assert config.diff.base_url == f"http://127.0.0.1:{port}{prefix}/v1"
        (model,) = other.args["llm_configs"]
        assert model["model_loading_config"]["model_id"] == config.diff.model
    assert config.data_path() == pathlib.Path(config.data_dir).expanduser(), "the same folder from every process"


def test_an_unknown_argument_is_refused_by_name() -> None:
    with pytest.raises(ValidationError, match="denoser"):
        AppConfig.model_validate({"denoser": {}})


def test_there_is_a_file_for_both_presets() -> None:
    found = {
        AppConfig.model_validate(yaml.safe_load(path.read_text())["applications"][0]["args"]).preset
        for path in SERVE_FILES
    }
    assert found == {"tiny", "wan2.1-t2v-1.3b"}
