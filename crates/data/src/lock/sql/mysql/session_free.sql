-- :name: as in session_take.sql. 1 if this session had it, and it is free now.
SELECT RELEASE_LOCK(':name');
