-- Which of these claims ($2) on these names ($1) have been granted.
SELECT replace(h_claim::text, '-', '') FROM public.leasehold_resource
 WHERE name = ANY ($1) AND h_claim = ANY ($2::text[]::uuid[])
UNION ALL
SELECT replace(claim::text, '-', '') FROM public.leasehold_claim
 WHERE claim = ANY ($2::text[]::uuid[]) AND token IS NOT NULL
