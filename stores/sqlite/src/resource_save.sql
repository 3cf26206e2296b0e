UPDATE resource
   SET token = ?2, ord = ?3, queued = ?4, used_at = ?5, used_us = ?6, end_how = ?7, end_at = ?8,
       buried_until = ?9, past = ?10, h_claim = ?11, h_holder = ?12, h_label = ?13, h_ord = ?14,
       h_entered = ?15, h_since = ?16, h_until = ?17, h_term = ?18, h_life = ?19,
       h_previous = ?20, h_broken = ?21, h_live = ?22, h_byte = ?23, h_pid = ?24, h_pid_ns = ?25
 WHERE id = ?1
