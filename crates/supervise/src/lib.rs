//! The keeper of leasehold: a process that ends a command before its right ends
