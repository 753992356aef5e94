"""Where the job store keeps what in Redis.

Layout, all under `reprise:{jobs}` (one hash tag, so that a script may touch several keys on a cluster):

    :job:<tenant>:<id>             hash, the record; expires by itself at `expires_ms`
    :list:<tenant>                 sorted set of ids by creation, microseconds that strictly rise over all replicas
    :idempotency:<tenant>:<hash>   hash (id, fingerprint of the body) of an Idempotency-Key
    :tombstone:<tenant>:<id>       set for a while after a delete: late writers are told, nothing is resurrected
    :expiry                        sorted set of `<tenant>/<id>` by the time when files are to be removed
    :deadlines                     sorted set of `<tenant>/<id>` by the time beyond which nobody wants the job
    :purges                        sorted set of deleted `<tenant>/<id>`, by time, whose latents may still be there
    :ended                         stream of `<tenant>/<id>` that reached a final status, for those who report it
    :clock                         the newest creation stamp
    :limits:<tenant>               hash (weight, max_unfinished_jobs), written by the tenant store
    and of every lane
    :<lane>:queue:<tenant>         stream of jobs, read by the consumer group `routers`; an entry stays until its job is
                                   final or deleted, so its length is jobs waiting plus jobs running
    :<lane>:turns                  sorted set of tenants by the virtual time of their next turn
    :<lane>:virtual                the virtual time of the newest turn taken
    :<lane>:work                   hash, of each tenant with unfinished jobs the seconds of work they are
    :<lane>:bell                   list, a token for each new job, so that a router that waits is woken

"""

from typing import Final

from deployments.api.video_job import Lane

PREFIX: Final = "reprise:{jobs}"
EXPIRY: Final = f"{PREFIX}:expiry"
DEADLINES: Final = f"{PREFIX}:deadlines"
PURGES: Final = f"{PREFIX}:purges"
ENDED: Final = f"{PREFIX}:ended"
CLOCK: Final = f"{PREFIX}:clock"
GROUP: Final = "routers"


def job_key(tenant: str, video_id: str) -> str:
    """Name a job's record."""
    return f"{PREFIX}:job:{tenant}:{video_id}"


def tombstone_key(tenant: str, video_id: str) -> str:
    """Name the mark of a deleted job."""
    return f"{PREFIX}:tombstone:{tenant}:{video_id}"


def idempotency_key(tenant: str, digest: str) -> str:
    """Name what an Idempotency-Key made."""
    return f"{PREFIX}:idempotency:{tenant}:{digest}"


def list_key(tenant: str) -> str:
    """Name a tenant's list of jobs."""
    return f"{PREFIX}:list:{tenant}"


def limits_key(tenant: str) -> str:
    """Name a tenant's limits."""
    return f"{PREFIX}:limits:{tenant}"


def lane_key(lane: Lane, name: str) -> str:
    """Name something of a lane."""
    return f"{PREFIX}:{lane}:{name}"


def queue_key(lane: Lane, tenant: str) -> str:
    """Name a tenant's queue in a lane."""
    return f"{PREFIX}:{lane}:queue:{tenant}"


def member_of(tenant: str, video_id: str) -> str:
    """Name a job in a set of jobs of all tenants."""
    return f"{tenant}/{video_id}"
