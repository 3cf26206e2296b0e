UPDATE meta SET token_floor = max(token_floor, ?1)
