//! Distributed locks, leases and fencing tokens over the stores you already run
