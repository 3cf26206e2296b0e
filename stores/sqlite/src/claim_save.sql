UPDATE claim
   SET ord = ?3, sub = ?4, stands = ?5, stands_count = ?6, term = ?7, life = ?8, live = ?9,
       byte = ?10, pid = ?11, pid_ns = ?12, token = ?13, slots = ?14, until = ?15, since = ?16,
       previous = ?17, broken = ?18
 WHERE claim = ?2 AND resource = ?1
