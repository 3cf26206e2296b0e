//! The test kit of leasehold: conformance suite, seeded simulation, checkers, recorded histories
