-- Who answers: asked before anything is set, as a pooler would give the settings to others.
SELECT pg_backend_pid()::int8, current_setting('server_version_num')::int8,
  pg_is_in_recovery()::int::int8;
