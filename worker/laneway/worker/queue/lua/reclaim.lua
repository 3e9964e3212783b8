-- Offer jobs again whose lease has lapsed: their entries go to the consumer `returned`, at the front of their lane.
-- Needs no lock: moving an entry resets its idle time, so a second worker does not see it.
--
-- A job that is not noted as running was claimed by a worker that never heard of it (a lost reply), or was gone before
-- the note got out: it takes several of those to count as a crash. For a suspect the note comes before anything is done
-- with it, and nothing is counted.
--
-- A suspect that is lost alone and in silence after more kept events than ever before was on its way: that weighs nothing.
--
-- KEYS  1 bell  2 held  3.. lanes
-- ARGV  1 group  2 hash tag  3 lease ms  4 most per lane  5 age ms at which a held entry counts as forgotten
--       6 crashes that make a job a suspect  7 weight of a silent loss alone
--       8 lapses before the attempt began that count as a crash
--       9.. lane name and cursor (an entry id, exclusive; '-' to begin) for each lane
-- Reply {jobs moved, 1 if a lane is missing, next cursor of each lane}
local group, tag, lease, suspect = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[6])
local reply, moved, missing = {0, 0}, 0, 0

local function lose(id)
  local record = tag .. ':job:' .. id
  if redis.call('EXISTS', record) == 0 then return end
  local known = redis.call('HMGET', record, 'state', 'losses', 'isolated', 'furthest')
  local begun = known[1] == 'running'
  local unbegun = not begun and tonumber(known[2] or '0') < suspect and redis.call('HINCRBY', record, 'unbegun', 1)
  if begun or (unbegun and unbegun % tonumber(ARGV[8]) == 0) then redis.call('HINCRBY', record, 'losses', 1) end
  if begun and known[3] == '1' then
    local kept = redis.call('LLEN', tag .. ':kept:' .. id)
    if kept > tonumber(known[4] or '0') then
      redis.call('HSET', record, 'furthest', kept)
    else
      redis.call('HINCRBY', record, 'evidence', ARGV[7])
    end
  end
  redis.call('HSET', record, 'state', 'queued', 'owner', '')
end

for k = 3, #KEYS do
  local lane, name, cursor = KEYS[k], ARGV[9 + 2 * (k - 3)], ARGV[10 + 2 * (k - 3)]
  local from = cursor == '-' and '-' or '(' .. cursor
  local lapsed = redis.pcall('XPENDING', lane, group, 'IDLE', lease, from, '+', ARGV[4])
  local last = '-'
  if lapsed.err then
    missing = 1
  else
    for _, p in ipairs(lapsed) do
      local entry, owner, idle = p[1], p[2], p[3]
      local forgotten = owner == 'held' and idle > tonumber(ARGV[5])
        and not redis.call('ZSCORE', KEYS[2], name .. '|' .. entry)
      if forgotten or (owner ~= 'held' and owner ~= 'returned' and owner ~= 'suspects') then
        local found = redis.call('XRANGE', lane, entry, entry)[1]
        if not found then
          redis.call('XACK', lane, group, entry)
        else
          redis.call('XCLAIM', lane, group, 'returned', 0, entry, 'JUSTID')
          for i = 1, #found[2], 2 do
            if found[2][i] == 'j' then lose(found[2][i + 1]) end
          end
          if moved < 32 then redis.call('LPUSH', KEYS[1], 1) end
          moved = moved + 1
        end
      end
    end
    if #lapsed == tonumber(ARGV[4]) then last = lapsed[#lapsed][1] end
  end
  reply[#reply + 1] = last
end
if moved > 0 then
  redis.call('LTRIM', KEYS[1], 0, 31)
  redis.call('PEXPIRE', KEYS[1], 60000)
end
reply[1], reply[2] = moved, missing
return reply
