-- Store outcomes and remove their jobs from their lanes. Within each job the order survives a crash or a full server:
-- the result first (at maxmemory it is refused and nothing else happens), the dead letter next, the removal last.
--
-- KEYS  1 load  2 dead letters
-- ARGV  1 group  2 hash tag  3 result TTL ms
--       4.. for each job, eight words: lane name, entry, job id, attempt, encoded result, final state word, error code,
--       encoded job for the dead letters ('' for none)
-- Reply for each job 'STORED' | 'REPEATED' | 'FENCED'
local group, tag, ttl = ARGV[1], ARGV[2], ARGV[3]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function settle(name, entry, id, attempt, result, state, code, letter)
  local lane, record = tag .. ':lane:' .. name, tag .. ':job:' .. id
  local known = redis.call('HMGET', record, 'attempt', 'settled', 'tokens', 'failures')
  if known[1] and known[1] ~= attempt then return 'FENCED' end
  local stored = redis.call('SET', tag .. ':result:' .. id, result, 'NX', 'PX', ttl)
  if stored and letter ~= '' then
    redis.call('XADD', KEYS[2], '*', 'j', id, 'd', letter, 'error', code, 'attempt', attempt,
      'failures', known[4] or '0', 'lane', name)
  end
  redis.pcall('XACK', lane, group, entry)
  redis.pcall('XDEL', lane, entry)
  redis.call('DEL', tag .. ':body:' .. id, tag .. ':cancel:' .. id, tag .. ':kept:' .. id)
  if not stored then return known[2] == attempt and 'REPEATED' or 'FENCED' end
  if known[1] then
    redis.call('HSET', record, 'state', state, 'settled', attempt, 'error', code, 'ended', now)
    redis.call('PEXPIRE', record, ttl)
    if known[3] then redis.call('HINCRBY', KEYS[1], name, 0 - tonumber(known[3])) end
  end
  return 'STORED'
end

local reply = {}
for i = 4, #ARGV, 8 do reply[#reply + 1] = settle(unpack(ARGV, i, i + 7)) end
return reply
