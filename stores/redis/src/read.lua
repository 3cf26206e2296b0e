-- Reads the record of a resource. KEYS[1]: the record.
local time = redis.call('TIME')
local got = redis.call('HMGET', KEYS[1], 'v', 't', 'u')
return { tonumber(time[1]) * 1000000 + tonumber(time[2]), got[1], got[2], got[3] }
