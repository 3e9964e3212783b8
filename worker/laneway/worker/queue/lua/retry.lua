-- Count a failed attempt and offer the job again after a back-off: meanwhile its entry waits with the consumer `held`.
--
-- KEYS  1 lane  2 job record  3 held
-- ARGV  1 group  2 consumer  3 entry  4 attempt  5 delay ms  6 error code  7 lane name
-- Reply 1, also when this very attempt was given up before (the reply was lost), or 0 when another attempt owns the job
local known = redis.call('HMGET', KEYS[2], 'attempt', 'given_up')
local attempt = known[1]
if known[2] == ARGV[4] then return 1 end
if attempt and attempt ~= ARGV[4] then return 0 end
local pending = redis.pcall('XPENDING', KEYS[1], ARGV[1], ARGV[3], ARGV[3], 1)
if pending.err or not pending[1] or pending[1][2] ~= ARGV[2] then return 0 end
local time = redis.call('TIME')
local due = time[1] * 1000 + math.floor(time[2] / 1000) + tonumber(ARGV[5])
redis.call('XCLAIM', KEYS[1], ARGV[1], 'held', 0, ARGV[3], 'JUSTID') -- first: it is not refused at full memory
redis.call('ZADD', KEYS[3], due, ARGV[7] .. '|' .. ARGV[3])
if attempt then
  redis.call('HINCRBY', KEYS[2], 'failures', 1)
  redis.call('HSET', KEYS[2], 'state', 'retrying', 'error', ARGV[6], 'owner', '', 'given_up', ARGV[4])
end
return 1
