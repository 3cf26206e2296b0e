-- The second phase at one of several servers: a claim that holds here takes the token of the
-- majority, if it is above all that other grants had here. ARGV[4..]: claim, token.
local id, token = ARGV[4], tonumber(ARGV[5])
local R, no = open(1)
if no then return no end
expire(R)
local c = find(R, id)
local told
if not c or c.state ~= 'H' then
  told = { NOW, 'gone', grave(R, id) or 'U' }
elseif c.broken == '1' then
  told = { NOW, 'gone', 'B' }
else
  local newest = math.max(tonumber(redis.call('GET', R.counter) or 0) or 0, R.last)
  if c.chan == CONFIRMED and c.token == token then
    told = with_time(granted(R, id, c, end_of(R, id, c)))
  elseif newest >= token then
    told = { NOW, 'higher', newest + 1 }
  else
    redis.call('SET', R.counter, fmt('%.0f', token))
    R.last, c.token, c.chan = token, token, CONFIRMED
    put(R, id, c)
    told = with_time(granted(R, id, c, end_of(R, id, c)))
  end
end
close(R)
return told
