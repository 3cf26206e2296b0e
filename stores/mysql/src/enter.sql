UPDATE leasehold_resource SET
  token = LAST_INSERT_ID(GREATEST(token + 1, token_floor + 1,
    CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS UNSIGNED))),
  ord = ord + 1,
  used = CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS UNSIGNED),
  h_claim = {claim}, h_holder = {holder}, h_label = {label}, h_ord = ord,
  h_entered = used, h_since = used, h_term = {term}, h_life = {life}, h_previous = end_how,
  h_broken = 0, h_span = {term},
  h_until = CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS UNSIGNED) + {term}
WHERE name = {name} AND h_claim IS NULL AND queued = 0 AND end_how = 'released'
  AND token < 9007199254740991 AND LOCATE({claim}, past) = 0
  AND buried_until <= CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS UNSIGNED);
SELECT h_claim, h_holder, h_label, token, h_since, h_span, h_until,
  CASE WHEN queued = 0 THEN h_until ELSE LEAST(h_until, COALESCE((SELECT MIN(until)
    FROM leasehold_claim WHERE resource = {name} AND token IS NOT NULL
    AND until > CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS UNSIGNED)), h_until)) END,
  h_broken,
  LOCATE({claim}, past) > 0 OR buried_until > CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS UNSIGNED),
  CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS UNSIGNED)
FROM leasehold_resource WHERE name = {name};
