INSERT INTO leasehold_grave (resource, claim, how, until) VALUES ({name}, {claim}, {how}, {until})
  ON DUPLICATE KEY UPDATE how = VALUES(how), until = GREATEST(until, VALUES(until));
