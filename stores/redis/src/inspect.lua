-- What stands on a resource. Changes nothing: what has run out is left out by the reader.
local foreign = { 'none', '', -1 }
local kind = redis.call('TYPE', KEYS[1])['ok']
foreign[1] = kind
if kind == 'hash' then
  foreign[2] = redis.call('HKEYS', KEYS[1])[1] or ''
elseif kind == 'string' then
  foreign[2] = redis.call('GET', KEYS[1])
end
foreign[3] = redis.call('PTTL', KEYS[1])
local plain = redis.call('MGET', KEYS[3])[1]
return {
  NOW, redis.pcall('GET', KEYS[2]) or '',
  plain and { 'm', plain } or redis.call('HGETALL', KEYS[3]),
  redis.call('ZRANGE', KEYS[5], 0, -1, 'WITHSCORES'),
  redis.call('ZRANGE', KEYS[6], 0, -1, 'WITHSCORES'), foreign,
}
