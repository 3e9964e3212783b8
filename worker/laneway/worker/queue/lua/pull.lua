-- Take waiting jobs, an exact total over several lanes (COUNT is per stream), each under a new lease.
--
-- At full memory nothing is delivered: what could not be settled is left to wait.
--
-- KEYS  1 held  2.. lanes, stage by stage
-- ARGV  1 group  2 consumer  3 hash tag  4 total  5 record TTL ms  6 crashes that make a job a suspect, which waits
--       with the consumer `suspects` for `isolate`  7 stages, then for each: lanes, cap
-- Reply {now ms, 1 if a lane or its group is missing, ms until the next back-off ends or -1, then per job
--       {index of its lane from 0, entry, fields, attempt, failures, outputs, cancelled, losses}}
local group, me, tag, room, ttl = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local reply, missing, suspect = {now, 0, -1}, 0, tonumber(ARGV[6])
redis.call('SETRANGE', tag .. ':memory:none', 0, '') -- writes nothing; is refused where a result would be refused

-- Back-offs that have passed: their entries wait with the consumer `held`, and go to the front with `returned`.
for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, 64)) do
  local lane, entry = string.match(member, '^(.-)|(.+)$')
  lane = tag .. ':lane:' .. lane
  local pending = redis.pcall('XPENDING', lane, group, entry, entry, 1)
  if pending[1] and pending[1][2] == 'held' then
    redis.call('XCLAIM', lane, group, 'returned', 0, entry, 'JUSTID')
  end
  redis.call('ZREM', KEYS[1], member)
end
local due = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
if due[1] then reply[3] = math.max(0, tonumber(due[2]) - now) end

local function take(index, lane, items)
  local taken = 0
  for _, item in ipairs(items) do
    local entry, fields = item[1], item[2]
    local id
    for i = 1, #(fields or {}), 2 do if fields[i] == 'j' then id = fields[i + 1] end end
    if not id or #id > 64 or not string.find(id, '^[%w-]+$') then
      taken = taken + 1
      reply[#reply + 1] = {index, entry, fields, 0, 0, '', 0, 0}
    elseif redis.call('EXISTS', tag .. ':result:' .. id) == 1 then
      -- Ended already: a group made anew at 0 after a flush or failover delivers finished jobs again.
      redis.call('XACK', lane, group, entry)
      redis.call('XDEL', lane, entry)
      redis.call('DEL', tag .. ':body:' .. id)
    elseif tonumber(redis.call('HGET', tag .. ':job:' .. id, 'losses') or '0') >= suspect then
      redis.call('XCLAIM', lane, group, 'suspects', 0, entry, 'JUSTID')
    else
      taken = taken + 1
      local record = tag .. ':job:' .. id
      local attempt = redis.call('HINCRBY', record, 'attempt', 1)
      redis.call('HSET', record, 'state', 'claimed', 'owner', me, 'claimed', now, 'entry', entry,
        'lane', string.match(lane, ':lane:(.+)$'))
      redis.call('PEXPIRE', record, ttl)
      local more = redis.call('HMGET', record, 'failures', 'outputs', 'losses')
      reply[#reply + 1] = {index, entry, fields, attempt, tonumber(more[1] or '0'), more[2] or '',
        redis.call('EXISTS', tag .. ':cancel:' .. id), tonumber(more[3] or '0')}
    end
  end
  return taken
end

local function drain(index, lane, want)
  local got = 0
  local back = redis.pcall('XPENDING', lane, group, '-', '+', want, 'returned')
  if back.err then return 0, true end
  if #back > 0 then
    local claim = {'XCLAIM', lane, group, me, 0}
    for _, p in ipairs(back) do claim[#claim + 1] = p[1] end
    got = take(index, lane, redis.call(unpack(claim)))
  end
  for _ = 1, 8 do -- more than once only where entries of finished jobs were in the way
    if got >= want then break end
    local read = redis.pcall('XREADGROUP', 'GROUP', group, me, 'COUNT', want - got, 'STREAMS', lane, '>')
    if read and read.err then return got, true end
    if not (read and read[1]) then break end
    got = got + take(index, lane, read[1][2])
  end
  return got, false
end

local key, arg = 2, 8
for _ = 1, tonumber(ARGV[7]) do
  local lanes, cap = tonumber(ARGV[arg]), tonumber(ARGV[arg + 1])
  arg = arg + 2
  for _ = 1, lanes do
    local want = math.min(room, cap)
    if want > 0 then
      local got, absent = drain(key - 2, KEYS[key], want)
      room, cap = room - got, cap - got
      if absent then missing = 1 end
    end
    key = key + 1
  end
end
reply[2] = missing
return reply
