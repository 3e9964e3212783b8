-- Extend leases, never take one back: only entries that this consumer still owns are touched.
--
-- KEYS  1 lane
-- ARGV  1 group  2 consumer  3 hash tag  4.. (entry, job id, attempt), by rising entry, at most 256
-- Reply list of lost job ids: owned by another, claimed again since, or ended. After a flush nothing is known of a job:
--       then it is not lost, and its result can still be stored.
local lane, group, me, tag = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local own = {}
local pending = redis.pcall('XPENDING', lane, group, ARGV[4], ARGV[#ARGV - 2], 10000, me)
if not pending.err then for _, p in ipairs(pending) do own[p[1]] = true end end
local claim, lost = {'XCLAIM', lane, group, me, 0}, {}
for i = 4, #ARGV, 3 do
  local entry, id, attempt = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local known = redis.call('HGET', tag .. ':job:' .. id, 'attempt')
  if known and known ~= attempt then
    lost[#lost + 1] = id
  elseif own[entry] then
    claim[#claim + 1] = entry
  elseif known or redis.call('EXISTS', tag .. ':result:' .. id) == 1 then
    lost[#lost + 1] = id
  end
end
-- JUSTID: without it each renewal would count as a delivery and echo the whole job.
if #claim > 5 then
  claim[#claim + 1] = 'JUSTID'
  redis.call(unpack(claim))
end
return lost
