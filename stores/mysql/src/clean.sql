UPDATE leasehold_meta SET token_floor = GREATEST(token_floor, {token}) WHERE one = 1;
DELETE FROM leasehold_record WHERE resource = {name};
DELETE FROM leasehold_resource WHERE name = {name};
