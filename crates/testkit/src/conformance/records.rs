//! Records: small, guarded by a grant, kept for their time.

use leasehold_core::{Claim, ErrorKind, Record, Written};
use std::time::Duration;

use super::world::{World, answered};

const KEEP: Duration = Duration::from_secs(60);

async fn read(w: &World, claim: &Claim) -> Option<Record> {
    answered(w.b.read(&claim.resource).await, "read")
}

/// What a holder writes another client reads, with the token it was written under.
pub async fn what_is_written_is_read(w: &World) {
    let held = w.claim("r");
    assert_eq!(read(w, &held).await, None);
    let grant = w.granted(&w.a, &held).await;
    assert_eq!(read(w, &held).await, None);
    for value in [&b""[..], b"\0\xff and 'quotes'", &[7; Record::VALUE_MAX]] {
        let written = answered(w.a.write(&held.to_ref(), value, KEEP).await, "write");
        assert_eq!(written, Written::Stored);
        let record = read(w, &held).await;
        let Some(record) = record else { panic!("nothing is there") };
        assert_eq!((record.value.as_slice(), record.token), (value, grant.token));
        assert!(record.kept_for <= KEEP && record.kept_for > KEEP / 2);
    }
}

/// A record outlives its grant; the next one replaces it.
pub async fn it_outlives_its_grant_and_is_replaced(w: &World) {
    let (first, second) = (w.claim("r"), w.claim("r"));
    w.granted(&w.a, &first).await;
    answered(w.a.write(&first.to_ref(), b"one", KEEP).await, "write");
    w.leaves(&w.a, &first).await;
    assert_eq!(read(w, &first).await.map(|r| r.value), Some(b"one".to_vec()));
    let grant = w.granted(&w.a, &second).await;
    answered(w.a.write(&second.to_ref(), b"two", KEEP).await, "write");
    let record = read(w, &first).await;
    assert_eq!(record.map(|r| (r.value, r.token)), Some((b"two".to_vec(), grant.token)));
}

/// Nothing is written for a claim that is not granted now: released, waiting, expired, unknown.
pub async fn nothing_is_written_without_a_grant(w: &World) {
    let (old, held, waiter) = (w.claim("r"), w.claim("r"), w.claim("r"));
    let lost = Claim { term: w.short(), ..w.claim("s") };
    w.granted(&w.a, &lost).await;
    w.granted(&w.a, &old).await;
    w.leaves(&w.a, &old).await;
    w.granted(&w.a, &held).await;
    w.waits(&w.a, &waiter).await;
    w.pass(lost.term);
    w.until_gone(&w.a, &lost).await;
    for claim in [&old, &waiter, &lost, &w.claim("t")] {
        let written = answered(w.a.write(&claim.to_ref(), b"x", KEEP).await, "write");
        assert!(matches!(written, Written::Gone(_)), "{written:?}");
        assert_eq!(read(w, claim).await, None);
    }
}

/// A record is gone when its time is up.
pub async fn it_runs_out(w: &World) {
    let held = w.claim("r");
    w.granted(&w.a, &held).await;
    let keep = Duration::from_millis(500);
    answered(w.a.write(&held.to_ref(), b"x", keep).await, "write");
    w.pass(keep);
    w.until_some("a record runs out", async || match read(w, &held).await {
        None => Some(()),
        Some(_) => None,
    })
    .await;
}

/// A value that is too large is refused, and the record before it stays.
pub async fn too_large_is_refused(w: &World) {
    let held = w.claim("r");
    w.granted(&w.a, &held).await;
    answered(w.a.write(&held.to_ref(), b"x", KEEP).await, "write");
    match w.a.write(&held.to_ref(), &[0; Record::VALUE_MAX + 1], KEEP).await {
        Err(error) => assert_eq!(error.kind(), ErrorKind::Usage, "{error}"),
        Ok(written) => panic!("{written:?}"),
    }
    assert_eq!(read(w, &held).await.map(|r| r.value), Some(b"x".to_vec()));
}
