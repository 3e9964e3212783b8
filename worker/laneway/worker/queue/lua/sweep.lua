-- Forget consumers of workers that are gone. Deleting one that has pending entries would lose them: only empty ones go.
--
-- KEYS  1 lane
-- ARGV  1 group  2 idle ms
-- Reply number of consumers removed
local consumers, removed = redis.pcall('XINFO', 'CONSUMERS', KEYS[1], ARGV[1]), 0
if consumers.err then return 0 end
for _, consumer in ipairs(consumers) do
  local facts = {}
  for i = 1, #consumer, 2 do facts[consumer[i]] = consumer[i + 1] end
  if facts.pending == 0 and facts.idle > tonumber(ARGV[2]) then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], facts.name)
    removed = removed + 1
  end
end
return removed
