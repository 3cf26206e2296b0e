SELECT id, token, ord, queued, used_at, used_us, end_how, end_at, buried_until, past,
       h_claim, h_holder, h_label, h_ord, h_entered, h_since, h_until, h_term, h_life,
       h_previous, h_broken, h_live, h_byte, h_pid, h_pid_ns
  FROM resource WHERE name = ?1
