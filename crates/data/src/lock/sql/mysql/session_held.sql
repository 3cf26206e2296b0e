-- :name: as in session_take.sql. 1 if this session has it.
SELECT IS_USED_LOCK(':name') <=> CONNECTION_ID();
