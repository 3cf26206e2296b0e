SELECT ord, sub, claim, holder, label, mode, count, slot_limit, stands, stands_count, entered, term,
       life, after_loss, live, byte, pid, pid_ns, ticket, token, slots, until, since, previous,
       broken
  FROM claim WHERE claim = ?2 AND resource = ?1
