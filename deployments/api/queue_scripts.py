"""The Lua scripts of the queue: who runs next, who may write a run, and what leaves nothing behind.

A lane's jobs wait in one stream per tenant, and tenants take turns by start-time fair queueing: a tenant's turn is the
virtual time at which its next job begins, and moves on by the job's predicted seconds over the tenant's weight. So a
tenant that sends a thousand jobs delays another's first one by at most the jobs that run.
Each script is one atomic step over the keys that `jobs.py` describes. Decides nothing about statuses: the allowed
ones come in as arguments from the table in `video_job.py`.
"""

from typing import Final

from deployments.api.job_scripts import NOW, TOUCH

_LEAVE: Final = """
-- Take a job that is final or deleted out of its queue and its work out of the sum.
local function leave(queue, group, entry, work, deadlines)
  local found = redis.call('XRANGE', queue, entry, entry)
  redis.call('XACK', queue, group, entry)
  if redis.call('XDEL', queue, entry) == 0 then return end
  local fields = {}
  for i = 1, #found[1][2], 2 do fields[found[1][2][i]] = found[1][2][i + 1] end
  redis.call('HINCRBYFLOAT', work, fields.tenant, '-' .. fields.work)
  if redis.call('XLEN', queue) == 0 then redis.call('HDEL', work, fields.tenant) end
  redis.call('ZREM', deadlines, fields.tenant .. '/' .. fields.id)
end
-- Stamp a job that is final and let those know who report how jobs ended.
local function tell(ended, job, member)
  redis.call('HSET', job, 'ended_ms', string.format('%.0f', now_ms))
  redis.call('XADD', ended, 'MAXLEN', '~', 100000, '*', 'job', member)
end
"""

CLAIM: Final = (
    NOW
    + TOUCH
    + _LEAVE
    + """
-- Begin runs: first of jobs whose router is dead, then of waiting ones, tenant by tenant in turn.
-- KEYS: turns, virtual time, work, expiry, deadlines, ended
-- ARGV: prefix of jobs, prefix of the lane's queues, group, consumer, most, idle ms after which a router is dead,
--       most attempts, error of a job tried too often, retention ms
local taken, most = {}, tonumber(ARGV[5])
local function begin(queue, entry)
  local fields = {}
  for i = 1, #entry[2], 2 do fields[entry[2][i]] = entry[2][i + 1] end
  local member = fields.tenant .. '/' .. fields.id
  local job = ARGV[1] .. fields.tenant .. ':' .. fields.id
  local status = redis.call('HGET', job, 'status')
  if status == 'queued' or status == 'in_progress' then
    touch(job, KEYS[4], member, now_ms + ARGV[9])
    if redis.call('HINCRBY', job, 'attempts', 1) <= tonumber(ARGV[7]) then
      taken[#taken + 1] = {queue, entry[1], redis.call('HGETALL', job)}
      return
    end
    redis.call('HSET', job, 'status', 'failed', 'error', ARGV[8])
    tell(KEYS[6], job, member)
  end
  leave(queue, ARGV[3], entry[1], KEYS[3], KEYS[5])
end
local tenants = redis.call('ZRANGE', KEYS[1], 0, -1)
for _, tenant in ipairs(tenants) do
  if #taken >= most then break end
  local queue = ARGV[2] .. tenant
  if redis.call('EXISTS', queue) == 1 then
    local found = redis.call('XAUTOCLAIM', queue, ARGV[3], ARGV[4], ARGV[6], '0-0', 'COUNT', most - #taken)
    for _, entry in ipairs(found[2]) do begin(queue, entry) end
  end
end
local virtual = tonumber(redis.call('GET', KEYS[2]) or '0')
while #taken < most do
  local delivered = false
  for _, tenant in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
    local queue = ARGV[2] .. tenant
    local read = false
    if redis.call('XLEN', queue) > 0 then
      read = redis.call('XREADGROUP', 'GROUP', ARGV[3], ARGV[4], 'COUNT', 1, 'STREAMS', queue, '>')
    end
    local turn = tonumber(redis.call('ZSCORE', KEYS[1], tenant))
    if read then
      local entry = read[1][2][1]
      virtual = math.max(virtual, turn)
      redis.call('SET', KEYS[2], string.format('%.6f', virtual))
      local share = 0
      for i = 1, #entry[2], 2 do
        if entry[2][i] == 'share' then share = tonumber(entry[2][i + 1]) end
      end
      redis.call('ZADD', KEYS[1], string.format('%.6f', turn + share), tenant)
      begin(queue, entry)
      delivered = true
      break
    elseif turn <= virtual and redis.call('XLEN', queue) == 0 then
      redis.call('ZREM', KEYS[1], tenant)
      redis.call('DEL', queue)
    end
  end
  if not delivered then break end
end
return taken
"""
)

ADVANCE: Final = (
    NOW
    + TOUCH
    + _LEAVE
    + """
-- Move a job to a status, if the caller holds its newest run and the present status is one of the allowed.
-- KEYS: job, tombstone, queue, expiry, work, deadlines, ended
-- ARGV: attempt, target, allowed (each between spaces), progress, retention ms, member, is it final ('1' or ''), group,
--       entry, field to stamp with the time ('' for none), error of a job past its deadline, then fields and values
if redis.call('EXISTS', KEYS[2]) == 1 then return 'deleted' end
local held = redis.call('HMGET', KEYS[1], 'status', 'attempts', 'progress', 'deadline_ms')
if not held[1] then return 'gone' end
if held[2] ~= ARGV[1] then return 'stale' end
if not string.find(ARGV[3], ' ' .. held[1] .. ' ', 1, true) then return 'illegal' end
local is_final, outcome = ARGV[7] ~= '', 'applied'
if not is_final and held[4] and tonumber(held[4]) < now_ms then
  redis.call('HSET', KEYS[1], 'status', 'failed', 'error', ARGV[11])
  is_final, outcome = true, 'late'
else
  redis.call('HSET', KEYS[1], 'status', ARGV[2], 'progress', math.max(tonumber(held[3]), tonumber(ARGV[4])))
  if ARGV[10] ~= '' then redis.call('HSETNX', KEYS[1], ARGV[10], string.format('%.0f', now_ms)) end
  for i = 12, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
end
touch(KEYS[1], KEYS[4], ARGV[6], now_ms + ARGV[5])
if is_final then
  leave(KEYS[3], ARGV[8], ARGV[9], KEYS[5], KEYS[6])
  tell(KEYS[7], KEYS[1], ARGV[6])
end
return outcome
"""
)

RENEW: Final = (
    NOW
    + TOUCH
    + """
-- KEYS: job, queue, expiry | ARGV: group, consumer, entry, attempt, retention ms, member
if redis.call('HGET', KEYS[1], 'attempts') ~= ARGV[4] then return 0 end
if redis.call('EXISTS', KEYS[2]) == 0 then return 0 end
if #redis.call('XCLAIM', KEYS[2], ARGV[1], ARGV[2], 0, ARGV[3], 'JUSTID') == 0 then return 0 end
touch(KEYS[1], KEYS[3], ARGV[6], now_ms + ARGV[5])
return 1
"""
)

EXPIRE_WAITING: Final = (
    NOW
    + TOUCH
    + _LEAVE
    + """
-- Fail jobs that wait beyond their deadline; those that run are failed by their next report.
-- KEYS: deadlines, expiry, ended | ARGV: prefix of jobs, group, error, retention ms, limit
local late = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now_ms), 'LIMIT', 0, ARGV[5])
local failed = 0
for _, member in ipairs(late) do
  local slash = string.find(member, '/', 1, true)
  local id = string.sub(member, slash + 1)
  local job = ARGV[1] .. string.sub(member, 1, slash - 1) .. ':' .. id
  local held = redis.call('HMGET', job, 'status', 'queue', 'entry', 'work')
  if held[1] == 'queued' then
    redis.call('HSET', job, 'status', 'failed', 'error', ARGV[3])
    touch(job, KEYS[2], member, now_ms + ARGV[4])
    leave(held[2], ARGV[2], held[3], held[4], KEYS[1])
    tell(KEYS[3], job, member)
    failed = failed + 1
  else
    redis.call('ZREM', KEYS[1], member)
  end
end
return failed
"""
)

DELETE: Final = (
    NOW
    + _LEAVE
    + """
-- KEYS: job, tombstone, list, expiry, deadlines, purges
-- ARGV: id, member, tombstone lifetime ms, group
local held = redis.call('HMGET', KEYS[1], 'entry', 'idempotency', 'queue', 'work')
if redis.call('DEL', KEYS[1]) == 0 then return 0 end
redis.call('SET', KEYS[2], '1', 'PX', ARGV[3])
redis.call('ZREM', KEYS[3], ARGV[1])
-- An expired key may have been taken over by a newer job: only our own goes.
if held[2] and redis.call('HGET', held[2], 'id') == ARGV[1] then redis.call('DEL', held[2]) end
if held[3] then -- a video that was added finished never waited in a queue
  leave(held[3], ARGV[4], held[1], held[4], KEYS[5])
end
-- The sweep removes the files once more when no late writer can be left.
redis.call('ZADD', KEYS[4], string.format('%.0f', now_ms + ARGV[3]), ARGV[2])
redis.call('ZADD', KEYS[6], string.format('%.0f', now_ms), ARGV[2])
return 1
"""
)
