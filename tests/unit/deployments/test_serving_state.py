"""What is missing for an application to serve, from Serve's own statuses."""

from ray.serve.schema import DeploymentStatusOverview

from deployments.serving_state import last_line, what_is_missing

TRACEBACK = """The deployment failed to start 3 times in a row. Error:
ray::ServeReplica:reprise:Denoiser.initialize_and_get_metadata()
  File "denoiser.py", line 60, in start
reprise.errors.DoesNotFitError: the model needs 60.8 GiB of cuda:0

"""


def state(status: str, message: str = "", **replicas: int) -> DeploymentStatusOverview:
    return DeploymentStatusOverview(
        status=status,
        status_trigger="UNSPECIFIED",
        replica_states=replicas,
        message=message,
    )


def test_nothing_is_missing_while_every_part_has_a_replica_or_needs_none() -> None:
    parts = {
        "Api": state("HEALTHY", RUNNING=1),
        "Denoiser": state("UNHEALTHY", "one replica died", RUNNING=1, STARTING=1),
        "LongRenderer": state("HEALTHY"),
    }
    assert what_is_missing(parts) is None


def test_the_part_at_fault_comes_before_those_that_wait_for_it() -> None:
    parts = {"Api": state("UPDATING", STARTING=1), "Denoiser": state("DEPLOY_FAILED", TRACEBACK, STOPPING=1)}
    assert what_is_missing(parts) == (
        "Denoiser has no running replica: reprise.errors.DoesNotFitError: the model needs 60.8 GiB of cuda:0"
    )
    assert what_is_missing({"Api": parts["Api"]}) == "Api has no running replica"


def test_an_empty_message_gives_no_line() -> None:
    assert last_line(" \n") is None
