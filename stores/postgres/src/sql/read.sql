-- The record of a name ($1): value, token, and for how many microseconds it is kept.
SELECT value, token, public.leasehold_us(until - clock_timestamp())
  FROM public.leasehold_record WHERE resource = $1 AND until > clock_timestamp()
