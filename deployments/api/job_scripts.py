"""The Lua scripts of the job store: each is one atomic step over the keys that `jobs.py` describes.

Every script reads the server's own clock, so replicas with different clocks agree. All keys share the hash
tag `{jobs}`, so that a script may touch them together on a cluster. Decides nothing about statuses: the
allowed ones come in as arguments from the table in `jobs.py`.
"""

from typing import Final

_NOW: Final = """
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now_ms = math.floor(now_us / 1000)
"""

_TOUCH: Final = """
local function touch(job, expiry, member, expires_ms)
  redis.call('HSET', job, 'expires_ms', string.format('%.0f', expires_ms))
  redis.call('PEXPIREAT', job, string.format('%.0f', expires_ms))
  redis.call('ZADD', expiry, string.format('%.0f', expires_ms), member)
end
"""

CREATE: Final = (
    _NOW
    + _TOUCH
    + """
-- KEYS: clock, list, stream, expiry, idempotency
-- ARGV: prefix, tenant, random, fingerprint ('' without a key), key lifetime ms, retention ms, model, request, reuse,
--       most unfinished jobs
local job_prefix = ARGV[1] .. ':job:' .. ARGV[2] .. ':'
if ARGV[4] ~= '' then
  local held = redis.call('HMGET', KEYS[5], 'id', 'fingerprint')
  if held[1] and redis.call('EXISTS', job_prefix .. held[1]) == 1 then
    if held[2] ~= ARGV[4] then return {'conflict', held[1]} end
    return {'existing', redis.call('HGETALL', job_prefix .. held[1])}
  end
end
if redis.call('XLEN', KEYS[3]) >= tonumber(ARGV[10]) then return {'full'} end
-- Strictly rising over all replicas, so that list order is creation order and never changes.
local last = tonumber(redis.call('GET', KEYS[1]) or '0')
if now_us <= last then now_us = last + 1 end
local stamp = string.format('%016.0f', now_us)
redis.call('SET', KEYS[1], stamp)
local id = 'video_' .. stamp .. ARGV[3]
local job = job_prefix .. id
local entry = redis.call('XADD', KEYS[3], '*', 'tenant', ARGV[2], 'id', id)
redis.call('HSET', job, 'id', id, 'tenant', ARGV[2], 'status', 'queued', 'progress', 0, 'attempts', 0,
  'created_us', stamp, 'model', ARGV[7], 'request', ARGV[8], 'reuse', ARGV[9], 'entry', entry, 'stream', KEYS[3])
redis.call('ZADD', KEYS[2], stamp, id)
touch(job, KEYS[4], ARGV[2] .. '/' .. id, now_ms + ARGV[6])
if ARGV[4] ~= '' then
  redis.call('HSET', job, 'idempotency', KEYS[5])
  redis.call('DEL', KEYS[5])
  redis.call('HSET', KEYS[5], 'id', id, 'fingerprint', ARGV[4])
  redis.call('PEXPIRE', KEYS[5], ARGV[5])
end
return {'created', redis.call('HGETALL', job)}
"""
)

NAME: Final = (
    _NOW
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
    _NOW
    + _TOUCH
    + """
-- Write a job that is finished already, under a name that NAME gave; nobody ran it and nobody will.
-- KEYS: job, list, expiry | ARGV: tenant, id, stamp, retention ms, model, request, reuse, status
local now_s = math.floor(now_ms / 1000)
redis.call('HSET', KEYS[1], 'id', ARGV[2], 'tenant', ARGV[1], 'status', ARGV[8], 'progress', 100, 'attempts', 0,
  'created_us', ARGV[3], 'started_at', now_s, 'completed_at', now_s, 'model', ARGV[5], 'request', ARGV[6],
  'reuse', ARGV[7])
redis.call('ZADD', KEYS[2], ARGV[3], ARGV[2])
touch(KEYS[1], KEYS[3], ARGV[1] .. '/' .. ARGV[2], now_ms + ARGV[4])
return redis.call('HGETALL', KEYS[1])
"""
)

TAKE: Final = (
    _NOW
    + _TOUCH
    + """
-- Begin a run of a delivered entry, or drop the entry when there is nothing to run.
-- KEYS: job, stream, expiry
-- ARGV: group, entry, max attempts, error of a job tried too often, retention ms, member
local status = redis.call('HGET', KEYS[1], 'status')
if status == 'queued' or status == 'in_progress' then
  if redis.call('HINCRBY', KEYS[1], 'attempts', 1) <= tonumber(ARGV[3]) then
    touch(KEYS[1], KEYS[3], ARGV[6], now_ms + ARGV[5])
    return redis.call('HGETALL', KEYS[1])
  end
  redis.call('HSET', KEYS[1], 'status', 'failed', 'error', ARGV[4])
  touch(KEYS[1], KEYS[3], ARGV[6], now_ms + ARGV[5])
end
redis.call('XACK', KEYS[2], ARGV[1], ARGV[2])
redis.call('XDEL', KEYS[2], ARGV[2])
return {}
"""
)

ADVANCE: Final = (
    _NOW
    + _TOUCH
    + """
-- Move a job to a status, if the caller holds its newest run and the present status is one of the allowed.
-- KEYS: job, tombstone, stream, expiry
-- ARGV: attempt, target, allowed (each between spaces), progress, retention ms, member, group ('' keeps the entry),
--       entry, field to stamp with the time ('' for none), then fields and values
if redis.call('EXISTS', KEYS[2]) == 1 then return 'deleted' end
local held = redis.call('HMGET', KEYS[1], 'status', 'attempts', 'progress')
if not held[1] then return 'gone' end
if held[2] ~= ARGV[1] then return 'stale' end
if not string.find(ARGV[3], ' ' .. held[1] .. ' ', 1, true) then return 'illegal' end
redis.call('HSET', KEYS[1], 'status', ARGV[2], 'progress', math.max(tonumber(held[3]), tonumber(ARGV[4])))
if ARGV[9] ~= '' then redis.call('HSETNX', KEYS[1], ARGV[9], math.floor(now_ms / 1000)) end
for i = 10, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
touch(KEYS[1], KEYS[4], ARGV[6], now_ms + ARGV[5])
if ARGV[7] ~= '' then
  redis.call('XACK', KEYS[3], ARGV[7], ARGV[8])
  redis.call('XDEL', KEYS[3], ARGV[8])
end
return 'applied'
"""
)

RENEW: Final = (
    _NOW
    + _TOUCH
    + """
-- KEYS: job, stream, expiry | ARGV: group, consumer, entry, attempt, retention ms, member
if redis.call('HGET', KEYS[1], 'attempts') ~= ARGV[4] then return 0 end
if #redis.call('XCLAIM', KEYS[2], ARGV[1], ARGV[2], 0, ARGV[3], 'JUSTID') == 0 then return 0 end
touch(KEYS[1], KEYS[3], ARGV[6], now_ms + ARGV[5])
return 1
"""
)

DELETE: Final = (
    _NOW
    + """
-- KEYS: job, tombstone, list, expiry
-- ARGV: id, member, tombstone lifetime ms, group
local held = redis.call('HMGET', KEYS[1], 'entry', 'idempotency', 'stream')
if redis.call('DEL', KEYS[1]) == 0 then return 0 end
redis.call('SET', KEYS[2], '1', 'PX', ARGV[3])
redis.call('ZREM', KEYS[3], ARGV[1])
-- An expired key may have been taken over by a newer job: only our own goes.
if held[2] and redis.call('HGET', held[2], 'id') == ARGV[1] then redis.call('DEL', held[2]) end
if held[3] then -- a video that was added finished never waited in a queue
  redis.call('XACK', held[3], ARGV[4], held[1])
  redis.call('XDEL', held[3], held[1])
end
-- The sweep removes the files once more when no late writer can be left.
redis.call('ZADD', KEYS[4], string.format('%.0f', now_ms + ARGV[3]), ARGV[2])
return 1
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
    _NOW
    + """
-- KEYS: expiry | ARGV: limit
return redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now_ms), 'LIMIT', 0, ARGV[1])
"""
)

FORGET: Final = (
    _NOW
    + """
-- KEYS: expiry, list | ARGV: member, id
local due = redis.call('ZSCORE', KEYS[1], ARGV[1])
if not due or tonumber(due) > now_ms then return 0 end
redis.call('ZREM', KEYS[2], ARGV[2])
return redis.call('ZREM', KEYS[1], ARGV[1])
"""
)
