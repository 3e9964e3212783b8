-- Cancel a job: at once while nobody runs it, else by telling the workers.
--
-- KEYS  1 job record  2 cancel marker  3 control stream  4 result  5 body  6 load  7 held  8 kept events
-- ARGV  1 hash tag of the partition  2 consumer group  3 marker TTL ms  4 encoded control message
--       5 encoded result (cancelled)  6 result TTL ms
-- Reply {state word, outputs}; state is 'cancelled' when it was settled here, a final word when the job had ended,
--       a living state when a worker was told, '' when no such job is known.
local record = redis.call('HMGET', KEYS[1], 'state', 'lane', 'entry', 'owner', 'outputs', 'tokens')
local state, lane, entry, owner = record[1], record[2], record[3], record[4]
if redis.call('EXISTS', KEYS[4]) == 1 then return {state or 'ended', ''} end
if not state then return {'', ''} end
if state == 'completed' or state == 'failed' or state == 'cancelled' or state == 'expired' then return {state, ''} end

if (state == 'queued' or state == 'retrying') and lane and entry then
  local key = ARGV[1] .. ':lane:' .. lane
  -- Nobody owns the entry: it was never delivered, or lies with a consumer that only stands for a place to wait.
  local pending = redis.pcall('XPENDING', key, ARGV[2], entry, entry, 1)
  local held_by = pending[1] and pending[1][2]
  if pending.err or not held_by or held_by == 'returned' or held_by == 'held' or held_by == 'suspects' then
    redis.call('SET', KEYS[4], ARGV[5], 'PX', ARGV[6])
    if not pending.err then redis.call('XACK', key, ARGV[2], entry) end
    redis.call('XDEL', key, entry)
    redis.call('DEL', KEYS[5], KEYS[8])
    redis.call('ZREM', KEYS[7], lane .. '|' .. entry)
    local time = redis.call('TIME')
    redis.call('HSET', KEYS[1], 'state', 'cancelled', 'ended', time[1] * 1000 + math.floor(time[2] / 1000))
    redis.call('PEXPIRE', KEYS[1], ARGV[6])
    redis.call('HINCRBY', KEYS[6], lane, 0 - tonumber(record[6] or '0'))
    return {'cancelled', record[5] or ''}
  end
end
redis.call('SET', KEYS[2], '1', 'PX', ARGV[3])
redis.call('XADD', KEYS[3], 'MAXLEN', '~', 10000, '*', 'e', ARGV[4])
redis.call('PEXPIRE', KEYS[3], 3600000)
return {state, ''}
