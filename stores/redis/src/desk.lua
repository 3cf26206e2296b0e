-- The desk at which one resource is decided on: what every verb's script stands on.
--
-- The script of a verb is this file, `queue.lua`, and the verb's own file after them. To run one by
-- hand:
--   cat desk.lua queue.lua inspect.lua > /tmp/inspect.lua
--   redis-cli --eval /tmp/inspect.lua KEYS... , ARGS...
-- The keys of a resource, always in this order, all under one hash tag:
--   1 lock     what foreign clients see: a hash (layout `r`) or a string (layout `p`)
--   2 token    the counter of tokens
--   3 state    hash: `m` the resource, `s` the permit slots, `<id>` a live claim, or `R` and until
--              when it is remembered that it was released, `h<holder>` its shared claims and
--              permits, `o<order>` how many claims stand for one shared grant or one of permits,
--              where there is more than one
--   4 waiting  zset: claim by order
--   5 places   zset: waiting claim by the end of its place, in us
--   6 held     zset: shared claims and permits by the end of their term, in us
--   7 ends     hash: claims that ended otherwise than by release, or are barred
-- ARGV[1..3]: layout, word to publish with, and, with blanks between, first term and shortest
-- pushed term in us, and for how long our claims keep out of a lock that was announced to foreign
-- clients.
--
-- Times are in us of this server's clock, read once. Numbers become text by %.0f only.

local LAYOUT, PUBLISH = ARGV[1], ARGV[2]
local FIRST_TERM, PUSH_MIN, DOOR = string.match(ARGV[3], '^(%d+) (%d+) (%d+)$')
FIRST_TERM, PUSH_MIN, DOOR = tonumber(FIRST_TERM), tonumber(PUSH_MIN), tonumber(DOOR)
local QUEUE_MAX, STEP_MAX, EXPIRE_MAX, SKIP_MAX = 10000, 64, 1000, 1000
local STREAK_MAX, STREAK_US = 16, 100000
local RELEASED_MIN, RELEASED_MAX, ROOM_MIN, ENDS_MAX = 32, 64, 64, 10000
local TOKEN_MAX = 9007199254740991
local NONE = '-'
-- In place of the channel of a grant: its token is that of a majority of several servers.
local CONFIRMED = 'C'

local time = redis.call('TIME')
local NOW = tonumber(time[1]) * 1000000 + tonumber(time[2])

local fmt, match = string.format, string.match

-- The resource in one of three shapes: idle, held by one plain claim that is told in it, or any.
local IDLE = '^i (%a) (%S) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$'
local IDLE_OUT = 'i %s %s %.0f %.0f %.0f %.0f %.0f %.0f %.0f'
local SOLE = '^x (%a) (%x+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%S) (%d+) (%d+) (.*)$'
local SOLE_OUT = 'x %s %s %.0f %.0f %.0f %.0f %.0f %.0f %s %.0f %.0f %s'
local META = '^g (%a) (%a) (%d+) (%d+) (%d+) (%d+) (%S+) (%S+) (%S+) (%d+) (%S) (%d+) (%d+) '
  .. '(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$'
local META_OUT = 'g %s %s %.0f %.0f %.0f %.0f %s %s %s %.0f %s %.0f %.0f %.0f %.0f %.0f %.0f '
  .. '%.0f %.0f %.0f %.0f'
local CLAIM = '^(%a) (%d+) (%a) (%d+) (%d+) (%d+) (%a) (%d+) (%d+) (%d+) (%x+) (%S+) (%d+) (%d+) '
  .. '(%S) (%d) (%S+) (%a) (%d+) (.*)$'
local CLAIM_OUT = '%s %.0f %s %.0f %.0f %.0f %s %.0f %.0f %.0f %s %s %.0f %.0f %s %s %s %s %.0f %s'

-- ---- the state ----------------------------------------------------------------------------

local function read_claim(text)
  local c = {}
  local order, count, limit, term, place, after, entered, token, since, scount
  c.state, order, c.mode, count, limit, term, c.life, place, after, entered, c.holder, c.chan,
    token, since, c.prev, c.broken, c.slots, c.stands, scount, c.label = match(text, CLAIM)
  if not c.state then return nil end
  c.order, c.count, c.limit = tonumber(order), tonumber(count), tonumber(limit)
  c.term = tonumber(term)
  c.place, c.after, c.entered = tonumber(place), tonumber(after), tonumber(entered)
  c.token, c.since, c.scount = tonumber(token), tonumber(since), tonumber(scount)
  return c
end

local function write_claim(c)
  return fmt(CLAIM_OUT, c.state, c.order, c.mode, c.count, c.limit, c.term, c.life, c.place,
    c.after, c.entered, c.holder, c.chan, c.token, c.since, c.prev, c.broken, c.slots, c.stands, c.scount,
    c.label)
end

-- A claim as it stands, or nil.
local function find(R, id)
  local c = R.claims[id]
  if c == nil then
    local text = redis.call('HGET', R.state, id)
    R.released_till[id] = text and tonumber(match(text, '^R (%d+)$') or nil)
    c = text and read_claim(text) or false
    R.claims[id] = c
  end
  return c or nil
end

local function put(R, id, c)
  R.claims[id] = c
  R.sets[id] = write_claim(c)
  R.dels[id] = nil
  R.dirty = true
end

local function forget(R, id)
  R.claims[id] = false
  R.sets[id] = nil
  R.dels[id] = true
  R.dirty = true
end

local function field(R, name)
  local v = R.fields[name]
  if v == nil then
    v = redis.call('HGET', R.state, name)
    R.fields[name] = v
  end
  return v or nil
end

local function put_field(R, name, value)
  R.fields[name] = value or false
  R.sets[name] = value
  R.dels[name] = (not value) and true or nil
  R.dirty = true
end

-- Whom the lock belongs to when none of our claims holds it.
local function look(R)
  local kind = redis.call('TYPE', R.lock)['ok']
  if kind == 'none' then return end
  R.foreign = true
  local ours = LAYOUT == 'r' and 'hash' or 'string'
  if kind ~= ours then R.alien = kind end
end

local function is_mine(R)
  if LAYOUT == 'r' then
    return type(redis.pcall('HGET', R.lock, R.own)) == 'string'
  end
  return redis.pcall('GET', R.lock) == R.own
end

local function owner_of(id)
  if LAYOUT == 'p' then return id end
  local a, b, c, d, e = match(id, '^(%x%x%x%x%x%x%x%x)(%x%x%x%x)(%x%x%x%x)(%x%x%x%x)(%x+)$')
  return a .. '-' .. b .. '-' .. c .. '-' .. d .. '-' .. e .. ':1'
end

-- Reads the resource itself into R; the layout that it was written in, or nil.
local function read_shape(R, m)
  local shape = string.sub(m, 1, 2)
  if shape == 'i ' then
    local layout, how, at, used, last, graves, room, serial, released = match(m, IDLE)
    if not layout then return nil end
    R.how, R.at, R.used, R.last = how, tonumber(at), tonumber(used), tonumber(last)
    R.graves, R.room, R.serial = tonumber(graves), tonumber(room), tonumber(serial)
    R.released = tonumber(released)
    return layout
  end
  if shape == 'x ' then
    local layout, id, till, graves, room, serial, released, last, how, at, used, text =
      match(m, SOLE)
    local c = layout and read_claim(text)
    if not c then return nil end
    R.how, R.at, R.used, R.last = how, tonumber(at), tonumber(used), tonumber(last)
    R.graves, R.room = tonumber(graves), tonumber(room)
    R.serial = math.max(tonumber(serial), c.order)
    R.released = tonumber(released)
    R.nh, R.x, R.xh, R.own, R.since = 1, { { id, tonumber(till) } }, c.holder, owner_of(id), c.since
    R.lease = math.ceil(tonumber(till) / 1000)
    R.claims[id], R.inline = c, id
    return layout
  end
  local layout, kind, limit, nh, nw, sum, own, xh, xl, last, how, ended, used, serial, streak,
    since, door, graves, room, lease, released = match(m, META)
  if not layout then return nil end
  R.kind, R.limit, R.nh, R.nw = kind, tonumber(limit), tonumber(nh), tonumber(nw)
  R.sum, R.own, R.xh, R.last = tonumber(sum), own, xh, tonumber(last)
  R.how, R.at, R.used, R.serial = how, tonumber(ended), tonumber(used), tonumber(serial)
  R.streak, R.since, R.door = tonumber(streak), tonumber(since), tonumber(door)
  R.graves, R.room, R.lease = tonumber(graves), tonumber(room), tonumber(lease)
  R.released = tonumber(released)
  for id, till in string.gmatch(xl, '(%x+):(%d+)') do
    R.x[#R.x + 1] = { id, tonumber(till) }
  end
  return layout
end

-- The resource itself as text. A sole claim is told in it, any other in a field of its own.
local function write_shape(R)
  local sole = R.x[1]
  if R.nh == 0 and R.nw == 0 then
    return fmt(IDLE_OUT, LAYOUT, R.how, R.at, R.used, R.last, R.graves, R.room, R.serial,
      R.released)
  end
  if R.nh == 1 and R.nw == 0 and sole and R.streak == 0 and R.own == owner_of(sole[1])
    and R.lease == math.ceil(sole[2] / 1000) then
    local id = sole[1]
    local text = write_claim(find(R, id))
    R.sets[id] = nil
    if R.inline ~= id then R.dels[id] = true end
    return fmt(SOLE_OUT, LAYOUT, id, sole[2], R.graves, R.room, R.serial, R.released,
      R.last, R.how, R.at, R.used, text)
  end
  local inline = R.inline and find(R, R.inline)
  if inline then R.sets[R.inline] = write_claim(inline) end
  local xl = {}
  for i, e in ipairs(R.x) do xl[i] = fmt('%s:%.0f', e[1], e[2]) end
  return fmt(META_OUT, LAYOUT, R.kind, R.limit, R.nh, R.nw, R.sum, R.own, R.xh,
    #xl > 0 and table.concat(xl, ',') or NONE, R.last, R.how, R.at, R.used, R.serial, R.streak,
    R.since, R.door, R.graves, R.room, R.lease, R.released)
end

-- Where Redisson's clients wait for a lock.
local function foreign_channel(lock)
  if not string.find(lock, '{', 1, true) then lock = '{' .. lock .. '}' end
  return 'redisson_lock__channel:' .. lock
end

-- Reads a resource. The second value is a refusal.
local function open(at)
  local R = {
    lock = KEYS[at], counter = KEYS[at + 1], state = KEYS[at + 2], waiting = KEYS[at + 3],
    places = KEYS[at + 4], held = KEYS[at + 5], ends = KEYS[at + 6],
    channel = foreign_channel(KEYS[at]),
    claims = {}, fields = {}, sets = {}, dels = {}, x = {}, dirty = false, is_new = false,
    kind = 'L', limit = 0, nh = 0, nw = 0, sum = 0, own = NONE, xh = NONE, last = 0, how = NONE,
    at = 0, used = 0, serial = 0, streak = 0, since = 0, door = 0, graves = 0, room = ROOM_MIN,
    lease = 0, released = 0, released_till = {}, foreign = false, blocked = false, lost = false,
  }
  local m = redis.call('HGET', R.state, 'm')
  if m then
    local layout = read_shape(R, m)
    if not layout then return nil, { NOW, 'version', string.sub(m, 1, 40) } end
    if layout ~= LAYOUT and R.nh + R.nw > 0 then return nil, { NOW, 'layout', layout } end
    -- After a clock that was set back, nothing lies in the future.
    if R.at > NOW then R.at, R.dirty = NOW, true end
    if R.door - NOW > DOOR then R.door, R.dirty = 0, true end
  else
    R.is_new, R.graves = true, redis.call('HLEN', R.ends)
  end
  if R.nh > 0 and not is_mine(R) then
    R.lost, R.own, R.lease = true, NONE, 0
  end
  if R.own == NONE then look(R) end
  return R
end

-- Writes what has changed.
local function close(R)
  if R.nh == 0 and R.own ~= NONE then
    redis.call('DEL', R.lock)
    if LAYOUT == 'r' then redis.pcall(PUBLISH, R.channel, '0') end
    R.own, R.lease, R.dirty = NONE, 0, true
  end
  if not R.dirty then return end
  if R.is_new and R.graves > 0 then redis.call('PERSIST', R.ends) end
  local list = { 'm', write_shape(R) }
  for name, value in pairs(R.sets) do
    list[#list + 1], list[#list + 2] = name, value
    if #list > 1000 then
      redis.call('HSET', R.state, unpack(list))
      list = {}
    end
  end
  if #list > 0 then redis.call('HSET', R.state, unpack(list)) end
  local gone = {}
  for name in pairs(R.dels) do
    gone[#gone + 1] = name
    if #gone > 1000 then
      redis.call('HDEL', R.state, unpack(gone))
      gone = {}
    end
  end
  if #gone > 0 then redis.call('HDEL', R.state, unpack(gone)) end
  R.dirty, R.sets, R.dels = false, {}, {}
end

-- ---- ended claims -------------------------------------------------------------------------

-- How a claim ended, and until when that is remembered.
local function grave(R, id)
  if R.graves > 0 then
    local told = redis.call('HGET', R.ends, id)
    if told then
      local how, till = match(told, '^(%a) (%d+)$')
      if tonumber(till) > NOW then return how, tonumber(till) end
    end
  end
  find(R, id)
  local till = R.released_till[id]
  if till and till > NOW then return 'R', till end
end

local function prune(R)
  local all = redis.call('HGETALL', R.ends)
  local kept, dead = {}, {}
  for i = 1, #all, 2 do
    local till = tonumber(match(all[i + 1], '%d+$'))
    if till > NOW then kept[#kept + 1] = { till, all[i] } else dead[#dead + 1] = all[i] end
  end
  if #kept > ENDS_MAX then
    table.sort(kept, function(a, b) return a[1] > b[1] end)
    for i = ENDS_MAX / 2 + 1, #kept do
      dead[#dead + 1], kept[i] = kept[i][2], nil
    end
  end
  for i = 1, #dead, 1000 do
    redis.call('HDEL', R.ends, unpack(dead, i, math.min(i + 999, #dead)))
  end
  R.graves, R.room = #kept, math.max(ROOM_MIN, 2 * #kept)
end

-- Remembers an end for certain until then.
local function entomb(R, id, how, till)
  local is_new = redis.call('HSET', R.ends, id, fmt('%s %.0f', how, till))
  if R.is_new and not R.dirty then
    -- Nothing else is kept of this name, so this goes by itself.
    local ms = math.ceil(till / 1000)
    local left = redis.call('PTTL', R.ends)
    if left < 0 or NOW / 1000 + left < ms then redis.call('PEXPIREAT', R.ends, ms) end
    return
  end
  R.graves, R.dirty = R.graves + is_new, true
  if R.graves > R.room then prune(R) end
end

-- Of the released claims the last ones are remembered.
local function forget_released(R, but)
  local all, kept = redis.call('HGETALL', R.state), {}
  for i = 1, #all, 2 do
    local till = match(all[i + 1], '^R (%d+)$')
    if till and all[i] ~= but then kept[#kept + 1] = { tonumber(till), all[i] } end
  end
  table.sort(kept, function(a, b) return a[1] > b[1] end)
  local dead, left = {}, 1
  for i, e in ipairs(kept) do
    if e[1] <= NOW or i >= RELEASED_MIN then dead[#dead + 1] = e[2] else left = left + 1 end
  end
  for i = 1, #dead, 1000 do
    redis.call('HDEL', R.state, unpack(dead, i, math.min(i + 999, #dead)))
  end
  R.released = left
end

local function bury(R, id, how, till)
  if how == 'R' then
    if not R.released_till[id] then R.released = R.released + 1 end
    R.released_till[id] = till
    put_field(R, id, fmt('R %.0f', till))
    if R.released > math.max(RELEASED_MAX, R.nh + R.nw) then forget_released(R, id) end
  else
    entomb(R, id, how, till)
  end
end

-- ---- the lock as foreign clients see it -----------------------------------------------------

local function seize(R, id, till)
  local ms, owner = math.ceil(till / 1000), owner_of(id)
  if LAYOUT == 'r' then
    if R.own ~= NONE then redis.call('DEL', R.lock) end
    redis.call('HSET', R.lock, owner, 1)
    redis.call('PEXPIREAT', R.lock, ms)
  else
    redis.call('SET', R.lock, owner, 'PXAT', ms)
  end
  R.own, R.lease, R.dirty = owner, ms, true
end

-- Never shortens.
local function extend(R, till)
  local ms = math.ceil(till / 1000)
  if ms > R.lease then
    redis.call('PEXPIREAT', R.lock, ms)
    R.lease, R.dirty = ms, true
  end
end

-- After one of several claims has ended: the latest end of those that are left.
local function trim(R)
  local till = 0
  if R.xh ~= NONE then
    for _, e in ipairs(R.x) do till = math.max(till, e[2]) end
    if LAYOUT == 'r' then redis.call('HSET', R.lock, R.own, #R.x) end
  else
    local last = redis.call('ZREVRANGE', R.held, 0, 0, 'WITHSCORES')
    till = tonumber(last[2] or 0)
  end
  local ms = math.ceil(till / 1000)
  if ms > 0 and ms ~= R.lease then
    redis.call('PEXPIREAT', R.lock, ms)
    R.lease, R.dirty = ms, true
  end
end
