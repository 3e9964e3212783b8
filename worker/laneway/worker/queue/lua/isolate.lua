-- Give suspects of a partition to a worker whose engine is empty, in groups that have it to themselves: jobs that were
-- in hand at equally many crashes, the most crashes first, and the fewer jobs the more crashes. One worker at a time is
-- appointed to empty its engine for them, and stays so while it asks again; as members of its group complete, others
-- join. The other workers go on with what else there is. An appointed worker whose engine is not empty yet gives way to
-- one whose engine is, and to one that runs suspects already: two engines are not kept from other work where one does.
-- The key then holds its name behind a `*`.
--
-- KEYS  1 quarantine  2.. lanes
-- ARGV  1 group  2 consumer  3 hash tag  4 record TTL ms  5 ms for which an appointment holds
--       6 '0': may I empty my engine, or am I still to?  '1': it is empty but for a group, take suspects;
--       '2': it is empty and nothing else is to be done, take some beside another worker too
--       7 jobs of the group in hand; with '0' above: they have the engine to themselves, may I have the next ones?  8 crashes at which they were  9 crashes that make a suspect
--       10.. size of a group at that number of crashes, at one more, and so on; the last size holds for all further ones
-- Reply {now ms, 1 if there are suspects for this worker, then per job as `pull`, with two words more:
--       weight of what happened while it was alone, 1 if it is alone now}
local group, me, tag, held, suspect = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[7]), tonumber(ARGV[9])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local key, empty = redis.call('GET', KEYS[1]) or '', ARGV[6] ~= '0'
local busy, appointed = string.match(key, '^(%*?)(.*)$')
local others = appointed ~= '' and appointed ~= me
local next = others and held > 0 and not empty and busy == ''
if others and not next and (held > 0 or not empty or (busy == '*' and ARGV[6] == '1')) then return {now, 0} end

local waiting, most = {}, 0
for k = 2, #KEYS do
  local pending = redis.pcall('XPENDING', KEYS[k], group, '-', '+', 64, 'suspects')
  for _, p in ipairs(pending.err and {} or pending) do
    local item = redis.call('XRANGE', KEYS[k], p[1], p[1])[1]
    local id
    for i = 1, #(item and item[2] or {}), 2 do if item[2][i] == 'j' then id = item[2][i + 1] end end
    if not id or redis.call('EXISTS', tag .. ':result:' .. id) == 1 then
      redis.call('XACK', KEYS[k], group, p[1])
      redis.call('XDEL', KEYS[k], p[1])
    else
      local losses = tonumber(redis.call('HGET', tag .. ':job:' .. id, 'losses') or '0')
      most = math.max(most, losses)
      waiting[#waiting + 1] = {k, item, id, losses}
    end
  end
end
if #waiting == 0 then
  if not others and empty and held == 0 then redis.call('DEL', KEYS[1]) end
  return {now, 0}
end
if not others or next or (empty and busy == '') then
  redis.call('SET', KEYS[1], ((empty or held > 0 or busy == '*') and '*' or '') .. me, 'PX', ARGV[5])
end
if not empty then return {now, 1} end
if held > 0 and most ~= tonumber(ARGV[8]) then return {now, 0} end

local size, found = tonumber(ARGV[math.min(#ARGV, 10 + math.max(0, most - suspect))]), {}
for _, one in ipairs(waiting) do
  if one[4] == most and held + #found < size then found[#found + 1] = one end
end
local reply, alone = {now, #found > 0 and 1 or 0}, held + #found == 1 and 1 or 0
for _, one in ipairs(found) do
  local lane, item, record = KEYS[one[1]], one[2], tag .. ':job:' .. one[3]
  redis.call('XCLAIM', lane, group, me, 0, item[1], 'JUSTID')
  local attempt = redis.call('HINCRBY', record, 'attempt', 1)
  redis.call('HSET', record, 'state', 'claimed', 'owner', me, 'claimed', now, 'entry', item[1],
    'lane', string.match(lane, ':lane:(.+)$'), 'isolated', alone)
  redis.call('PEXPIRE', record, ARGV[4])
  local more = redis.call('HMGET', record, 'failures', 'outputs', 'losses', 'evidence')
  reply[#reply + 1] = {one[1] - 2, item[1], item[2], attempt, tonumber(more[1] or '0'), more[2] or '',
    redis.call('EXISTS', tag .. ':cancel:' .. one[3]), tonumber(more[3] or '0'), tonumber(more[4] or '0'), alone}
end
return reply
