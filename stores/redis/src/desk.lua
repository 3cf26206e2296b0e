-- The desk at which one resource is decided on: what every verb's script stands on.
--
-- The script of a verb is this file, `queue.lua`, and the verb's own file after them. To run one by
-- hand:
--   cat desk.lua queue.lua inspect.lua > /tmp/inspect.lua
--   redis-cli --eval /tmp/inspect.lua KEYS... , ARGS...
-- The keys of a resource, always in this order, all under one hash tag:
--   1 lock     what foreign clients see: a hash (layout `r`) or a string (layout `p`)
--   2 token    the counter of tokens
--   3 state    a string while nobody waits, and for a while has, and the lock is idle after a
--              release, or held by one plain claim (see below); otherwise a
--              hash: `m` the resource, `s` the permit slots, `<id>` a live claim, or `R` and until
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
--
-- The string has parts of fixed length, for the scripts of what is usual (`enter_usual.lua` and
-- its like):
--   idle  `i` LAYOUT RELEASED WHOSE
--   held  `x` LAYOUT PREVIOUS ENDED TOKEN BASE WHOSE LAST LIFE ` ` HOLDER ` ` LABEL
-- RELEASED is when; PREVIOUS and ENDED are how and when the grant before ended; TOKEN is the time
-- of the grant too; BASE is when the term began that runs. WHOSE is the lock's owner and the term,
-- with a blank after each: of who holds, or was the last to release; LAST is that of the release
-- before. Times and tokens have 16 digits, terms 14.

local LAYOUT, PUBLISH = ARGV[1], ARGV[2]
local FIRST_TERM, PUSH_MIN, DOOR = string.match(ARGV[3], '^(%d+) (%d+) (%d+)$')
FIRST_TERM, PUSH_MIN, DOOR = tonumber(FIRST_TERM), tonumber(PUSH_MIN), tonumber(DOOR)
local QUEUE_MAX, STEP_MAX, EXPIRE_MAX, SKIP_MAX = 10000, 64, 1000, 1000
local STREAK_MAX, STREAK_US = 16, 100000
local RELEASED_MIN, RELEASED_MAX, ROOM_MIN, ENDS_MAX = 32, 64, 64, 10000
-- For how long after somebody has waited the state stays a hash.
local CALM = 1000000
local TOKEN_MAX = 9007199254740991
local NONE = '-'
-- In place of the channel of a grant: its token is that of a majority of several servers.
local CONFIRMED = 'C'
-- Likewise: its token is this server's proposal, which nothing but the claim itself remembers.
local PROPOSED = 'M'

local time = redis.call('TIME')
local NOW = tonumber(time[1]) * 1000000 + tonumber(time[2])

local fmt, match = string.format, string.match

local META = '^g (%a) (%a) (%d+) (%d+) (%d+) (%d+) (%S+) (%S+) (%S+) (%d+) (%S) (%d+) (%d+) '
  .. '(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$'
local META_OUT = 'g %s %s %.0f %.0f %.0f %.0f %s %s %s %.0f %s %.0f %.0f %.0f %.0f %.0f %.0f '
  .. '%.0f %.0f %.0f %.0f %.0f'
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
    c.after, c.entered, c.holder, c.chan, c.token, c.since, c.prev, c.broken, c.slots, c.stands,
    c.scount, c.label)
end

-- A claim as it stands, or nil.
local function find(R, id)
  local c = R.claims[id]
  if c == nil then
    local text = not R.plain and redis.call('HGET', R.state, id)
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
    v = not R.plain and redis.call('HGET', R.state, name)
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

local STAMP = '(' .. string.rep('%d', 16) .. ')'

-- Reads a WHOSE: claim, term.
local function read_whose(layout, whose)
  local size = layout == 'r' and 38 or 32
  local owner, term = string.sub(whose, 1, size), tonumber(string.sub(whose, size + 2, size + 15))
  if not term then return nil end
  if layout == 'r' then owner = string.gsub(string.sub(owner, 1, 36), '-', '') end
  return owner, term
end

local function write_whose(id, term) return fmt('%s %014.0f ', owner_of(id), term) end

-- Notes that the claim of a WHOSE was released then.
local function note_released(R, layout, whose, at)
  local id, term = read_whose(layout, whose)
  if not id or at + term <= NOW then return end
  R.released, R.released_till[id], R.claims[id] = 1, at + term, false
end

-- Reads the string of a state into R; the layout that it was written in, or nil.
local function read_plain(R, m)
  local layout = string.sub(m, 2, 2)
  local size = layout == 'r' and 54 or 48
  R.plain = true
  if string.sub(m, 1, 1) == 'i' then
    local at = tonumber(string.sub(m, 3, 18))
    if not at or #m ~= 18 + size then return nil end
    R.how, R.at, R.used, R.serial = 'R', at, at, at
    R.last = tonumber(redis.call('MGET', R.counter)[1] or nil) or at
    R.last_whose = string.sub(m, 19)
    note_released(R, layout, R.last_whose, at)
    return layout
  end
  local how, at, since, base =
    match(string.sub(m, 1, 51), '^x%a(%S)' .. STAMP .. STAMP .. STAMP .. '$')
  local id, term = read_whose(layout, string.sub(m, 52, 51 + size))
  local life, holder, label = match(string.sub(m, 52 + 2 * size), '^(%a) (%x+) (.*)$')
  if not how or not id or not life then return nil end
  at, since, base = tonumber(at), tonumber(since), tonumber(base)
  local c = {
    state = 'H', order = since, mode = 'X', count = 0, limit = 0, term = term, life = life,
    place = 0, after = 0, entered = since, holder = holder, chan = NONE, token = since,
    since = since, prev = how, broken = '0', slots = NONE, stands = 'X', scount = 0, label = label,
  }
  R.how, R.at, R.used, R.last, R.serial = how == 'F' and NONE or how, at, since, since, since
  R.nh, R.x, R.xh, R.own, R.since = 1, { { id, base + term } }, holder, owner_of(id), since
  R.lease = math.ceil((base + term) / 1000)
  R.last_whose = string.sub(m, 52 + size, 51 + 2 * size)
  note_released(R, layout, R.last_whose, at)
  R.claims[id] = c
  return layout
end

-- Reads the hash of a state into R; the layout that it was written in, or nil.
local function read_shape(R, m)
  local layout, kind, limit, nh, nw, sum, own, xh, xl, last, how, ended, used, serial, streak,
    since, door, graves, room, lease, released, crowd = match(m, META)
  if not layout then return nil end
  R.kind, R.limit, R.nh, R.nw = kind, tonumber(limit), tonumber(nh), tonumber(nw)
  R.sum, R.own, R.xh, R.last = tonumber(sum), own, xh, tonumber(last)
  R.how, R.at, R.used, R.serial = how, tonumber(ended), tonumber(used), tonumber(serial)
  R.streak, R.since, R.door = tonumber(streak), tonumber(since), tonumber(door)
  R.graves, R.room, R.lease = tonumber(graves), tonumber(room), tonumber(lease)
  R.released, R.crowd = tonumber(released), tonumber(crowd)
  for id, till in string.gmatch(xl, '(%x+):(%d+)') do
    R.x[#R.x + 1] = { id, tonumber(till) }
  end
  return layout
end

-- The string of a state, where it can be one.
local function write_plain(R)
  if R.nw > 0 or R.graves > 0 or NOW - R.crowd < CALM or R.door > NOW then return nil end
  local last = R.how == 'R' and (R.plain and R.last_whose or field(R, 'l'))
    or string.rep(NONE, LAYOUT == 'r' and 54 or 48)
  if R.nh == 0 then
    if R.how ~= 'R' or R.at ~= R.used or R.last > R.used or R.serial > R.used then return nil end
    return fmt('i%s%016.0f%s', LAYOUT, R.at, last)
  end
  local sole = R.x[1]
  if R.nh > 1 or not sole then return nil end
  local id, till = sole[1], sole[2]
  local c = find(R, id)
  if not c then return nil end
  local at = c.token
  if c.stands ~= 'X' or c.mode ~= 'X' or c.broken == '1' or c.chan == CONFIRMED or at ~= c.since
    or at ~= c.entered or at ~= c.order or at ~= R.used or at ~= R.last or at < R.serial
    or R.how ~= 'R' and R.how ~= NONE or R.own ~= owner_of(id)
    or R.lease ~= math.ceil(till / 1000) or till < c.term
    or c.prev ~= (R.how == NONE and 'F' or R.how) then
    return nil
  end
  return fmt('x%s%s%016.0f%016.0f%016.0f%s%s%s %s %s', LAYOUT, c.prev, R.at, at, till - c.term,
    write_whose(id, c.term), last, c.life, c.holder, c.label)
end

-- The resource itself as a field of the hash.
local function write_shape(R)
  local xl = {}
  for i, e in ipairs(R.x) do xl[i] = fmt('%s:%.0f', e[1], e[2]) end
  return fmt(META_OUT, LAYOUT, R.kind, R.limit, R.nh, R.nw, R.sum, R.own, R.xh,
    #xl > 0 and table.concat(xl, ',') or NONE, R.last, R.how, R.at, R.used, R.serial, R.streak,
    R.since, R.door, R.graves, R.room, R.lease, R.released, R.crowd)
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
    lease = 0, released = 0, released_till = {}, crowd = 0, plain = false,
    foreign = false, blocked = false, lost = false,
  }
  local m = redis.call('MGET', R.state)[1]
  local layout = m and read_plain(R, m)
  local h = not m and redis.call('HGET', R.state, 'm')
  if h then layout = read_shape(R, h) end
  m = m or h
  if m then
    if not layout then return nil, { NOW, 'version', string.sub(m, 1, 40) } end
    if layout ~= LAYOUT then
      if R.nh + R.nw > 0 then return nil, { NOW, 'layout', layout } end
      R.last_whose = string.rep(NONE, LAYOUT == 'r' and 54 or 48)
    end
    -- After a clock that was set back, nothing lies in the future.
    if R.at > NOW then R.at, R.dirty = NOW, true end
    if R.door - NOW > DOOR then R.door, R.dirty = 0, true end
    if R.nw > 0 or R.crowd > NOW then R.crowd = NOW end
  else
    R.is_new, R.graves = true, redis.call('HLEN', R.ends)
  end
  if R.nh > 0 and not is_mine(R) then
    R.lost, R.own, R.lease = true, NONE, 0
  end
  if R.own == NONE then look(R) end
  return R
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
  local all, kept = R.plain and {} or redis.call('HGETALL', R.state), {}
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

-- Writes what has changed.
local function close(R)
  if R.nh == 0 and R.own ~= NONE then
    redis.call('DEL', R.lock)
    if LAYOUT == 'r' then redis.pcall(PUBLISH, R.channel, '0') end
    R.own, R.lease, R.dirty = NONE, 0, true
  end
  if not R.dirty then return end
  if R.is_new and R.graves > 0 then redis.call('PERSIST', R.ends) end
  if R.nw > 0 then R.crowd = NOW end
  if R.nw == 0 and R.graves > 0 and R.graves <= ROOM_MIN and not R.is_new
    and NOW - R.crowd >= CALM then
    prune(R)
  end
  local plain = write_plain(R)
  if plain then
    redis.call('SET', R.state, plain)
    R.plain, R.dirty, R.sets, R.dels = true, false, {}, {}
    return
  end
  if R.plain then
    -- The string becomes a hash.
    redis.call('DEL', R.state)
    R.plain = false
    for id, c in pairs(R.claims) do
      if c then R.sets[id] = write_claim(c) end
    end
    for id, till in pairs(R.released_till) do
      if till then R.sets[id] = fmt('R %.0f', till) end
    end
    if R.how == 'R' and not R.sets.l then R.sets.l = R.last_whose end
  end
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
