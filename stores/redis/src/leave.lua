-- Ends a claim in whatever state it is, and hands over.
-- ARGV[4..]: claim, term, 1 if some enter of it is unanswered.

-- A write that needs no memory comes first: what follows is then not refused for lack of it.
redis.call('PERSIST', KEYS[3])

-- Whether a client that is not ours waits for word that the lock is free.
local function foreign_waits(R)
  local ask = PUBLISH == 'SPUBLISH' and 'SHARDNUMSUB' or 'NUMSUB'
  local told = redis.pcall('PUBSUB', ask, R.channel)
  return type(told) == 'table' and not told.err and tonumber(told[2] or 0) > 0
end

-- After enough hand-overs among ours the lock is freed and announced, and ours keep out a while.
local function give_way(R)
  if LAYOUT ~= 'r' or R.nh > 0 or R.nw == 0 or R.own == NONE then return end
  if R.streak < STREAK_MAX and NOW - R.since < STREAK_US then return end
  R.streak, R.since, R.dirty = 0, NOW, true
  if not foreign_waits(R) then return end
  R.door = NOW + DOOR
  local head = redis.call('ZRANGE', R.waiting, 0, 0)[1]
  local c = head and find(R, head)
  if c then nudge(head, c) end
end

-- The state was evicted and the lock was not: it bears the claim's own mark.
local function is_marked(R, id)
  if not R.foreign or R.alien then return false end
  local owner = owner_of(id)
  if LAYOUT == 'p' then return redis.call('GET', R.lock) == owner end
  return redis.call('HEXISTS', R.lock, owner) == 1
end

local id, term, unanswered = ARGV[4], tonumber(ARGV[5]), ARGV[6] == '1'
local R, no = open(1)
if no then return no end
expire(R)
local c = find(R, id)
local told
if c then
  finish(R, id, 'R')
  if unanswered then entomb(R, id, 'R', NOW + c.term) end
  give_way(R)
  admit(R)
  told = { NOW, 'released' }
else
  if is_marked(R, id) then
    redis.call('DEL', R.lock)
    if LAYOUT == 'r' then redis.pcall(PUBLISH, R.channel, '0') end
    R.foreign = false
    entomb(R, id, 'V', NOW + term)
  end
  admit(R)
  local how, till = grave(R, id)
  if unanswered then entomb(R, id, how or 'R', math.max(till or 0, NOW + term)) end
  told = { NOW, 'gone', how or 'U' }
end
close(R)
return told
