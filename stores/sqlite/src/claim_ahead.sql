SELECT count(*) FROM claim WHERE resource = ?1 AND ord < ?2
