//! ZooKeeper: locks shared with Curator.
