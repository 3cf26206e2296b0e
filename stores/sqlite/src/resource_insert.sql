INSERT INTO resource (name, token, ord, queued, used_at, used_us, end_how, end_at, buried_until,
       past, h_claim, h_holder, h_label, h_ord, h_entered, h_since, h_until, h_term, h_life,
       h_previous, h_broken, h_live, h_byte, h_pid, h_pid_ns)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19,
       ?20, ?21, ?22, ?23, ?24, ?25)
