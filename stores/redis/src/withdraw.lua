-- Takes back a grant of one of several servers that no majority has joined, as if it had never
-- been made. ARGV[4..]: claim, 1 if also one that has the token of a majority that never was.
redis.call('PERSIST', KEYS[3])
local id = ARGV[4]
local R, no = open(1)
if no then return no end
expire(R)
local c = find(R, id)
if c and c.state == 'H' and (c.chan ~= CONFIRMED or ARGV[5] == '1') then
  let_go(R, id, c)
  if R.nh > 0 then trim(R) end
  forget(R, id)
end
admit(R)
close(R)
return { NOW, 'withdrawn' }
