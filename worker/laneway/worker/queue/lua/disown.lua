-- Return jobs that are this consumer's without its knowing: the reply to their claim was lost. At no cost of an attempt.
--
-- KEYS  1 bell  2.. lanes
-- ARGV  1 group  2 consumer  3 hash tag  4.. what it has in hand: lane name, `|`, entry
-- Reply number of jobs returned
local group, me, tag, held, returned = ARGV[1], ARGV[2], ARGV[3], {}, 0
for i = 4, #ARGV do held[ARGV[i]] = true end
for k = 2, #KEYS do
  local lane = KEYS[k]
  local name = string.match(lane, ':lane:(.+)$')
  local pending = redis.pcall('XPENDING', lane, group, '-', '+', 10000, me)
  for _, p in ipairs(pending.err and {} or pending) do
    if not held[name .. '|' .. p[1]] then
      redis.call('XCLAIM', lane, group, 'returned', 0, p[1], 'JUSTID')
      local item = redis.call('XRANGE', lane, p[1], p[1])[1]
      for i = 1, #(item and item[2] or {}), 2 do
        local record = tag .. ':job:' .. item[2][i + 1]
        if item[2][i] == 'j' and redis.call('HGET', record, 'owner') == me then
          redis.call('HSET', record, 'state', 'queued', 'owner', '')
        end
      end
      redis.call('LPUSH', KEYS[1], 1)
      returned = returned + 1
    end
  end
end
redis.call('LTRIM', KEYS[1], 0, 31)
if returned > 0 then redis.call('PEXPIRE', KEYS[1], 60000) end
return returned
