//! The refusing side of leasehold: fences that turn away a stale holder's write
