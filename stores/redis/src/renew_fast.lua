-- The usual case first, before anything else is set up: claims that hold plain locks for which
-- nobody waits. Whatever is not quite so is left to the desk below.
local told, rest = { 0 }, {}
do
  local t = redis.call('TIME')
  local now = t[1] * 1000000 + t[2]
  local layout = ARGV[1]
  told[1] = now
  for n = 0, #KEYS / 7 - 1 do
    local k, a = 7 * n, 4 + 5 * n
    local id, alive = ARGV[a], false
    local m = redis.call('HGET', KEYS[k + 3], 'm')
    local laid, whose, till, after
    if m then laid, whose, till, after = string.match(m, '^x (%a) (%x+) (%d+) (.*)$') end
    if whose == id and laid == layout and tonumber(till) > now then
      local term, life, token, broken = string.match(after, '^%d+ %d+ %d+ %d+ %d+ %S %d+ %d+ '
        .. 'H %d+ X %d+ %d+ (%d+) (%a) %d+ %d+ %d+ %x+ %S+ (%d+) %d+ %S (%d) ')
      if broken == '0' and token == ARGV[a + 1] and term == ARGV[a + 2] and life == ARGV[a + 3] then
        local mine
        if layout == 'r' then
          local owner = string.sub(id, 1, 8) .. '-' .. string.sub(id, 9, 12) .. '-'
            .. string.sub(id, 13, 16) .. '-' .. string.sub(id, 17, 20) .. '-'
            .. string.sub(id, 21) .. ':1'
          mine = type(redis.pcall('HGET', KEYS[k + 1], owner)) == 'string'
        else
          mine = redis.pcall('GET', KEYS[k + 1]) == id
        end
        if mine then
          local left = math.max(tonumber(term), till - now)
          if now + left > tonumber(till) then
            redis.call('PEXPIREAT', KEYS[k + 1],
              string.format('%.0f', math.ceil((now + left) / 1000)))
            redis.call('HSET', KEYS[k + 3], 'm',
              string.format('x %s %s %.0f %s', laid, id, now + left, after))
          end
          told[n + 2], alive = { 'alive', left }, true
        end
      end
    end
    if not alive then rest[#rest + 1] = n end
  end
  if #rest == 0 then return told end
end

