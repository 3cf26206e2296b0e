//! The embedded store of leasehold: many processes of one machine, no server
