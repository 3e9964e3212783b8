-- Accept a job once. Safe to repeat with the same job id: the second time changes nothing.
--
-- KEYS  1 lane  2 job record  3 body  4 bell  5 load  6 memory mark  7 idempotency key (optional)
--       8 dead letters (optional, with 7): the job replaces a letter, which goes in the same step
-- ARGV  1 job id  2 encoded job  3 '1': the job lies beside the lane  4 lane name  5 record TTL ms
--       6 idempotency TTL ms  7 most jobs in the lane  8 most tokens in the lane (0: no bound)  9 tokens of the job
--       10 output stream ('' for none)  11 entry of the letter
-- Reply {'NEW' | 'KNOWN' | 'FULL' | 'MEMORY' | 'GONE', job id, submitted ms, jobs in the lane}
--       KNOWN: the idempotency key belongs to that earlier job. FULL: the lane is at a bound, MEMORY: the server is at
--       60% of its maxmemory, so that results still fit when jobs no longer do; in both cases nothing was stored. GONE: there is no
--       such letter, and it was not replayed under this key either.
local id, lane = ARGV[1], KEYS[1]
local submitted = redis.call('HGET', KEYS[2], 'submitted')
if submitted then return {'NEW', id, tonumber(submitted), redis.call('XLEN', lane)} end
if KEYS[7] then
  local known = redis.call('GET', KEYS[7])
  if known and known ~= id then return {'KNOWN', known, 0, redis.call('XLEN', lane)} end
end
local waiting = redis.call('XLEN', lane)
if KEYS[8] and #redis.call('XRANGE', KEYS[8], ARGV[11], ARGV[11]) == 0 then return {'GONE', id, 0, waiting} end
local most_tokens, tokens = tonumber(ARGV[8]), tonumber(ARGV[9])
if waiting >= tonumber(ARGV[7]) then return {'FULL', id, 0, waiting} end
if waiting == 0 then
  redis.call('HDEL', KEYS[5], ARGV[4]) -- jobs whose record had vanished are still counted in it
elseif most_tokens > 0 then
  local load = tonumber(redis.call('HGET', KEYS[5], ARGV[4]) or '0')
  if load + tokens > most_tokens then return {'FULL', id, 0, waiting} end
end

-- Asking for the memory costs as much as the rest of this script: the answer is good for 100 ms.
local mark = redis.call('GET', KEYS[6])
if not mark then
  local info = redis.pcall('INFO', 'memory')
  local used = type(info) == 'string' and tonumber(string.match(info, 'used_memory:(%d+)'))
  local most = type(info) == 'string' and tonumber(string.match(info, 'maxmemory:(%d+)'))
  mark = used and most and most > 0 and used > 0.6 * most and 'full' or 'room'
  redis.pcall('SET', KEYS[6], mark, 'PX', 100)
end
if mark == 'full' then return {'MEMORY', id, 0, waiting} end

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if KEYS[7] then redis.call('SET', KEYS[7], id, 'PX', ARGV[6]) end
local entry
if ARGV[3] == '1' then
  redis.call('SET', KEYS[3], ARGV[2], 'PX', ARGV[5])
  entry = redis.call('XADD', lane, '*', 'j', id, 't', now)
else
  entry = redis.call('XADD', lane, '*', 'j', id, 't', now, 'd', ARGV[2])
end
redis.call('HSET', KEYS[2], 'state', 'queued', 'lane', ARGV[4], 'entry', entry, 'submitted', now,
  'outputs', ARGV[10], 'tokens', ARGV[9])
redis.call('PEXPIRE', KEYS[2], ARGV[5])
redis.call('HINCRBY', KEYS[5], ARGV[4], ARGV[9])
if KEYS[8] then redis.call('XDEL', KEYS[8], ARGV[11]) end
-- A few elements are enough: each wakes one waiting worker, and a worker that wakes takes all it has room for.
if redis.call('LPUSH', KEYS[4], 1) > 32 then redis.call('LTRIM', KEYS[4], 0, 31) end
redis.call('PEXPIRE', KEYS[4], 60000)
return {'NEW', id, now, waiting + 1}
