UPDATE meta SET token_end = max(token_end, ?1) + 3600000000
