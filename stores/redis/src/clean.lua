-- Forgets a name that was last used longer ago than `keep`, but for its counter.
-- KEYS[8]: the record. ARGV[4..]: keep in us, 1 to change nothing.
local keep, dry = tonumber(ARGV[4]), ARGV[5] == '1'

local R, no = open(1)
if no then return { NOW, 0 } end
if R.is_new then return { NOW, 0 } end
local kept_until = tonumber(redis.pcall('HGET', KEYS[8], 'u') or 0) or 0
local live = kept_until > NOW
for _, e in ipairs(R.x) do live = live or e[2] > NOW end
live = live or redis.call('ZCOUNT', R.held, fmt('(%.0f', NOW), '+inf') > 0
live = live or redis.call('ZCOUNT', R.places, fmt('(%.0f', NOW), '+inf') > 0
if live or R.used + keep > NOW then return { NOW, 0 } end
if dry then return { NOW, 1 } end
-- A write that needs no memory comes first: what follows is then not refused for lack of it.
redis.call('PERSIST', KEYS[3])
expire(R)
-- What ended lately stays dead for its time.
local last = 0
local function stays_dead(id, till)
  if till and till > NOW then redis.call('HSET', R.ends, id, fmt('R %.0f', till)) end
end
if R.plain then
  for id, till in pairs(R.released_till) do stays_dead(id, till) end
else
  local state = redis.call('HGETALL', R.state)
  for i = 1, #state, 2 do
    stays_dead(state[i], tonumber(match(state[i + 1], '^R (%d+)$') or nil))
  end
end
local all = redis.call('HGETALL', R.ends)
for i = 1, #all, 2 do
  local till = tonumber(match(all[i + 1], '%d+$'))
  last = math.max(last, till)
end
if R.own ~= NONE then redis.call('DEL', R.lock) end
redis.call('DEL', R.state, R.waiting, R.places, R.held, KEYS[8])
if last > NOW then redis.call('PEXPIREAT', R.ends, math.ceil(last / 1000)) else
  redis.call('DEL', R.ends)
end
-- A counter of our own that lies behind the clock is not needed: the clock is the floor.
if LAYOUT == 'p' and tonumber(redis.call('GET', R.counter) or 0) < NOW then
  redis.call('DEL', R.counter)
end
return { NOW, 1 }
