-- The usual renewals: of plain locks that one claim holds and nobody waits for, with the term that
-- it has. Each alone; what is not quite so is left as it is and told as 0, for `renew.lua`.
-- KEYS: two for each claim: lock, state. ARGV[1]: layout, then two for each claim:
-- `LIFE` `TOKEN` `OWNER TERM ` without a blank between, and for how many ms the lock is to last.
local call, sub = redis.call, string.sub
local layout = ARGV[1]
local came = 'x' .. layout
local size = layout == 'r' and 38 or 32
local t = call('TIME')
local us = t[2]
if #us < 6 then us = string.rep('0', 6 - #us) .. us end
local now = t[1] .. us
local seen = #now == 16 and call('MGET', unpack(KEYS)) or {}
local told, sets = { now }, {}
for n = 1, #KEYS / 2 do
  local lock, state, whose = KEYS[2 * n - 1], seen[2 * n], ARGV[2 * n]
  told[n + 1] = 0
  if state and sub(state, 1, 2) == came and sub(state, 20, 35) == sub(whose, 2, 17)
    and sub(state, 52, 67 + size) == sub(whose, 18)
    and sub(state, 84 + 2 * size, 84 + 2 * size) == sub(whose, 1, 1) then
    local base = sub(state, 36, 51)
    if now > base and now - base < sub(whose, size + 19) + 0 then
      local mine
      if layout == 'r' then
        mine = redis.pcall('HEXISTS', lock, sub(whose, 18, 55)) == 1
      else
        mine = seen[2 * n - 1] == sub(whose, 18, 49)
      end
      if mine then
        call('PEXPIRE', lock, ARGV[2 * n + 1])
        told[n + 1] = 1
        sets[#sets + 1], sets[#sets + 2] = KEYS[2 * n], sub(state, 1, 35) .. now .. sub(state, 52)
      end
    end
  end
end
if #sets > 0 then call('MSET', unpack(sets)) end
return told
