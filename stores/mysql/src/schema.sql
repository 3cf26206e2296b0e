-- The tables of leasehold, for MySQL 8.0 and MariaDB 10.6 or newer. Made by the first that needs them,
-- or by hand: leasehold schema mysql | mysql DATABASE
--
-- Times are microseconds since 1970 by the server's clock, spans are microseconds. Names and labels
-- are UTF-8 kept as bytes, so that no collation makes one name of two.

CREATE TABLE IF NOT EXISTS leasehold_meta (
  one          TINYINT UNSIGNED NOT NULL PRIMARY KEY,
  version      INT UNSIGNED     NOT NULL,
  token_floor  BIGINT UNSIGNED  NOT NULL     -- no token of a name that was cleaned is above
) ENGINE=InnoDB;

-- One row a name, kept. A plain exclusive holder stands in the row itself (h_...), so that an
-- uncontended claim is one UPDATE of this row alone. Its lock is the lock of everything that belongs
-- to the name: it is taken first, always.
CREATE TABLE IF NOT EXISTS leasehold_resource (
  name         VARBINARY(512)   NOT NULL PRIMARY KEY,
  token        BIGINT UNSIGNED  NOT NULL,    -- the newest, 0 before the first
  token_floor  BIGINT UNSIGNED  NOT NULL,    -- every token to come is above
  ord          BIGINT UNSIGNED  NOT NULL,    -- the last order number given
  queued       INT UNSIGNED     NOT NULL,    -- how many rows of leasehold_claim belong here
  used         BIGINT UNSIGNED  NOT NULL,
  end_how      VARBINARY(16)    NULL,        -- how the last grant to end has ended
  end_at       BIGINT UNSIGNED  NULL,
  buried_until BIGINT UNSIGNED  NOT NULL,    -- no row of leasehold_grave of this name lasts longer
  past         VARBINARY(768)   NOT NULL,    -- claims released last: id (16), until (8), newest last
  h_claim      BINARY(16)       NULL,
  h_holder     BINARY(16)       NULL,
  h_label      VARBINARY(200)   NULL,
  h_ord        BIGINT UNSIGNED  NULL,
  h_entered    BIGINT UNSIGNED  NULL,
  h_since      BIGINT UNSIGNED  NULL,
  h_term       BIGINT UNSIGNED  NULL,
  h_life       VARBINARY(16)    NULL,
  h_previous   VARBINARY(16)    NULL,
  h_broken     TINYINT UNSIGNED NULL,
  h_span       BIGINT UNSIGNED  NULL,        -- how long h_until was ahead when it was set
  h_until      BIGINT UNSIGNED  NULL
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- All other claims, in order; those that hold come before those that wait (token is null).
CREATE TABLE IF NOT EXISTS leasehold_claim (
  resource     VARBINARY(512)   NOT NULL,
  ord          BIGINT UNSIGNED  NOT NULL,    -- the ticket, or the order of the grant that was re-entered
  sub          INT UNSIGNED     NOT NULL,    -- 0, or the number of the re-entry
  claim        BINARY(16)       NOT NULL,
  holder       BINARY(16)       NOT NULL,
  label        VARBINARY(200)   NOT NULL,
  mode         VARBINARY(16)    NOT NULL,    -- exclusive, shared, permits
  count        INT UNSIGNED     NOT NULL,    -- of permits, else 0
  slot_limit   INT UNSIGNED     NOT NULL,    -- of permits, else 0
  stands       VARBINARY(16)    NOT NULL,    -- the mode by which it is in the way of others
  stands_count INT UNSIGNED     NOT NULL,
  entered      BIGINT UNSIGNED  NOT NULL,
  term         BIGINT UNSIGNED  NOT NULL,
  life         VARBINARY(16)    NOT NULL,    -- process, term
  place        BIGINT UNSIGNED  NOT NULL,    -- for how long a silent waiter keeps its place
  after_loss   BIGINT UNSIGNED  NOT NULL,
  token        BIGINT UNSIGNED  NULL,
  slots        VARBINARY(128)   NULL,        -- one bit a slot, lowest first
  since        BIGINT UNSIGNED  NULL,
  previous     VARBINARY(16)    NULL,
  broken       TINYINT UNSIGNED NOT NULL,
  span         BIGINT UNSIGNED  NOT NULL,    -- how long `until` was ahead when it was set
  until        BIGINT UNSIGNED  NOT NULL,    -- of the grant, or of the place
  PRIMARY KEY (resource, ord, sub)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- Claims that ended otherwise than by release, and ids barred before their enter arrived.
CREATE TABLE IF NOT EXISTS leasehold_grave (
  resource     VARBINARY(512)   NOT NULL,
  claim        BINARY(16)       NOT NULL,
  how          VARBINARY(16)    NOT NULL,
  until        BIGINT UNSIGNED  NOT NULL,
  PRIMARY KEY (resource, claim)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- The record kept with a resource.
CREATE TABLE IF NOT EXISTS leasehold_record (
  resource     VARBINARY(512)   NOT NULL PRIMARY KEY,
  value        MEDIUMBLOB       NOT NULL,
  token        BIGINT UNSIGNED  NOT NULL,
  until        BIGINT UNSIGNED  NOT NULL
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

INSERT INTO leasehold_meta (one, version, token_floor) VALUES (1, 1, 0)
  ON DUPLICATE KEY UPDATE one = 1;
