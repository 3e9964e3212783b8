-- Give suspects of a partition to a worker whose engine is empty, in groups that have it to themselves: jobs that were
-- in hand at equally many crashes, the fewer the more crashes. One worker at a time empties its engine for them.
--
-- KEYS  1 quarantine  2.. lanes
-- ARGV  1 group  2 consumer  3 hash tag  4 record TTL ms  5 ms in which nobody else may empty its engine
--       6 '1': the engine is empty, take a group; '0': may I empty it?  7 crashes that make a suspect  8.. size of a group at that number of
--       crashes, at one more, and so on; the last size holds for all further ones
-- Reply {now ms, 1 if there are suspects for this worker, then per job as `pull`, with two words more:
--       weight of what happened while it was alone, 1 if it is alone now}
local group, me, tag = ARGV[1], ARGV[2], ARGV[3]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local emptier, empty = redis.call('GET', KEYS[1]), ARGV[6] == '1'
if emptier == me and empty then redis.call('DEL', KEYS[1]) end
if emptier and emptier ~= me and not empty then return {now, 0} end

local found, crashes, size = {}, nil, 1
for k = 2, #KEYS do
  local waiting = redis.pcall('XPENDING', KEYS[k], group, '-', '+', 64, 'suspects')
  for _, p in ipairs(waiting.err and {} or waiting) do
    local item = redis.call('XRANGE', KEYS[k], p[1], p[1])[1]
    local id
    for i = 1, #(item and item[2] or {}), 2 do if item[2][i] == 'j' then id = item[2][i + 1] end end
    if not id or redis.call('EXISTS', tag .. ':result:' .. id) == 1 then
      redis.call('XACK', KEYS[k], group, p[1])
      redis.call('XDEL', KEYS[k], p[1])
    else
      local losses = tonumber(redis.call('HGET', tag .. ':job:' .. id, 'losses') or '0')
      if not crashes then
        crashes = losses
        size = tonumber(ARGV[math.min(#ARGV, 8 + math.max(0, losses - tonumber(ARGV[7])))])
      end
      if losses == crashes and #found < size then found[#found + 1] = {k - 2, item, id} end
    end
  end
end
if not crashes then return {now, 0} end
if not empty then
  redis.call('SET', KEYS[1], me, 'PX', ARGV[5])
  return {now, 1}
end

local reply, alone = {now, 1}, #found == 1 and 1 or 0
for _, one in ipairs(found) do
  local lane, item, record = KEYS[one[1] + 2], one[2], tag .. ':job:' .. one[3]
  redis.call('XCLAIM', lane, group, me, 0, item[1], 'JUSTID')
  local attempt = redis.call('HINCRBY', record, 'attempt', 1)
  redis.call('HSET', record, 'state', 'claimed', 'owner', me, 'claimed', now, 'entry', item[1],
    'lane', string.match(lane, ':lane:(.+)$'), 'isolated', alone)
  redis.call('PEXPIRE', record, ARGV[4])
  local more = redis.call('HMGET', record, 'failures', 'outputs', 'losses', 'evidence')
  reply[#reply + 1] = {one[1], item[1], item[2], attempt, tonumber(more[1] or '0'), more[2] or '',
    redis.call('EXISTS', tag .. ':cancel:' .. one[3]), tonumber(more[3] or '0'), tonumber(more[4] or '0'), alone}
end
return reply
