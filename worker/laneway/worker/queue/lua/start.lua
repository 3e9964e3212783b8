-- Record that an attempt entered the engine, unless a later attempt owns the job or it has ended.
--
-- KEYS  1 job record
-- ARGV  1 attempt
-- Reply 1, or 0 when nothing was changed
local record = redis.call('HMGET', KEYS[1], 'attempt', 'state')
if record[1] ~= ARGV[1] or record[2] ~= 'claimed' then return 0 end
local time = redis.call('TIME')
redis.call('HSET', KEYS[1], 'state', 'running', 'started', time[1] * 1000 + math.floor(time[2] / 1000))
return 1
