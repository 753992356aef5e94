"""What waits and runs in the queues, for those who watch them and those who start workers for them. Only reads."""

import dataclasses
from collections.abc import Awaitable
from typing import Any, Final, cast

from redis.asyncio import Redis

from deployments.api.job_keys import DEADLINES, GROUP, PREFIX, lane_key, queue_key
from deployments.api.job_scripts import NOW
from deployments.api.redis_client import RedisStore
from deployments.api.video_job import Lane

MAX_DUE: Final = 200
"""Deadlines that are looked at, the nearest first."""

_DUE: Final = (
    NOW
    + """
-- Give milliseconds left and seconds of work of the unfinished jobs of a lane whose deadlines are nearest.
-- KEYS: deadlines | ARGV: prefix of jobs, prefix of the lane's queues, limit
local due = {}
for _, member in ipairs(redis.call('ZRANGE', KEYS[1], 0, ARGV[3] - 1)) do
  local slash = string.find(member, '/', 1, true)
  local job = ARGV[1] .. string.sub(member, 1, slash - 1) .. ':' .. string.sub(member, slash + 1)
  local held = redis.call('HMGET', job, 'queue', 'entry', 'deadline_ms')
  if held[1] and held[3] and string.sub(held[1], 1, #ARGV[2]) == ARGV[2] then
    local found = redis.call('XRANGE', held[1], held[2], held[2])
    if found[1] then
      for i = 1, #found[1][2], 2 do
        if found[1][2][i] == 'work' then
          due[#due + 1] = {string.format('%.0f', tonumber(held[3]) - now_ms), found[1][2][i + 1]}
        end
      end
    end
  end
end
return due
"""
)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Due:
    """Work that nobody wants later."""

    in_s: float
    """From now; negative when it is too late already."""
    work_s: float


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LaneLoad:
    """Unfinished jobs of a lane."""

    waiting: int
    running: int
    work_s: float
    """Seconds of work that all of them are, as predicted when they came; 0 where nobody could tell."""
    due: tuple[Due, ...] = ()
    """The part of them that has a deadline, the nearest first."""


class QueueReader(RedisStore):
    """Reads the queues. Bound to the event loop it is first used on."""

    def __init__(self, redis: Redis) -> None:
        super().__init__(redis)
        self._due = redis.register_script(_DUE)

    async def load(self, lane: Lane) -> LaneLoad:
        """Count the jobs of a lane, and sum up the seconds of work that they are."""
        work: dict[str, str] = await cast(Awaitable[Any], self._redis.hgetall(lane_key(lane, "work")))
        async with self._redis.pipeline(transaction=False) as pipe:
            for tenant in work:
                pipe.xlen(queue_key(lane, tenant))
                pipe.xpending(queue_key(lane, tenant), GROUP)
            found: list[Any] = await pipe.execute()
        running = sum(pending["pending"] for pending in found[1::2])
        due = await self._due(keys=[DEADLINES], args=[f"{PREFIX}:job:", queue_key(lane, ""), MAX_DUE])
        return LaneLoad(
            waiting=sum(found[::2]) - running,
            running=running,
            work_s=sum(map(float, work.values())),
            due=tuple(Due(in_s=int(left) / 1000, work_s=float(seconds)) for left, seconds in due),
        )
