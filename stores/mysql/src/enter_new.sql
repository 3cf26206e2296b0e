INSERT INTO leasehold_resource (name, token, token_floor, ord, queued, used, buried_until, past,
  h_claim, h_holder, h_label, h_ord, h_entered, h_since, h_term, h_life, h_previous, h_broken,
  h_span, h_until)
SELECT {name}, LAST_INSERT_ID(GREATEST(m.token_floor + 1, t.now)), m.token_floor, t.now, 0, t.now, 0, x'',
  {claim}, {holder}, {label}, t.now, t.now, t.now, {term}, {life}, 'first', 0,
  {term}, t.now + {term}
FROM leasehold_meta m,
  (SELECT CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS UNSIGNED) AS now) t
WHERE m.one = 1 AND m.token_floor < 9007199254740991
  AND NOT EXISTS (SELECT 1 FROM leasehold_grave WHERE resource = {name} AND until > t.now)
LOCK IN SHARE MODE;
