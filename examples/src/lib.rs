//! The classic scenarios of locking, each against a real server.
