-- Claims a resource.
-- ARGV[4..]: claim, mode, term, `COUNT LIMIT TERM LIFE PLACE AFTER_LOSS` (place 0 for none),
-- `HOLDER WAKE_CHANNEL`, label; at one of several servers also the slots that are wanted and the
-- token to grant with, or - for any.

local id, mode = ARGV[4], ARGV[5]
local count, limit, term, life, place, after =
  match(ARGV[7], '^(%d+) (%d+) (%d+) (%a) (%d+) (%d+)$')
count, limit, term = tonumber(count), tonumber(limit), tonumber(term)
place, after = tonumber(place), tonumber(after)
local holder, chan = match(ARGV[8], '^(%x+) (%S+)$')
local kind = mode == 'P' and 'P' or 'L'
local wanted, token = ARGV[10], tonumber(ARGV[11] or NONE)
if wanted == NONE then wanted = nil end

local function is_free(R, slots)
  local s = field(R, 's') or ''
  for n in string.gmatch(slots, '%d+') do
    local used = string.sub(s, tonumber(n) + 1, tonumber(n) + 1)
    if used ~= '' and used ~= '0' then return false end
  end
  return true
end

-- Whether a grant with the token that is wanted comes after all grants before it.
local function is_newest(R)
  return math.max(tonumber(redis.call('GET', R.counter) or 0) or 0, R.last) <= token
end

local function refusal(R, grants)
  if R.alien then return { NOW, 'alien', R.alien } end
  if R.nh + R.nw > 0 and (kind ~= R.kind or (kind == 'P' and limit ~= R.limit)) then
    return { NOW, 'kind', R.kind, R.limit }
  end
  if mode == 'X' then
    for _, c in ipairs(grants) do
      if c.stands == 'S' then return { NOW, 'upgrade' } end
    end
  end
  if R.nh + R.nw >= QUEUE_MAX then return { NOW, 'full' } end
end

local function decide(R)
  local how = grave(R, id)
  if how then return { NOW, 'gone', how } end
  local there = find(R, id)
  if there then
    local told = answer(R, id, there)
    if told[1] == 'waiting' then heard_of(R, id, there, chan) end
    return with_time(told)
  end
  local grants = grants_of(R, holder)
  local no = refusal(R, grants)
  if no then return no end
  local c = {
    state = 'N', order = math.max(R.serial + 1, NOW), mode = mode, count = count, limit = limit,
    term = term, life = life, place = place, after = after, entered = NOW, holder = holder,
    chan = chan, token = 0, since = 0, prev = NONE, broken = '0', slots = NONE, stands = mode,
    scount = count, label = ARGV[9], wanted = wanted,
  }
  local is_idle = R.nh + R.nw == 0
  if is_idle then R.kind, R.limit, R.sum = kind, limit, 0 end
  local outer = outer_of(R, c)
  local can = not outer and not R.blocked and not R.foreign and R.door <= NOW
    and fits(R, mode, count) and held_back(R, after) == 0
    and (is_idle or not wanted or is_free(R, wanted)) and (not token or is_newest(R))
  if not outer and not can and place == 0 then return with_time(busy(R, after)) end
  if is_idle and kind == 'P' then put_field(R, 's', string.rep('0', limit)) end
  R.used, R.dirty, R.serial = NOW, true, c.order
  if outer then
    reenter(R, id, c, outer)
  elseif can then
    if token then
      redis.call('SET', R.counter, fmt('%.0f', token))
      R.last, R.spare = token, token
    elseif chan == PROPOSED then
      R.spare = next_token(R)
    end
    if not grant(R, id, c, true) then return { NOW, 'exhausted' } end
  else
    c.state = 'W'
    redis.call('ZADD', R.waiting, c.order, id)
    redis.call('ZADD', R.places, NOW + place, id)
    R.nw = R.nw + 1
    put(R, id, c)
  end
  return with_time(answer(R, id, c))
end

local R, no = open(1)
if no then return no end
settle(R, id)
local told = decide(R)
close(R)
return told
