-- What stands on a name ($1), at one moment. Spans are microseconds.
WITH at AS MATERIALIZED (SELECT clock_timestamp() AS now),
r AS (SELECT * FROM public.leasehold_resource WHERE name = $1),
c AS (
  SELECT name AS resource, h_ord AS ord, 0 AS sub, h_claim AS claim, h_holder AS holder,
         h_label AS label, 'exclusive' AS mode, 0 AS count, 0 AS slot_limit, h_entered AS entered,
         h_life AS life, 0 AS ticket, h_until AS until, token, NULL::integer[] AS slots,
         h_since AS since, h_broken AS broken
    FROM r WHERE h_claim IS NOT NULL
  UNION ALL
  SELECT resource, ord, sub, claim, holder, label, mode, count, slot_limit, entered, life, ticket,
         until, token, slots, since, broken
    FROM public.leasehold_claim WHERE resource = $1
)
SELECT jsonb_build_object(
  'token', nullif(r.token, 0),
  'end_how', r.end_how,
  'end_ago', public.leasehold_us(at.now - r.end_at),
  'claims', (SELECT coalesce(jsonb_agg(jsonb_build_object(
      'claim', replace(c.claim::text, '-', ''), 'holder', replace(c.holder::text, '-', ''),
      'label', c.label, 'mode', c.mode, 'count', c.count, 'limit', c.slot_limit, 'life', c.life,
      'ord', c.ord, 'ticket', c.ticket, 'token', c.token,
      'slots', coalesce(to_jsonb(c.slots), '[]'), 'broken', c.broken,
      'entered_ago', public.leasehold_us(at.now - c.entered),
      'held_for', public.leasehold_us(at.now - c.since),
      'left', public.leasehold_us(c.until - at.now)) ORDER BY c.token IS NULL, c.ord, c.sub), '[]')
    FROM c))::text
  FROM r, at
