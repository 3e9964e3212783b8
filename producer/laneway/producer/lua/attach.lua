-- Send a job's events to one more output stream.
--
-- KEYS  1 job record  2 control stream  3 result
-- ARGV  1 output stream  2 encoded control message
-- Reply state word; '' when no such job is known
local state = redis.call('HGET', KEYS[1], 'state')
if not state then return '' end
if redis.call('EXISTS', KEYS[3]) == 1 then return state end
local outputs = redis.call('HGET', KEYS[1], 'outputs') or ''
if not string.find(' ' .. outputs .. ' ', ' ' .. ARGV[1] .. ' ', 1, true) then
  redis.call('HSET', KEYS[1], 'outputs', outputs == '' and ARGV[1] or (outputs .. ' ' .. ARGV[1]))
end
redis.call('XADD', KEYS[2], 'MAXLEN', '~', 10000, '*', 'e', ARGV[2])
redis.call('PEXPIRE', KEYS[2], 3600000)
return state
