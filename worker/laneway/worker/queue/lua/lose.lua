-- Count a crash of the engine with the job in it, and offer the job again at once.
--
-- KEYS  1 lane  2 job record  3 bell
-- ARGV  1 group  2 consumer  3 entry  4 attempt  5 error code  6 weight of a death alone
-- Reply 1, also when this very attempt was given up before (the reply was lost), or 0 when another attempt owns the job
local known = redis.call('HMGET', KEYS[2], 'attempt', 'given_up', 'isolated')
local attempt = known[1]
if known[2] == ARGV[4] then return 1 end
if attempt and attempt ~= ARGV[4] then return 0 end
local pending = redis.pcall('XPENDING', KEYS[1], ARGV[1], ARGV[3], ARGV[3], 1)
if pending.err or not pending[1] or pending[1][2] ~= ARGV[2] then return 0 end
redis.call('XCLAIM', KEYS[1], ARGV[1], 'returned', 0, ARGV[3], 'JUSTID')
if attempt then
  redis.call('HINCRBY', KEYS[2], 'losses', 1)
  if known[3] == '1' then redis.call('HINCRBY', KEYS[2], 'evidence', ARGV[6]) end
  redis.call('HSET', KEYS[2], 'state', 'retrying', 'error', ARGV[5], 'owner', '', 'given_up', ARGV[4])
end
if redis.call('LPUSH', KEYS[3], 1) > 32 then redis.call('LTRIM', KEYS[3], 0, 31) end
redis.call('PEXPIRE', KEYS[3], 60000)
return 1
