-- Who holds and who waits on one resource: what runs out, who is admitted, and what is answered.
-- It follows `desk.lua`.

-- ---- claims that hold -----------------------------------------------------------------------

-- The ids of a holder's shared claims and permits.
local function held_by(R, holder)
  local ids = {}
  for id in string.gmatch(field(R, 'h' .. holder) or '', '%x+') do ids[#ids + 1] = id end
  return ids
end

local function use_slots(R, slots, by)
  local s = field(R, 's') or string.rep('0', R.limit)
  for n in string.gmatch(slots, '%d+') do
    local i = tonumber(n) + 1
    s = string.sub(s, 1, i - 1) .. string.char(string.byte(s, i) + by) .. string.sub(s, i + 1)
  end
  put_field(R, 's', s)
end

local function free_slots(R, count)
  local s = field(R, 's') or string.rep('0', R.limit)
  local found, from = {}, 1
  while #found < count do
    local i = string.find(s, '0', from, true)
    if not i then break end
    found[#found + 1], from = fmt('%d', i - 1), i + 1
  end
  return #found > 0 and table.concat(found, ',') or NONE
end

-- Notes one more claim that holds, until then.
local function hold(R, id, c, till, joins)
  R.nh, R.dirty = R.nh + 1, true
  if c.stands == 'X' then
    R.xh = c.holder
    R.x[#R.x + 1] = { id, till }
    if joins and LAYOUT == 'r' then redis.call('HSET', R.lock, R.own, #R.x) end
  else
    redis.call('ZADD', R.held, till, id)
    local ids = field(R, 'h' .. c.holder)
    put_field(R, 'h' .. c.holder, ids and (ids .. ' ' .. id) or id)
    if joins then
      local name = fmt('o%.0f', c.order)
      put_field(R, name, fmt('%d', tonumber(field(R, name) or 1) + 1))
    elseif c.stands == 'P' then
      R.sum = R.sum + c.scount
    end
    if c.slots ~= NONE then use_slots(R, c.slots, 1) end
  end
  if joins then extend(R, till) else
    if R.nh == 1 then seize(R, id, till) else extend(R, till) end
  end
end

-- Takes a claim out of those that hold; whether it was the last of its grant.
local function let_go(R, id, c)
  R.nh, R.dirty = R.nh - 1, true
  if c.stands == 'X' then
    for i, e in ipairs(R.x) do
      if e[1] == id then table.remove(R.x, i) break end
    end
    if #R.x == 0 then R.xh = NONE end
    return #R.x == 0
  end
  redis.call('ZREM', R.held, id)
  local left = {}
  for _, other in ipairs(held_by(R, c.holder)) do
    if other ~= id then left[#left + 1] = other end
  end
  put_field(R, 'h' .. c.holder, #left > 0 and table.concat(left, ' ') or nil)
  if c.slots ~= NONE then use_slots(R, c.slots, -1) end
  local name = fmt('o%.0f', c.order)
  local count = tonumber(field(R, name) or 1) - 1
  if count > 0 then
    put_field(R, name, count > 1 and fmt('%d', count) or nil)
    return false
  end
  if c.stands == 'P' then R.sum = R.sum - c.scount end
  return true
end

local function leave_queue(R, id)
  redis.call('ZREM', R.waiting, id)
  redis.call('ZREM', R.places, id)
  R.nw, R.dirty = math.max(0, R.nw - 1), true
end

-- Ends a live claim now; the lock itself is dealt with in `close`.
local function finish(R, id, how)
  local c = find(R, id)
  if not c then return false end
  if c.state == 'W' then
    leave_queue(R, id)
  else
    if let_go(R, id, c) then
      R.how, R.at = c.broken == '1' and 'B' or how, NOW
      if R.how == 'R' then
        R.last_whose = write_whose(id, c.term)
        put_field(R, 'l', R.last_whose)
      end
    end
    if R.nh > 0 then trim(R) end
  end
  forget(R, id)
  R.used = NOW
  bury(R, id, how, NOW + c.term)
  return true
end

local function stands_before(a, b)
  if a.order ~= b.order then return a.order < b.order end
  if a.since ~= b.since then return a.since < b.since end
  return a.entered < b.entered
end

-- All that hold, with the end of each, in the order of their grants.
local function holders(R)
  local list = {}
  if R.xh ~= NONE then
    for _, e in ipairs(R.x) do list[#list + 1] = { e[1], e[2], find(R, e[1]) } end
  elseif R.nh > 0 then
    local all = redis.call('ZRANGE', R.held, 0, -1, 'WITHSCORES')
    for i = 1, #all, 2 do
      local c = find(R, all[i])
      if c then list[#list + 1] = { all[i], tonumber(all[i + 1]), c } end
    end
    table.sort(list, function(a, b) return stands_before(a[3], b[3]) end)
  end
  return list
end

-- The grants of one holder, in their order.
local function grants_of(R, holder)
  local list = {}
  if R.xh == holder then
    for _, e in ipairs(R.x) do list[#list + 1] = find(R, e[1]) end
  elseif R.nh > 0 and R.xh == NONE then
    for _, id in ipairs(held_by(R, holder)) do list[#list + 1] = find(R, id) end
    table.sort(list, stands_before)
  end
  return list
end

local function covers(outer, c)
  if outer.broken == '1' or outer.state ~= 'H' then return false end
  if outer.stands == 'X' then return c.mode ~= 'P' end
  if outer.stands == 'S' then return c.mode == 'S' end
  local _, commas = string.gsub(outer.slots, ',', ',')
  return c.mode == 'P' and c.count <= outer.scount and outer.slots ~= NONE and commas + 1 >= c.count
end

-- The grant that a claim re-enters.
local function outer_of(R, c)
  for _, outer in ipairs(grants_of(R, c.holder)) do
    if covers(outer, c) then return outer end
  end
end

local function reenter(R, id, c, outer)
  if c.state == 'W' then leave_queue(R, id) end
  local slots = {}
  if c.mode == 'P' then
    for n in string.gmatch(outer.slots, '%d+') do
      if #slots < c.count then slots[#slots + 1] = n end
    end
  end
  c.slots = #slots > 0 and table.concat(slots, ',') or NONE
  c.state, c.order, c.stands, c.scount = 'H', outer.order, outer.stands, outer.scount
  c.token, c.since, c.prev, c.broken = outer.token, NOW, outer.prev, '0'
  if outer.chan == CONFIRMED then c.chan = CONFIRMED end
  hold(R, id, c, NOW + c.term, true)
  put(R, id, c)
end

-- ---- what has run out -----------------------------------------------------------------------

local function expire_places(R)
  local dead = redis.call('ZRANGEBYSCORE', R.places, '-inf', NOW, 'WITHSCORES', 'LIMIT', 0,
    EXPIRE_MAX)
  for i = 1, #dead, 2 do
    local id = dead[i]
    local c = find(R, id)
    leave_queue(R, id)
    if c then
      forget(R, id)
      bury(R, id, 'E', NOW + c.term)
      R.used = math.max(R.used, tonumber(dead[i + 1]))
    end
  end
end

local function expire_held(R)
  local dead = {}
  if R.xh ~= NONE then
    for _, e in ipairs(R.x) do
      if e[2] <= NOW then dead[#dead + 1] = e end
    end
    table.sort(dead, function(a, b) return a[2] < b[2] end)
  else
    local all = redis.call('ZRANGEBYSCORE', R.held, '-inf', NOW, 'WITHSCORES', 'LIMIT', 0,
      EXPIRE_MAX)
    for i = 1, #all, 2 do dead[#dead + 1] = { all[i], tonumber(all[i + 1]) } end
  end
  if #dead == 0 then return end
  for _, e in ipairs(dead) do
    local id, till, c = e[1], e[2], find(R, e[1])
    if c then
      local how = c.broken == '1' and 'B' or 'E'
      if let_go(R, id, c) then R.how, R.at = how, till end
      forget(R, id)
      bury(R, id, how, NOW + c.term)
    else
      redis.call('ZREM', R.held, id)
      R.nh, R.dirty = R.nh - 1, true
    end
    R.used = math.max(R.used, till)
  end
  if R.nh > 0 and R.own ~= NONE then trim(R) end
end

-- The lock was taken from under its holders: evicted, flushed, forced open, or failed over.
local function evict(R)
  for _, h in ipairs(holders(R)) do
    let_go(R, h[1], h[3])
    forget(R, h[1])
    bury(R, h[1], 'V', NOW + h[3].term)
    R.how, R.at, R.used = 'V', NOW, NOW
  end
  redis.call('DEL', R.held)
  R.nh, R.sum, R.x, R.xh, R.lost = 0, 0, {}, NONE, false
end

local function expire(R)
  if R.nw > 0 then expire_places(R) end
  if R.nh > 0 then expire_held(R) end
  if R.lost then evict(R) end
end

-- ---- admission ------------------------------------------------------------------------------

-- Above every token that grants had here.
local function next_token(R)
  local old = redis.call('GET', R.counter)
  local token = math.max((tonumber(old or 0) or 0) + 1, R.last + 1, NOW)
  return token <= TOKEN_MAX and token or nil
end

-- The next token, written before anything that tells of it.
local function mint(R)
  if R.spare then
    local spare = R.spare
    R.spare = nil
    return spare
  end
  local token = next_token(R)
  if not token then return nil end
  redis.call('SET', R.counter, fmt('%.0f', token))
  R.last, R.dirty = token, true
  return token
end

local function held_back(R, after)
  if R.how == NONE or R.how == 'R' then return 0 end
  return math.max(0, R.at + after - NOW)
end

local function fits(R, mode, count)
  if R.xh ~= NONE then return false end
  if mode == 'X' then return R.nh == 0 end
  if mode == 'S' then return true end
  return R.sum + count <= R.limit
end

-- Makes a grant of a claim that fits. One that another's step makes is told first; false if
-- nobody hears of it.
local function grant(R, id, c, is_caller)
  local token = mint(R)
  if not token then return false end
  local slots = c.mode == 'P' and (c.wanted or free_slots(R, c.count)) or NONE
  local prev = R.how == NONE and 'F' or R.how
  local term = is_caller and c.term or math.min(c.term, FIRST_TERM)
  if not is_caller then
    local heard = redis.pcall(PUBLISH, c.chan,
      fmt('g %s %.0f %.0f %.0f %s %s', id, c.order, token, term, prev, slots))
    if type(heard) ~= 'number' or heard == 0 then
      R.spare = token
      return false
    end
  end
  if c.state == 'W' then leave_queue(R, id) end
  c.state, c.token, c.since, c.prev, c.broken = 'H', token, NOW, prev, '0'
  c.slots, c.stands, c.scount = slots, c.mode, c.count
  if R.nh == 0 then
    if is_caller then R.streak, R.since = 0, NOW else R.streak = R.streak + 1 end
  end
  hold(R, id, c, NOW + term, false)
  put(R, id, c)
  return true
end

local function nudge(id, c)
  redis.pcall(PUBLISH, c.chan, 'n ' .. id)
end

-- A claim whose term is too short for a grant by another's step is told to look, once, and the
-- lock is kept for it as long as that grant would have lasted. Whether it is kept now.
local function keeps_for(R, id, c)
  if c.since == 0 then
    nudge(id, c)
    c.since = NOW
    put(R, id, c)
  end
  return NOW - c.since < c.term
end

-- A waiting claim has said that it lives, and where it is to be told.
local function heard_of(R, id, c, chan)
  local is_elsewhere = chan ~= NONE and chan ~= c.chan
  if is_elsewhere or c.since > 0 then
    c.since = 0
    if is_elsewhere then c.chan = chan end
    put(R, id, c)
  end
end

-- Grants all that wait and now fit, in their order. `blocked` says that nobody after them may
-- pass. A waiter of whom nothing is heard is skipped and keeps its place.
local function admit(R, caller)
  R.blocked = false
  if R.nw == 0 then return end
  if caller and R.nh > 0 then
    local c = find(R, caller)
    local outer = c and c.state == 'W' and outer_of(R, c)
    if outer then reenter(R, caller, c, outer) end
  end
  if R.foreign or R.door > NOW or R.xh ~= NONE then
    R.blocked = true
    return
  end
  local told, skipped = 0, 0
  while true do
    local ids = redis.call('ZRANGE', R.waiting, skipped, skipped + 15)
    if #ids == 0 then
      if skipped == 0 and R.nw > 0 then R.nw, R.dirty = 0, true end -- the queue was evicted
      return
    end
    for _, id in ipairs(ids) do
      local c = find(R, id)
      if not c then
        leave_queue(R, id)
      else
        if not fits(R, c.mode, c.count) or told >= STEP_MAX or skipped >= SKIP_MAX
          or held_back(R, c.after) > 0 then
          R.blocked = true
          return
        end
        local is_pushed = id ~= caller and c.term >= PUSH_MIN
        if id ~= caller and not is_pushed and keeps_for(R, id, c) then
          R.blocked = true
          return
        end
        if (is_pushed or id == caller) and grant(R, id, c, not is_pushed) then
          if is_pushed then told = told + 1 end
        else
          skipped = skipped + 1
        end
      end
    end
  end
end

local function settle(R, caller)
  expire(R)
  admit(R, caller)
end

-- ---- answers --------------------------------------------------------------------------------

-- Label, held for, token of whoever is in the way, and in how long that ends by itself.
local function in_the_way(R, after)
  if R.nh > 64 and R.xh == NONE then
    -- Of many one is named: the one whose term ends first.
    local next_out = redis.call('ZRANGE', R.held, 0, 0, 'WITHSCORES')
    local c = next_out[1] and find(R, next_out[1])
    if c then return c.label, NOW - c.since, c.token, math.max(0, next_out[2] - NOW) end
  end
  if R.nh > 0 then
    local list = holders(R)
    local first, ends = list[1], nil
    for _, h in ipairs(list) do ends = math.min(ends or h[2], h[2]) end
    if first then
      return first[3].label, NOW - first[3].since, first[3].token, ends - NOW
    end
  end
  if R.foreign then
    local label, ttl = '', redis.call('PTTL', R.lock)
    if LAYOUT == 'r' and not R.alien then
      label = redis.call('HKEYS', R.lock)[1] or ''
    elseif not R.alien then
      label = redis.call('GET', R.lock) or ''
    end
    return label, -1, 0, ttl < 0 and -1 or ttl * 1000 + 1000
  end
  if R.door > NOW then return nil, -1, 0, R.door - NOW end
  local back = held_back(R, after)
  return nil, -1, 0, back > 0 and back or -1
end

local function granted(R, id, c, till)
  return { 'granted', c.token, till - NOW, c.slots, c.prev, c.chan == CONFIRMED and 1 or 0 }
end

local function end_of(R, id, c)
  if c.stands == 'X' then
    for _, e in ipairs(R.x) do
      if e[1] == id then return e[2] end
    end
    return NOW
  end
  return tonumber(redis.call('ZSCORE', R.held, id) or NOW)
end

local function queued(R, id, c)
  local rank = redis.call('ZRANK', R.waiting, id)
  if not rank then
    -- The queue was evicted: its place is lost.
    redis.call('ZREM', R.places, id)
    R.nw = math.max(0, R.nw - 1)
    forget(R, id)
    entomb(R, id, 'V', NOW + c.term)
    return { 'gone', 'V' }
  end
  local label, held_for, token, left = in_the_way(R, c.after)
  -- Whoever is first listens for the foreign client that holds.
  local listens = (R.foreign and rank == 0) and 1 or 0
  return { 'waiting', c.order, R.nh + rank + (R.foreign and 1 or 0), left, rank, listens,
    label and 1 or 0, label or '', held_for, token }
end

local function busy(R, after)
  local label, held_for, token, left = in_the_way(R, after)
  return { 'busy', left, label and 1 or 0, label or '', held_for, token }
end

local function answer(R, id, c)
  if c.state == 'W' then return queued(R, id, c) end
  if c.broken == '1' then return { 'gone', 'B' } end
  return granted(R, id, c, end_of(R, id, c))
end

local function with_time(told)
  table.insert(told, 1, NOW)
  return told
end
