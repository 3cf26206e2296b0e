-- :name: what the lock's name became; :seconds: how long to wait for it. 1 if it is locked now, to
-- the end of the session; 0 if another has it.
SELECT GET_LOCK(':name', :seconds);
