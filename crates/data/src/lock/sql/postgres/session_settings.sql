-- :term, :seconds: the term, in milliseconds and in whole seconds. A client that is silent for a
-- term, idle or gone, loses its session, and never sooner. What a server does not know yet is left
-- out: see session_settings_12.sql and _14.sql.
SET statement_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET tcp_keepalives_idle = :seconds;
SET tcp_keepalives_interval = 1;
SET tcp_keepalives_count = 3;
