SELECT how FROM grave WHERE claim = ?1 AND until > ?2
