-- Whether the verbs' scripts will find what they need, asked once on connecting. Changes nothing.
-- KEYS: a state and a channel that no resource has. ARGV: layout, word to publish with.
local time = redis.call('TIME')
local told = { tonumber(time[1]) * 1000000 + tonumber(time[2]) }
local function try(what, ...)
  local got = redis.pcall(...)
  if type(got) == 'table' and got.err then
    told[#told + 1], told[#told + 2] = what, got.err
  end
end
try('keys', 'HMGET', KEYS[1], 'm', 'g')
try('keys', 'ZRANGE', KEYS[1], 0, -1)
try('keys', 'MGET', KEYS[1])
try('keys', 'EXISTS', KEYS[1])
try('write', 'PERSIST', KEYS[1])
try('write', 'PEXPIRE', KEYS[1], 1)
try('own channel', ARGV[2], ARGV[3], '')
if ARGV[1] == 'r' then try('foreign channel', ARGV[2], ARGV[4], '') end
return told
