SELECT value, record.token, until
  FROM record JOIN resource ON resource.id = record.resource
 WHERE resource.name = ?1 AND until > ?2
