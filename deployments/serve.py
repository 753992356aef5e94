"""Start the application on this machine: `python -m deployments.serve [--config app.yaml] [--port 8000]`.

Starts Ray and Serve in this process and stops both at Ctrl-C. On a cluster the same `build_app` is started by a
Serve config file instead; see deployments/configs.
"""

import argparse
import logging
import os
import pathlib
import signal
import socket
import sys
import threading
from collections.abc import Sequence

import yaml

from deployments.config import AppConfig

logger = logging.getLogger(__name__)

APP_NAME = "reprise"


def start(config: AppConfig, *, host: str, port: int, metrics_port: int | None = None) -> None:
    """Start Ray and the application; returns when every replica is up and the model is warm."""
    # Ray reports usage to its authors unless told otherwise; that is the operator's decision to make, not ours.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray
    from ray import serve

    from deployments.app import build_app

    ray.init(
        address="local",  # never somebody else's cluster
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.WARNING,
        configure_logging=False,
        _metrics_export_port=metrics_port,  # none picks a free one
    )
    serve.start(http_options={"host": host, "port": port}, logging_config={"log_level": "WARNING"})
    serve.run(build_app(config), name=APP_NAME, route_prefix="/")


def why_not_started() -> str | None:
    """Say which part keeps the application from starting."""
    from ray import serve

    from deployments.serving_state import what_is_missing

    app = serve.status().applications.get(APP_NAME)
    return None if app is None else what_is_missing(app.deployments)


def metrics_url() -> str:
    """Give the address of this node's metrics, ours and Ray's own."""
    import ray

    (node,) = (node for node in ray.nodes() if node["NodeID"] == ray.get_runtime_context().get_node_id())
    return f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"


def free_port() -> int:
    """Find a port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def drain() -> None:
    """Wait for the jobs that run; those that wait in the queue stay there."""
    from ray import serve

    from deployments.app import DRAIN_S

    serve.get_deployment_handle("Router", APP_NAME).drain.remote().result(timeout_s=DRAIN_S)


def stop() -> None:
    """Stop the application, waiting for running jobs, then Ray."""
    import ray
    from ray import serve

    app = serve.status().applications.get(APP_NAME)
    if app is not None and app.status == "RUNNING":
        try:
            # Serve stops all deployments at once, so the embedded store before a running job could finish in it.
            drain()
        except Exception:  # the stop goes on whatever happens; a job that was cut off runs again after the next start
            logger.exception("running jobs could not be waited for")
    serve.shutdown()
    ray.shutdown()


def main(argv: Sequence[str] | None = None) -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=pathlib.Path, help="YAML file with the keys of AppConfig")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--metrics-port", type=int, help="where Prometheus may read; by default any free port")
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    values = yaml.safe_load(args.config.read_text()) if args.config else {}
    config = AppConfig.model_validate(values or {})
    logger.info("starting %s; the first start takes about a minute", config.preset)
    try:
        start(config, host=args.host, port=args.port, metrics_port=args.metrics_port)
    except RuntimeError as error:
        logger.error("%s", why_not_started() or error)
        stop()
        sys.exit(1)
    done = threading.Event()
    for signum in (signal.SIGINT, signal.SIGTERM):  # after the start, since Ray takes SIGTERM over
        signal.signal(signum, lambda *_: done.set())
    logger.info("ready on http://%s:%d (POST /v1/videos, docs at /docs); Ctrl-C stops", args.host, args.port)
    logger.info("metrics on %s", metrics_url())
    done.wait()
    logger.info("stopping")
    stop()


if __name__ == "__main__":
    main()
