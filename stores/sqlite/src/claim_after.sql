SELECT ord, sub, claim, holder, label, mode, count, slot_limit, stands, stands_count, entered, term,
       life, after_loss, live, byte, pid, pid_ns, ticket, token, slots, until, since, previous,
       broken
  FROM claim WHERE resource = ?1 AND (ord, sub) > (?2, ?3) ORDER BY ord, sub
