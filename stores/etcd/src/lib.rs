//! etcd: locks shared with Go's concurrency package and etcdctl.
