-- The usual claim: a plain lock that was released and that nobody waits for. What is not quite so
-- is left as it is and told as 0, for `enter.lua`. The texts of the state are described in
-- `desk.lua`.
-- KEYS: lock, token, state. ARGV: layout, for how many ms the lock is to last, `OWNER TERM `,
-- `LIFE HOLDER LABEL`.
local call, sub = redis.call, string.sub
local t = call('TIME')
local us = t[2]
if #us < 6 then us = string.rep('0', 6 - #us) .. us end
local now = t[1] .. us
local size = ARGV[1] == 'r' and 38 or 32
local owner = sub(ARGV[3], 1, size)
local state = redis.pcall('GET', KEYS[3])
if type(state) ~= 'string' or sub(state, 1, 2) ~= 'i' .. ARGV[1] or sub(state, 3, 18) >= now
  or sub(state, 19, 18 + size) == owner or #now ~= 16 or call('EXISTS', KEYS[1]) == 1 then
  return { now, 0 }
end
local last = redis.pcall('SET', KEYS[2], now, 'GET')
if type(last) ~= 'string' or (tonumber(last) or now + 0) >= now + 0 then
  if type(last) == 'string' then call('SET', KEYS[2], last) end
  return { now, 0 }
end
if ARGV[1] == 'r' then
  call('HSET', KEYS[1], owner, '1')
  call('PEXPIRE', KEYS[1], ARGV[2])
else
  call('SET', KEYS[1], owner, 'PX', ARGV[2])
end
call('SET', KEYS[3], 'x' .. ARGV[1] .. 'R' .. sub(state, 3, 18) .. now .. now .. ARGV[3]
  .. sub(state, 19) .. ARGV[4])
return { now, 1 }
