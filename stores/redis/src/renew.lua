-- Renews grants and keeps places; each claim is answered alone.
-- KEYS: seven for each claim. ARGV[4..]: five for each claim: claim, token or 0, term, life, wake
-- channel.

-- A write that needs no memory comes first: what follows is then not refused for lack of it.
redis.call('PERSIST', KEYS[3])

local open_desks, order = {}, {}

local function desk_of(at)
  local key = KEYS[at + 2]
  local R = open_desks[key]
  if not R then
    local opened, no = open(at)
    if no then return nil, no end
    R = opened
    open_desks[key] = R
    order[#order + 1] = R
    expire(R)
  end
  return R
end

local function renew_held(R, id, c, token)
  if token > 0 and token ~= c.token then return { 'gone', grave(R, id) or 'U' } end
  if c.broken == '1' then return { 'gone', 'B' } end
  local till = NOW + c.term
  if c.stands == 'X' then
    for _, e in ipairs(R.x) do
      if e[1] == id then
        till = math.max(till, e[2])
        e[2] = till
      end
    end
    R.dirty = true
  else
    till = math.max(till, end_of(R, id, c))
    redis.call('ZADD', R.held, till, id)
  end
  extend(R, till)
  if token > 0 then return { 'alive', till - NOW } end
  return granted(R, id, c, till)
end

local function renew(n)
  local a = 4 + 5 * n
  local id, token, term, life, chan =
    ARGV[a], tonumber(ARGV[a + 1]), tonumber(ARGV[a + 2]), ARGV[a + 3], ARGV[a + 4]
  local R, no = desk_of(7 * n + 1)
  if no then
    table.remove(no, 1)
    return no
  end
  admit(R, id)
  local c = find(R, id)
  if not c then return { 'gone', grave(R, id) or 'U' } end
  local mismatch = c.state == 'H' and token > 0 and token ~= c.token
  if not mismatch and (c.term ~= term or c.life ~= life) then
    c.term, c.life = term, life
    put(R, id, c)
  end
  if c.state == 'H' then return renew_held(R, id, c, token) end
  local told = queued(R, id, c)
  if told[1] == 'waiting' then
    redis.call('ZADD', R.places, NOW + c.place, id)
    heard_of(R, id, c, chan)
  end
  return told
end

local told = { NOW }
for n = 0, #KEYS / 7 - 1 do told[n + 2] = renew(n) end
for _, R in ipairs(order) do close(R) end
return told
