SELECT resource, value, token, until, CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS UNSIGNED)
FROM leasehold_record WHERE resource = {name};
