-- An operator's force: marks the grants of a resource as broken, or ends them now.
-- ARGV[4..]: expected token or 0, 1 to end them at once.

-- A write that needs no memory comes first: what follows is then not refused for lack of it.
redis.call('PERSIST', KEYS[3])

local expect, at_once = tonumber(ARGV[4]), ARGV[5] == '1'
local R, no = open(1)
if no then return no end
settle(R)
local marked, held = {}, {}
for _, h in ipairs(holders(R)) do
  local id, c = h[1], h[3]
  if held[#held] ~= c.token then held[#held + 1] = c.token end
  if expect == 0 or expect == c.token then
    c.broken = '1'
    put(R, id, c)
    marked[#marked + 1] = { id, c.token }
  end
end
local told = { NOW, 'nothing' }
if #marked == 0 then
  for _, token in ipairs(held) do told[#told + 1] = token end
else
  told[2] = 'marked'
  for _, m in ipairs(marked) do
    if told[#told] ~= m[2] then told[#told + 1] = m[2] end
    if at_once then
      finish(R, m[1], 'B')
      admit(R)
    end
  end
end
close(R)
return told
