UPDATE leasehold_resource SET
  used = CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS UNSIGNED),
  past = CONCAT(RIGHT(past, 744), {claim}, UNHEX(LPAD(HEX(used + h_term), 16, '0'))),
  end_how = 'released', end_at = used,
  h_claim = NULL, h_holder = NULL, h_label = NULL, h_ord = NULL, h_entered = NULL,
  h_since = NULL, h_term = NULL, h_life = NULL, h_previous = NULL, h_broken = NULL,
  h_span = NULL, h_until = NULL
WHERE name = {name} AND h_claim = {claim} AND queued = 0 AND h_broken = 0
  AND h_until > CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS UNSIGNED);
