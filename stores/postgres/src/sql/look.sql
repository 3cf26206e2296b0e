-- What a server is and whether its tables are there: $1 is the schema, $2 the procedure with its types.
SELECT current_setting('server_version_num')::int4,
       pg_is_in_recovery(),
       current_setting('transaction_read_only') = 'on',
       CASE WHEN NOT pg_is_in_recovery()
            THEN left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) END,
       inet_client_port(),
       (SELECT array_agg(c.relname || '.' || a.attname || ' ' || format_type(a.atttypid, a.atttypmod))
          FROM pg_attribute a
          JOIN pg_class c ON c.oid = a.attrelid
          JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE n.nspname = $1 AND c.relname LIKE 'leasehold\_%' AND c.relkind IN ('r', 'p')
           AND a.attnum > 0 AND NOT a.attisdropped),
       to_regprocedure($2) IS NOT NULL
