"""The Lua scripts of the job store's records: each is one atomic step over the keys that `jobs.py` describes.

Every script reads the server's own clock, so replicas with different clocks agree. All keys share the hash
tag `{jobs}`, so that a script may touch them together on a cluster. The scripts of the queue are in queue_scripts.py.
"""

from typing import Final

NOW: Final = """
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now_ms = math.floor(now_us / 1000)
"""

TOUCH: Final = """
local function touch(job, expiry, member, expires_ms)
  redis.call('HSET', job, 'expires_ms', string.format('%.0f', expires_ms))
  redis.call('PEXPIREAT', job, string.format('%.0f', expires_ms))
  redis.call('ZADD', expiry, string.format('%.0f', expires_ms), member)
end
"""

_REFUSE: Final = """
local function limits_of(prefix, tenant, most)
  local held = redis.call('HMGET', prefix .. ':limits:' .. tenant, 'weight', 'max_unfinished_jobs')
  return tonumber(held[1] or '1'), tonumber(held[2] or most)
end
-- Tell why a job of so many seconds cannot be taken; nil when it can.
local function refuse(prefix, tenant, queue, work, queues, most, most_of_tenant, seconds, most_wait, workers, deadline)
  local weight, mine = limits_of(prefix, tenant, most_of_tenant)
  if redis.call('XLEN', queue) >= mine then return {'tenant_full', mine} end
  -- Under fair queueing a job waits for its tenant's own work, and of the others' for what their weights let go first.
  local turn = (tonumber(redis.call('HGET', work, tenant) or '0') + seconds) / weight
  local held, unfinished, ahead = redis.call('HGETALL', work), 0, 0
  for i = 1, #held, 2 do
    unfinished = unfinished + redis.call('XLEN', queues .. held[i])
    local theirs = tonumber(held[i + 1])
    if held[i] ~= tenant then theirs = math.min(theirs, turn * limits_of(prefix, held[i], most_of_tenant)) end
    ahead = ahead + theirs
  end
  local wait = ahead / tonumber(workers)
  if unfinished >= tonumber(most) then return {'full'} end
  if tonumber(most_wait) > 0 and wait > tonumber(most_wait) then
    return {'overloaded', string.format('%.3f', wait)}
  end
  if deadline ~= '' and (wait + seconds) * 1000 > tonumber(deadline) then
    return {'too_late', string.format('%.3f', wait + seconds)}
  end
  return nil
end
"""

HAS_ROOM: Final = (
    _REFUSE
    + """
-- Tell whether a job of no work would be taken: then it is worth finding out how much it is.
-- KEYS: queue, work | ARGV: prefix, tenant, prefix of the lane's queues, most unfinished jobs of the lane, of a tenant,
--       most seconds of waiting, workers
return refuse(ARGV[1], ARGV[2], KEYS[1], KEYS[2], ARGV[3], ARGV[4], ARGV[5], 0, ARGV[6], ARGV[7], '') and 0 or 1
"""
)

CREATE: Final = (
    NOW
    + TOUCH
    + _REFUSE
    + """
-- KEYS: clock, list, queue, expiry, idempotency, turns, virtual time, work, bell, deadlines
-- ARGV: prefix, tenant, random, fingerprint ('' without a key), key lifetime ms, retention ms, model, request, reuse,
--       prefix of the lane's queues, group, most unfinished jobs of the lane, of a tenant without a limit of its own,
--       seconds of work that the job is, most seconds of waiting (0 any), workers, deadline in ms from now ('' none),
--       the caller's trace ('' none)
local tenant, job_prefix = ARGV[2], ARGV[1] .. ':job:' .. ARGV[2] .. ':'
if ARGV[4] ~= '' then
  local held = redis.call('HMGET', KEYS[5], 'id', 'fingerprint')
  if held[1] and redis.call('EXISTS', job_prefix .. held[1]) == 1 then
    if held[2] ~= ARGV[4] then return {'conflict', held[1]} end
    return {'existing', redis.call('HGETALL', job_prefix .. held[1])}
  end
end
local refusal = refuse(ARGV[1], tenant, KEYS[3], KEYS[8], ARGV[10], ARGV[12], ARGV[13], tonumber(ARGV[14]), ARGV[15],
  ARGV[16], ARGV[17])
if refusal then return refusal end
local weight, seconds = limits_of(ARGV[1], tenant, ARGV[13]), tonumber(ARGV[14])
-- Strictly rising over all replicas, so that list order is creation order and never changes.
local last = tonumber(redis.call('GET', KEYS[1]) or '0')
if now_us <= last then now_us = last + 1 end
local stamp = string.format('%016.0f', now_us)
redis.call('SET', KEYS[1], stamp)
local id = 'video_' .. stamp .. ARGV[3]
local job, member = job_prefix .. id, tenant .. '/' .. id
if redis.call('EXISTS', KEYS[3]) == 0 then redis.call('XGROUP', 'CREATE', KEYS[3], ARGV[11], '0', 'MKSTREAM') end
-- A job whose work nobody can tell yet counts as one second when tenants take turns.
local share = (seconds > 0 and seconds or 1) / weight
local entry = redis.call('XADD', KEYS[3], '*', 'tenant', tenant, 'id', id, 'work', ARGV[14], 'share', tostring(share))
redis.call('HINCRBYFLOAT', KEYS[8], tenant, ARGV[14])
local virtual, mine = redis.call('GET', KEYS[7]) or '0', redis.call('ZSCORE', KEYS[6], tenant)
if not mine or tonumber(mine) < tonumber(virtual) then redis.call('ZADD', KEYS[6], virtual, tenant) end
redis.call('HSET', job, 'id', id, 'tenant', tenant, 'status', 'queued', 'progress', 0, 'attempts', 0,
  'created_us', stamp, 'model', ARGV[7], 'request', ARGV[8], 'reuse', ARGV[9], 'entry', entry, 'queue', KEYS[3],
  'work', KEYS[8])
if ARGV[18] ~= '' then redis.call('HSET', job, 'traceparent', ARGV[18]) end
if ARGV[17] ~= '' then
  local deadline = string.format('%.0f', now_ms + ARGV[17])
  redis.call('HSET', job, 'deadline_ms', deadline)
  redis.call('ZADD', KEYS[10], deadline, member)
end
redis.call('ZADD', KEYS[2], stamp, id)
touch(job, KEYS[4], member, now_ms + ARGV[6])
if ARGV[4] ~= '' then
  redis.call('HSET', job, 'idempotency', KEYS[5])
  redis.call('DEL', KEYS[5])
  redis.call('HSET', KEYS[5], 'id', id, 'fingerprint', ARGV[4])
  redis.call('PEXPIRE', KEYS[5], ARGV[5])
end
-- Wake one router that waits; a few tokens too many cost it an empty look each.
redis.call('RPUSH', KEYS[9], '1')
redis.call('LTRIM', KEYS[9], -16, -1)
return {'created', redis.call('HGETALL', job)}
"""
)

NAME: Final = (
    NOW
    + """
-- Give a new job's creation stamp, as CREATE does, and its name.
-- KEYS: clock | ARGV: random
local last = tonumber(redis.call('GET', KEYS[1]) or '0')
if now_us <= last then now_us = last + 1 end
local stamp = string.format('%016.0f', now_us)
redis.call('SET', KEYS[1], stamp)
return 'video_' .. stamp .. ARGV[1]
"""
)

ADD: Final = (
    NOW
    + TOUCH
    + """
-- Write a job that is finished already, under a name that NAME gave; nobody ran it and nobody will.
-- KEYS: job, list, expiry | ARGV: tenant, id, stamp, retention ms, model, request, reuse, status
local now = string.format('%.0f', now_ms)
redis.call('HSET', KEYS[1], 'id', ARGV[2], 'tenant', ARGV[1], 'status', ARGV[8], 'progress', 100, 'attempts', 0,
  'created_us', ARGV[3], 'started_ms', now, 'ended_ms', now, 'model', ARGV[5], 'request', ARGV[6],
  'reuse', ARGV[7])
redis.call('ZADD', KEYS[2], ARGV[3], ARGV[2])
touch(KEYS[1], KEYS[3], ARGV[1] .. '/' .. ARGV[2], now_ms + ARGV[4])
return redis.call('HGETALL', KEYS[1])
"""
)

PAGE: Final = """
-- KEYS: list
-- ARGV: prefix of the tenant's jobs, stamp to start after ('' for the end), 'asc' or 'desc', limit
local limit, from, jobs = tonumber(ARGV[4]), ARGV[2], {}
while #jobs <= limit do
  local ids
  if ARGV[3] == 'asc' then
    local low = from == '' and '-inf' or '(' .. from
    ids = redis.call('ZRANGEBYSCORE', KEYS[1], low, '+inf', 'WITHSCORES', 'LIMIT', 0, limit + 1)
  else
    local high = from == '' and '+inf' or '(' .. from
    ids = redis.call('ZREVRANGEBYSCORE', KEYS[1], high, '-inf', 'WITHSCORES', 'LIMIT', 0, limit + 1)
  end
  if #ids == 0 then break end
  for i = 1, #ids, 2 do
    from = ids[i + 1]
    local job = redis.call('HGETALL', ARGV[1] .. ids[i])
    if #job == 0 then
      redis.call('ZREM', KEYS[1], ids[i])
    else
      jobs[#jobs + 1] = job
      if #jobs > limit then break end
    end
  end
end
return jobs
"""

DUE: Final = (
    NOW
    + """
-- KEYS: expiry | ARGV: limit
return redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now_ms), 'LIMIT', 0, ARGV[1])
"""
)

FORGET: Final = (
    NOW
    + """
-- KEYS: expiry, list | ARGV: member, id
local due = redis.call('ZSCORE', KEYS[1], ARGV[1])
if not due or tonumber(due) > now_ms then return 0 end
redis.call('ZREM', KEYS[2], ARGV[2])
return redis.call('ZREM', KEYS[1], ARGV[1])
"""
)
