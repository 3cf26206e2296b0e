//! The leasehold command: run a command under a distributed lock
