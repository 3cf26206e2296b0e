SET idle_session_timeout = :term;
