DELETE FROM claim WHERE resource = ?1 AND claim = ?2
