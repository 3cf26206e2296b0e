-- Many releases as in `leave_usual.lua`, each alone.
-- KEYS: two for each claim: lock, state. ARGV[1..2]: layout, word to publish with, then for each
-- claim `OWNER TERM `.
local call, sub = redis.call, string.sub
local layout = ARGV[1]
local idle, came = 'i' .. layout, 'x' .. layout
local size = layout == 'r' and 38 or 32
local t = call('TIME')
local us = t[2]
if #us < 6 then us = string.rep('0', 6 - #us) .. us end
local now = t[1] .. us
local seen = #now == 16 and call('MGET', unpack(KEYS)) or {}
local told, sets = { now }, {}
for n = 1, #KEYS / 2 do
  local lock, state, whose = KEYS[2 * n - 1], seen[2 * n], ARGV[n + 2]
  told[n + 1] = 0
  if state and sub(state, 1, 2) == came and sub(state, 52, 67 + size) == whose
    and now - sub(state, 36, 51) < sub(whose, size + 2) + 0 then
    local ended
    if layout == 'r' then
      ended = redis.pcall('HDEL', lock, sub(whose, 1, 38))
    else
      ended = seen[2 * n - 1] == sub(whose, 1, 32) and call('DEL', lock)
    end
    if ended == 1 then
      if layout == 'r' then
        if not string.find(lock, '{', 1, true) then lock = '{' .. lock .. '}' end
        redis.pcall(ARGV[2], 'redisson_lock__channel:' .. lock, '0')
      end
      told[n + 1] = 1
      sets[#sets + 1], sets[#sets + 2] = KEYS[2 * n], idle .. now .. whose
    end
  end
end
if #sets > 0 then call('MSET', unpack(sets)) end
return told
