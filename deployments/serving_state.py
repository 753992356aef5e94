"""Why an application does not serve, from what Serve says about its deployments. Pure; for `/health` and the start."""

from collections.abc import Mapping

from ray.serve.schema import DeploymentStatusOverview


def what_is_missing(deployments: Mapping[str, DeploymentStatusOverview]) -> str | None:
    """Name the first part that has no running replica and should have one, and why; None when there is none such."""
    missing = [
        (name, state)
        for name, state in deployments.items()
        if state.status != "HEALTHY" and not state.replica_states.get("RUNNING", 0)  # healthy without: scaled to zero
    ]
    # A part that failed comes before those that only wait for it.
    for name, state in sorted(missing, key=lambda each: each[1].status not in ("DEPLOY_FAILED", "UNHEALTHY")):
        reason = last_line(state.message)
        return f"{name} has no running replica{'' if reason is None else f': {reason}'}"
    return None


def last_line(message: str) -> str | None:
    """Give the line of a traceback that says what was wrong."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return lines[-1] if lines else None
