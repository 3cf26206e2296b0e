-- Lets an access to what is kept in this Redis begin, or refuses it as stale.
-- KEYS[1]: the marks. ARGV[1..4]: `x` or `s`, epoch, token, and `raise` or `demand`.
-- What follows this file is run if the access passes.
local EXCLUSIVE, EPOCH, TOKEN = ARGV[1] == 'x', tonumber(ARGV[2]), tonumber(ARGV[3])

local function is_older(epoch, token, than)
  return epoch < than[1] or epoch == than[1] and token < than[2]
end

local marks = {}
for _, access in ipairs({ 'x', 's' }) do
  local text = redis.pcall('HGET', KEYS[1], access)
  if text then
    local epoch, token
    if type(text) == 'string' then epoch, token = string.match(text, '^(%d+):(%d+)$') end
    if not epoch then return { 'corrupt' } end
    marks[access] = { tonumber(epoch), tonumber(token), text }
  end
end
for _, access in ipairs(EXCLUSIVE and { 'x', 's' } or { 'x' }) do
  local newest = marks[access]
  if newest and is_older(EPOCH, TOKEN, newest) then
    local other = marks[access == 'x' and 's' or 'x']
    if EXCLUSIVE and other and is_older(newest[1], newest[2], other) then newest = other end
    return { 'stale ' .. newest[3] }
  end
end
local own = marks[ARGV[1]]
if not own or is_older(own[1], own[2], { EPOCH, TOKEN }) then
  if ARGV[4] == 'demand' then return { 'not entered' } end
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. ':' .. ARGV[3])
end
