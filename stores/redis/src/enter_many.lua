-- Many claims as in `enter_usual.lua`, each alone.
-- KEYS: three for each claim: lock, token, state. ARGV[1]: layout, then three for each claim: for
-- how many ms the lock is to last, `OWNER TERM `, `LIFE HOLDER LABEL`.
local call, sub = redis.call, string.sub
local layout = ARGV[1]
local idle, came = 'i' .. layout, 'x' .. layout .. 'R'
local size = layout == 'r' and 38 or 32
local t = call('TIME')
local us = t[2]
if #us < 6 then us = string.rep('0', 6 - #us) .. us end
local now = t[1] .. us
local now_us = tonumber(now)
local seen = call('MGET', unpack(KEYS))
local told, locks, sets, at, taken = { now }, {}, {}, {}, {}
for n = 1, #KEYS / 3 do
  local k = 3 * n
  local state, last = seen[k], seen[k - 1]
  told[n + 1] = 0
  if state and last and not taken[KEYS[k]] and sub(state, 1, 2) == idle and sub(state, 3, 18) < now
    and sub(state, 19, 18 + size) ~= sub(ARGV[k], 1, size)
    and (tonumber(last) or now_us) < now_us then
    local m = #at + 1
    at[m], taken[KEYS[k]], locks[m] = n, true, KEYS[k - 2]
    sets[4 * m - 3], sets[4 * m - 2], sets[4 * m - 1] = KEYS[k - 1], now, KEYS[k]
    sets[4 * m] = came .. sub(state, 3, 18) .. now .. now .. ARGV[k] .. sub(state, 19)
      .. ARGV[k + 1]
  end
end
if #at == 0 or #now ~= 16 or call('EXISTS', unpack(locks)) > 0 then return told end
call('MSET', unpack(sets))
for m, n in ipairs(at) do
  local k = 3 * n
  if layout == 'r' then
    call('HSET', locks[m], sub(ARGV[k], 1, 38), '1')
    call('PEXPIRE', locks[m], ARGV[k - 1])
  else
    call('SET', locks[m], sub(ARGV[k], 1, 32), 'PX', ARGV[k - 1])
  end
  told[n + 1] = 1
end
return told
