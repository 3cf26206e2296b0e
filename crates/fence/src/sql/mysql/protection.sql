-- Refuses writes to a table by whoever shows no fencing token, or one that a newer holder has passed.
-- Read it, then run it by the mysql or mariadb client in the table's database, as whoever may make
-- triggers; running it again is harmless, but stop the writers: between its statements there is no
-- trigger. TRUNCATE fires none.
-- A writer that nobody can edit gets its token from outside, for all of its session, as by
--   --init-command="SET @leasehold_mark = '42'"
-- and one that can be edited sets it before it writes, and to NULL before COMMIT: a pooled session
-- would keep it for whoever comes next.

{create_table}
DROP PROCEDURE IF EXISTS leasehold_refuse_stale;

DELIMITER //
-- Once a row, before it. With the rights of its definer, so that writers need none on leasehold_fence.
CREATE PROCEDURE leasehold_refuse_stale(IN guarded VARCHAR(512) CHARACTER SET utf8mb4)
MODIFIES SQL DATA
BEGIN
    DECLARE my_epoch, my_token, old_epoch, old_token, read_epoch, read_token BIGINT;
    DECLARE told VARCHAR(128) CHARACTER SET utf8mb4;
    IF @leasehold_mark IS NULL THEN
        SET told = LEFT(CONCAT(guarded, ' takes no write without a fencing token in @leasehold_mark'), 128);
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = told;
    END IF;
    IF @leasehold_mark NOT REGEXP '^([0-9]{1,10}:)?[0-9]{1,16}$' THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT =
            '@leasehold_mark holds no fencing token: want N or EPOCH:N, as text';
    END IF;
    SET my_epoch = IF(LOCATE(':', @leasehold_mark) > 0, SUBSTRING_INDEX(@leasehold_mark, ':', 1), 0);
    SET my_token = SUBSTRING_INDEX(@leasehold_mark, ':', -1);
    -- Makes sure of the row and holds it to COMMIT, so that what is read next stays so.
    INSERT INTO leasehold_fence (resource, slot) VALUES (guarded, -1)
    ON DUPLICATE KEY UPDATE slot = slot;
    SELECT exclusive_epoch, exclusive_token, shared_epoch, shared_token
    INTO old_epoch, old_token, read_epoch, read_token
    FROM leasehold_fence WHERE resource = guarded AND slot = -1 FOR UPDATE;
    IF read_token IS NOT NULL
        AND (old_token IS NULL OR (read_epoch, read_token) > (old_epoch, old_token)) THEN
        SET old_epoch = read_epoch, old_token = read_token;
    END IF;
    IF old_token IS NOT NULL AND (my_epoch, my_token) < (old_epoch, old_token) THEN
        SET told = CONCAT('stale token ', @leasehold_mark, ' refused: a holder with token ',
            IF(old_epoch = 0, '', CONCAT(old_epoch, ':')), old_token, ' has been here');
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = told;
    END IF;
    UPDATE leasehold_fence
    SET entries = entries + 1, exclusive_epoch = my_epoch, exclusive_token = my_token
    WHERE resource = guarded AND slot = -1
        AND NOT (exclusive_epoch <=> my_epoch AND exclusive_token <=> my_token);
END//
DELIMITER ;

DROP TRIGGER IF EXISTS {insert};
CREATE TRIGGER {insert} BEFORE INSERT ON {table}
FOR EACH ROW CALL leasehold_refuse_stale('{resource}');
DROP TRIGGER IF EXISTS {update};
CREATE TRIGGER {update} BEFORE UPDATE ON {table}
FOR EACH ROW CALL leasehold_refuse_stale('{resource}');
DROP TRIGGER IF EXISTS {delete};
CREATE TRIGGER {delete} BEFORE DELETE ON {table}
FOR EACH ROW CALL leasehold_refuse_stale('{resource}');
