-- The usual case first, before anything else is set up: the one holder of a plain lock that nobody
-- waits for. Whatever is not quite so is left to the desk below.
if ARGV[6] == '0' then
  local layout, id, till, rest, graves, last, term, broken
  local m = redis.call('HGET', KEYS[3], 'm')
  if m then
    layout, id, till, rest, graves, last, term, broken = string.match(m, '^x (%a) (%x+) (%d+) '
      .. '(%d+ %d+ %d+) (%d+) (%d+) %S %d+ %d+ '
      .. 'H %d+ X %d+ %d+ (%d+) %a %d+ %d+ %d+ %x+ %S+ %d+ %d+ %S (%d) ')
  end
  if layout == ARGV[1] and id == ARGV[4] and broken == '0' and graves + 0 < 64 then
    local t = redis.call('TIME')
    local now = t[1] * 1000000 + t[2]
    if till + 0 > now then
      local mine
      if layout == 'r' then
        local owner = string.sub(id, 1, 8) .. '-' .. string.sub(id, 9, 12) .. '-'
          .. string.sub(id, 13, 16) .. '-' .. string.sub(id, 17, 20) .. '-'
          .. string.sub(id, 21) .. ':1'
        mine = type(redis.pcall('HGET', KEYS[1], owner)) == 'string'
      else
        mine = redis.pcall('GET', KEYS[1]) == id
      end
      if mine then
        local now_s = string.format('%.0f', now)
        redis.call('DEL', KEYS[1])
        if layout == 'r' then
          local name = KEYS[1]
          if not string.find(name, '{', 1, true) then name = '{' .. name .. '}' end
          redis.pcall(ARGV[2], 'redisson_lock__channel:' .. name, '0')
        end
        redis.call('HSET', KEYS[3],
          'm', 'i ' .. layout .. ' R ' .. now_s .. ' ' .. now_s .. ' ' .. last .. ' ' .. rest
            .. string.format(' %d', graves + 1),
          id, string.format('R %.0f', now + term))
        return { now, 'released' }
      end
    end
  end
end

