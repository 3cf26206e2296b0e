-- Everything of a leasehold database. Times are nanoseconds of CLOCK_MONOTONIC of the boot named in
-- `meta`, spans are nanoseconds, columns ending in _us are microseconds since 1970.

CREATE TABLE meta (
  one          INTEGER PRIMARY KEY CHECK (one = 1),
  boot         BLOB    NOT NULL,  -- the boot id by which the times below are meant
  token_end    INTEGER NOT NULL,  -- every token ever issued is below; written with a full sync
  token_floor  INTEGER NOT NULL   -- every token still to come is at or above
) STRICT;

-- One row a name. A plain exclusive holder stands in the row itself (h_...), so that an
-- uncontended claim and its release each write one row of one page.
CREATE TABLE resource (
  id           INTEGER PRIMARY KEY,
  name         TEXT    NOT NULL UNIQUE,
  token        INTEGER NOT NULL,  -- the newest, 0 before the first; stays when nobody holds
  ord          INTEGER NOT NULL,  -- the last order number given
  queued       INTEGER NOT NULL,  -- how many rows of `claim` belong here
  used_at      INTEGER NOT NULL,
  used_us      INTEGER NOT NULL,
  end_how      TEXT,              -- how the last grant to end has ended
  end_at       INTEGER,
  buried_until INTEGER NOT NULL,  -- no row of `grave` that belongs here lasts longer
  past         BLOB    NOT NULL,  -- the claims released last: id (16), until (8, big end first)
  h_claim      BLOB,
  h_holder     BLOB,
  h_label      TEXT,
  h_ord        INTEGER,
  h_entered    INTEGER,
  h_since      INTEGER,
  h_until      INTEGER,
  h_term       INTEGER,
  h_life       TEXT,
  h_previous   TEXT,
  h_broken     INTEGER,
  h_live       INTEGER,
  h_byte       INTEGER,
  h_pid        INTEGER,
  h_pid_ns     INTEGER
) STRICT;

-- All other claims, in order. Those that hold come before those that wait (token is null).
CREATE TABLE claim (
  resource     INTEGER NOT NULL,
  ord          INTEGER NOT NULL,  -- the ticket, or the order of the grant that was re-entered
  sub          INTEGER NOT NULL,  -- 0, or the number of the re-entry
  claim        BLOB    NOT NULL UNIQUE,
  holder       BLOB    NOT NULL,
  label        TEXT    NOT NULL,
  mode         TEXT    NOT NULL,  -- exclusive, shared, permits
  count        INTEGER NOT NULL,  -- of permits, else 0
  slot_limit   INTEGER NOT NULL,  -- of permits, else 0
  stands       TEXT    NOT NULL,  -- the mode by which it is in the way of others
  stands_count INTEGER NOT NULL,
  entered      INTEGER NOT NULL,
  term         INTEGER NOT NULL,
  life         TEXT    NOT NULL,  -- process, term
  after_loss   INTEGER NOT NULL,
  live         INTEGER NOT NULL,  -- which liveness file
  byte         INTEGER NOT NULL,  -- which byte of it its process keeps locked
  pid          INTEGER NOT NULL,
  pid_ns       INTEGER NOT NULL,
  ticket       INTEGER NOT NULL,
  token        INTEGER,
  slots        BLOB,              -- one bit a slot, lowest first
  until        INTEGER,
  since        INTEGER,
  previous     TEXT,
  broken       INTEGER NOT NULL,
  PRIMARY KEY (resource, ord, sub)
) STRICT, WITHOUT ROWID;

-- Claims that ended otherwise than by release, and ids barred before their enter arrived.
CREATE TABLE grave (
  claim        BLOB    PRIMARY KEY,
  how          TEXT    NOT NULL,
  until        INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX grave_until ON grave (until);

-- The record kept with a resource.
CREATE TABLE record (
  resource     INTEGER PRIMARY KEY,
  value        BLOB    NOT NULL,
  token        INTEGER NOT NULL,
  until        INTEGER NOT NULL,
  until_us     INTEGER NOT NULL
) STRICT;
