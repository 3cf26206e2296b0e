INSERT INTO leasehold_resource (name, token, token_floor, ord, queued, used, buried_until, past)
SELECT {name}, 0, m.token_floor, t.now, 0, t.now,
  (SELECT COALESCE(MAX(until), 0) FROM leasehold_grave WHERE resource = {name}), x''
FROM leasehold_meta m,
  (SELECT CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS UNSIGNED) AS now) t
WHERE m.one = 1
LOCK IN SHARE MODE;
