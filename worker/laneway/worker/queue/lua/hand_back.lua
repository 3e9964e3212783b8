-- Return jobs to the front of their lanes at no cost: their entries go to the consumer `returned`, read before the rest.
--
-- KEYS  1 bell
-- ARGV  1 group  2 consumer  3 hash tag  4.. (lane name, entry, job id, attempt)
-- Reply number of jobs returned; those that are no longer this consumer's are left alone
local group, me, tag, returned = ARGV[1], ARGV[2], ARGV[3], 0
for i = 4, #ARGV, 4 do
  local lane, entry = tag .. ':lane:' .. ARGV[i], ARGV[i + 1]
  local record = tag .. ':job:' .. ARGV[i + 2]
  local attempt = redis.call('HGET', record, 'attempt')
  local pending = redis.pcall('XPENDING', lane, group, entry, entry, 1)
  local mine = not pending.err and pending[1] and pending[1][2] == me
  if mine and (not attempt or attempt == ARGV[i + 3]) then
    redis.call('XCLAIM', lane, group, 'returned', 0, entry, 'JUSTID')
    if attempt then redis.call('HSET', record, 'state', 'queued', 'owner', '') end
    redis.call('LPUSH', KEYS[1], 1)
    returned = returned + 1
  end
end
redis.call('LTRIM', KEYS[1], 0, 31)
if returned > 0 then redis.call('PEXPIRE', KEYS[1], 60000) end
return returned
