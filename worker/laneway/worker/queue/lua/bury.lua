-- Remove an entry that cannot be read, keep what it held, and fail its job where it was one once.
--
-- KEYS  1 lane  2 dead letters  3 job record  4 result  5 load  6 kept events
-- ARGV  1 group  2 entry  3 reason  4 job id ('' if unknown)  5 encoded result ('' if unknown)  6 result TTL ms
--       7 lane name  8 most bytes of each field to keep
-- Reply 1, or 0 when it was gone already
local found = redis.call('XRANGE', KEYS[1], ARGV[2], ARGV[2])[1]
if ARGV[4] ~= '' then
  if redis.call('SET', KEYS[4], ARGV[5], 'NX', 'PX', ARGV[6]) and redis.call('EXISTS', KEYS[3]) == 1 then
    local time = redis.call('TIME')
    redis.call('HSET', KEYS[3], 'state', 'failed', 'error', 'unreadable',
      'ended', time[1] * 1000 + math.floor(time[2] / 1000))
    redis.call('PEXPIRE', KEYS[3], ARGV[6])
    redis.call('HINCRBY', KEYS[5], ARGV[7], 0 - tonumber(redis.call('HGET', KEYS[3], 'tokens') or '0'))
  end
end
if found then
  local letter = {'XADD', KEYS[2], '*', 'error', 'unreadable', 'reason', ARGV[3], 'lane', ARGV[7], 'j', ARGV[4]}
  for i = 1, math.min(#found[2], 20), 2 do
    letter[#letter + 1] = 'raw:' .. string.sub(found[2][i], 1, 64)
    letter[#letter + 1] = string.sub(found[2][i + 1], 1, tonumber(ARGV[8]))
  end
  redis.call(unpack(letter))
end
redis.call('DEL', KEYS[6])
redis.pcall('XACK', KEYS[1], ARGV[1], ARGV[2])
redis.call('XDEL', KEYS[1], ARGV[2])
return found and 1 or 0
