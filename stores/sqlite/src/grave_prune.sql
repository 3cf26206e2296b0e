DELETE FROM grave WHERE until <= ?1
