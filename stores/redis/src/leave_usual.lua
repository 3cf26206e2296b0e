-- The usual release: of a plain lock that one claim holds and nobody waits for. What is not quite
-- so is left as it is and told as 0, for `leave.lua`.
-- KEYS: lock, state. ARGV: layout, word to publish with, `OWNER TERM `.
local call, sub = redis.call, string.sub
local layout, whose = ARGV[1], ARGV[3]
local size = layout == 'r' and 38 or 32
local t = call('TIME')
local us = t[2]
if #us < 6 then us = string.rep('0', 6 - #us) .. us end
local now = t[1] .. us
local state = redis.pcall('GET', KEYS[2])
if #now ~= 16 or type(state) ~= 'string' or sub(state, 1, 2) ~= 'x' .. layout
  or sub(state, 52, 67 + size) ~= whose or now - sub(state, 36, 51) >= sub(whose, size + 2) + 0 then
  return { now, 0 }
end
if layout == 'r' then
  if redis.pcall('HDEL', KEYS[1], sub(whose, 1, 38)) ~= 1 then return { now, 0 } end
  local lock = KEYS[1]
  if not string.find(lock, '{', 1, true) then lock = '{' .. lock .. '}' end
  redis.pcall(ARGV[2], 'redisson_lock__channel:' .. lock, '0')
else
  if redis.pcall('GET', KEYS[1]) ~= sub(whose, 1, 32) then return { now, 0 } end
  call('DEL', KEYS[1])
end
call('SET', KEYS[2], 'i' .. layout .. now .. whose)
return { now, 1 }
