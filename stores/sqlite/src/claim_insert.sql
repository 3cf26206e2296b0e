INSERT INTO claim (resource, ord, sub, claim, holder, label, mode, count, slot_limit, stands, stands_count, entered, term,
       life, after_loss, live, byte, pid, pid_ns, ticket, token, slots, until, since, previous,
       broken)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19,
       ?20, ?21, ?22, ?23, ?24, ?25, ?26)
