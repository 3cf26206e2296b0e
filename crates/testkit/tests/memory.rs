//! The suite, run on its own stores in memory: one that keeps every promise and one that makes few.

mod full {
    use leasehold_testkit::MemoryHarness;

    leasehold_testkit::conformance!(MemoryHarness::new());
}

mod plain {
    use leasehold_testkit::MemoryHarness;

    leasehold_testkit::conformance!(MemoryHarness::plain());
}
