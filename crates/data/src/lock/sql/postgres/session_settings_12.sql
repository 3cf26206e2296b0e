SET tcp_user_timeout = :term;
