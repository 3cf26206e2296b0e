-- Keeps a small record with a resource, guarded by a grant.
-- KEYS[8]: the record. ARGV[4..]: claim, for how long in us, value.
local id, keep = ARGV[4], tonumber(ARGV[5])
local R, no = open(1)
if no then return no end
settle(R)
local c = find(R, id)
local told
if not c or c.state ~= 'H' then
  told = { NOW, 'gone', grave(R, id) or 'U' }
elseif c.broken == '1' then
  told = { NOW, 'gone', 'B' }
else
  redis.call('DEL', KEYS[8])
  redis.call('HSET', KEYS[8], 'v', ARGV[6], 't', fmt('%.0f', c.token), 'u', fmt('%.0f', NOW + keep))
  redis.call('PEXPIREAT', KEYS[8], math.ceil((NOW + keep) / 1000))
  told = { NOW, 'stored' }
end
close(R)
return told
