-- Keep token events of answers in the making, for the attempt that follows should this one be lost. Only who owns the
-- job adds to them, and only without a gap: what is there already is not added again.
--
-- ARGV  1 consumer  2 hash tag  3 TTL ms
--       4.. for each job: job id, attempt, place of the first event, number of events, then so many encoded events;
--       place 0 begins anew
-- Reply for each job the number of events kept now; where that is less than it should be, earlier ones have vanished.
--       -1 when the job is not this consumer's any more
local me, tag, ttl = ARGV[1], ARGV[2], ARGV[3]

local function keep(id, attempt, first, count, at)
  local known = redis.call('HMGET', tag .. ':job:' .. id, 'attempt', 'owner', 'settled')
  if not known[1] then return 0 end
  if known[1] ~= attempt then return -1 end
  if known[3] then return first + count end
  if known[2] ~= me then return -1 end
  local key = tag .. ':kept:' .. id
  if first == 0 then redis.call('DEL', key) end
  local length = redis.call('LLEN', key)
  if length < first then return length end
  for from = length - first, count - 1, 1000 do
    length = redis.call('RPUSH', key, unpack(ARGV, at + from, at + math.min(from + 999, count - 1)))
  end
  if first == 0 then redis.call('PEXPIRE', key, ttl) end
  return length
end

local reply, at = {}, 4
while at <= #ARGV do
  local first, count = tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  reply[#reply + 1] = keep(ARGV[at], ARGV[at + 1], first, count, at + 4)
  at = at + 4 + count
end
return reply
