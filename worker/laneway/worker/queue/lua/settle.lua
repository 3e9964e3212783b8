-- Store a job's outcome and remove the job from its lane. Every line order survives a crash or a full server:
-- the result first (at maxmemory it is refused and nothing else happens), the dead letter next, the removal last.
--
-- KEYS  1 lane  2 job record  3 result  4 body  5 load  6 cancel marker  7 dead letters
-- ARGV  1 group  2 entry  3 attempt  4 encoded result  5 result TTL ms  6 final state word  7 lane name
--       8 encoded job for the dead letters ('' for none)  9 job id  10 error code
-- Reply 'STORED' | 'REPEATED' | 'FENCED'
local known = redis.call('HMGET', KEYS[2], 'attempt', 'settled', 'tokens', 'failures')
if known[1] and known[1] ~= ARGV[3] then return 'FENCED' end
local stored = redis.call('SET', KEYS[3], ARGV[4], 'NX', 'PX', ARGV[5])
if stored and ARGV[8] ~= '' then
  redis.call('XADD', KEYS[7], '*', 'j', ARGV[9], 'd', ARGV[8], 'error', ARGV[10], 'attempt', ARGV[3],
    'failures', known[4] or '0', 'lane', ARGV[7])
end
redis.pcall('XACK', KEYS[1], ARGV[1], ARGV[2])
redis.call('XDEL', KEYS[1], ARGV[2])
redis.call('DEL', KEYS[4], KEYS[6])
if not stored then return known[2] == ARGV[3] and 'REPEATED' or 'FENCED' end
if known[1] then
  local time = redis.call('TIME')
  redis.call('HSET', KEYS[2], 'state', ARGV[6], 'settled', ARGV[3], 'error', ARGV[10],
    'ended', time[1] * 1000 + math.floor(time[2] / 1000))
  redis.call('PEXPIRE', KEYS[2], ARGV[5])
  redis.call('HINCRBY', KEYS[5], ARGV[7], 0 - tonumber(known[3] or '0'))
end
return 'STORED'
