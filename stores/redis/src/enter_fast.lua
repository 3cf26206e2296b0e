-- The usual case first, before anything else is set up: a plain lock that nobody holds or waits
-- for. Whatever is not quite so is left to the desk below.
if ARGV[5] == 'X' and not ARGV[10] then
  local got = redis.call('HMGET', KEYS[3], 'm', ARGV[4])
  local layout, how, at, used, last, rest, serial, graves
  if got[1] and not got[2] then
    layout, how, at, used, last, rest, serial, graves =
      string.match(got[1], '^i (%a) (%S) (%d+) (%d+) (%d+) (0 %d+) (%d+) (%d+)$')
  end
  if layout == ARGV[1] and (how == 'R' or how == '-')
    and redis.call('TYPE', KEYS[1])['ok'] == 'none' then
    local t = redis.call('TIME')
    local now = t[1] * 1000000 + t[2]
    local token = math.max(tonumber(redis.call('GET', KEYS[2]) or 0) or 0, last + 0) + 1
    if now > serial + 0 and now > used + 0 and token <= 9007199254740991 then
      local now_s = string.format('%.0f', now)
      local token_s = now_s
      if token > now then token_s = string.format('%.0f', token) else token = now end
      local id, term, prev = ARGV[4], ARGV[6] + 0, how == '-' and 'F' or how
      local till = now + term
      local ms = string.format('%.0f', math.ceil(till / 1000))
      redis.call('SET', KEYS[2], token_s)
      if layout == 'r' then
        redis.call('HSET', KEYS[1], string.sub(id, 1, 8) .. '-' .. string.sub(id, 9, 12) .. '-'
          .. string.sub(id, 13, 16) .. '-' .. string.sub(id, 17, 20) .. '-'
          .. string.sub(id, 21) .. ':1', '1')
        redis.call('PEXPIREAT', KEYS[1], ms)
      else
        redis.call('SET', KEYS[1], id, 'PXAT', ms)
      end
      redis.call('HSET', KEYS[3], 'm', 'x ' .. layout .. ' ' .. id .. ' '
        .. string.format('%.0f ', till) .. rest .. ' ' .. serial .. ' ' .. graves .. ' ' .. token_s
        .. ' ' .. how .. ' ' .. at .. ' ' .. now_s .. ' H ' .. now_s .. ' X ' .. ARGV[7] .. ' '
        .. now_s .. ' ' .. ARGV[8] .. ' ' .. token_s .. ' ' .. now_s .. ' ' .. prev .. ' 0 - X 0 '
        .. ARGV[9])
      return { now, 'granted', token, term, '-', prev }
    end
  end
end

