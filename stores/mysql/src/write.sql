INSERT INTO leasehold_record (resource, value, token, until) VALUES ({name}, {value}, {token}, {until})
  ON DUPLICATE KEY UPDATE value = VALUES(value), token = VALUES(token), until = VALUES(until);
