-- Tables of leasehold. Times are the server's clock_timestamp(), columns of spans (term, after_loss,
-- place) are microseconds. `public` stands for the schema. Where there are tables of an older version
-- they are kept, with all that is in them, and brought to this one; those of a newer are refused.

DO $$
DECLARE
  found integer;
BEGIN
  IF to_regclass('public.leasehold_meta') IS NOT NULL THEN
    SELECT version INTO found FROM public.leasehold_meta;
    IF found > 1 THEN
      RAISE EXCEPTION 'the tables of leasehold here are of version %, newer than this SQL', found;
    END IF;
  END IF;
END $$;

CREATE TABLE IF NOT EXISTS public.leasehold_meta (
  one          boolean PRIMARY KEY DEFAULT true CHECK (one),
  version      integer NOT NULL,
  token_floor  bigint  NOT NULL           -- every token of a name that was cleaned is at or below
);

-- One row a name, kept when nobody holds it. An exclusive holder stands in the row itself (h_...),
-- so that an uncontended claim and its release each write this row alone. Whoever decides anything
-- about a name has locked its row in a statement before.
CREATE TABLE IF NOT EXISTS public.leasehold_resource (
  name         text COLLATE "C" PRIMARY KEY,
  token        bigint      NOT NULL,      -- the newest, 0 before the first; kept when nobody holds
  ord          bigint      NOT NULL,      -- the last order number given
  granted      integer     NOT NULL,      -- how many rows of leasehold_claim of this name hold
  waiting      integer     NOT NULL,      -- how many wait
  due          timestamptz,               -- no row of leasehold_claim of this name ends before
  used_at      timestamptz NOT NULL,      -- when a claim last entered or ended
  end_how      text,                      -- how the last grant to end has ended
  end_at       timestamptz,
  past         bytea       NOT NULL,      -- the claims released last: id (16), until (8, epoch µs)
  h_claim      uuid,
  h_holder     uuid,
  h_label      text,
  h_ord        bigint,
  h_entered    timestamptz,
  h_since      timestamptz,
  h_until      timestamptz,
  h_term       bigint,
  h_life       text,
  h_previous   text,
  h_broken     boolean
) WITH (fillfactor = 30, autovacuum_vacuum_threshold = 50, autovacuum_vacuum_scale_factor = 0.01);

-- All other claims: those that hold (token is not null), then those that wait, by (ord, sub).
CREATE TABLE IF NOT EXISTS public.leasehold_claim (
  resource     text COLLATE "C" NOT NULL,
  ord          bigint      NOT NULL,      -- the ticket, or the order of the grant that was re-entered
  sub          integer     NOT NULL,      -- 0, or the number of the re-entry
  claim        uuid        NOT NULL UNIQUE,
  holder       uuid        NOT NULL,
  label        text        NOT NULL,
  mode         text        NOT NULL,      -- exclusive, shared, permits
  count        integer     NOT NULL,      -- of permits, else 0
  slot_limit   integer     NOT NULL,      -- of permits, else 0
  stands       text        NOT NULL,      -- the mode by which it is in the way of others
  stands_count integer     NOT NULL,
  entered      timestamptz NOT NULL,
  term         bigint      NOT NULL,
  life         text        NOT NULL,      -- process, term
  after_loss   bigint      NOT NULL,
  place        bigint      NOT NULL,      -- how long the place lasts after the waiter's last word
  home         bigint      NOT NULL,      -- whom to notify: channel leasehold_<home, 16 hex digits>
  ticket       bigint      NOT NULL,
  until        timestamptz NOT NULL,      -- when its term or its place ends
  token        bigint,
  slots        integer[],
  since        timestamptz,
  previous     text,
  broken       boolean     NOT NULL,
  PRIMARY KEY (resource, ord, sub)
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 50, autovacuum_vacuum_scale_factor = 0.01);

-- Claims that ended otherwise than by release, and ids barred before their enter arrived.
CREATE TABLE IF NOT EXISTS public.leasehold_grave (
  claim        uuid PRIMARY KEY,
  how          text        NOT NULL,
  until        timestamptz NOT NULL
);
CREATE INDEX IF NOT EXISTS leasehold_grave_until ON public.leasehold_grave (until);

-- The record kept with a name.
CREATE TABLE IF NOT EXISTS public.leasehold_record (
  resource     text COLLATE "C" PRIMARY KEY,
  value        bytea       NOT NULL,
  token        bigint      NOT NULL,
  until        timestamptz NOT NULL
);

INSERT INTO public.leasehold_meta (version, token_floor) VALUES (1, 0)
ON CONFLICT (one) DO UPDATE SET version = excluded.version;
