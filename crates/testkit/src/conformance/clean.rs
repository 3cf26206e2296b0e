//! Cleaning: what is idle for long, and nothing that anybody needs.

use leasehold_core::{Claim, Cleaned, Page, Place, ResourceName};
use std::time::Duration;

use super::world::{World, answered};

async fn clean(w: &World, keep: Duration, dry: bool) -> Vec<ResourceName> {
    let mut page = w.page();
    let mut names = Vec::new();
    loop {
        let Cleaned { names: some, next } = answered(w.a.clean(keep, &page, dry).await, "clean");
        names.extend(some);
        match next {
            Some(after) => page = Page { after: Some(after), ..page },
            None => return names,
        }
    }
}

async fn used(w: &World, suffix: &str) -> Claim {
    let claim = w.claim(suffix);
    w.granted(&w.a, &claim).await;
    w.leaves(&w.a, &claim).await;
    claim
}

/// A name unused for long is forgotten, and a token issued for it later is above all before.
pub async fn tokens_rise_over_it(w: &World) {
    let claim = w.claim("r");
    let old = w.granted(&w.a, &claim).await;
    w.leaves(&w.a, &claim).await;
    w.pass(Duration::from_millis(50));
    assert_eq!(clean(w, Duration::ZERO, false).await, [claim.resource]);
    assert_eq!(answered(w.b.list(&w.page()).await, "list"), []);
    let new = w.granted(&w.b, &w.claim("r")).await;
    assert!(new.token > old.token);
    let other = w.granted(&w.b, &w.claim("s")).await;
    assert!(other.token.get() > 0);
}

/// What was used within `keep` stays.
pub async fn what_was_used_lately_stays(w: &World) {
    let claim = used(w, "r").await;
    assert_eq!(clean(w, Duration::from_secs(3600), false).await, []);
    assert_eq!(answered(w.b.list(&w.page()).await, "list"), [claim.resource]);
}

/// A dry run says what it would do, and changes nothing.
pub async fn a_dry_run_changes_nothing(w: &World) {
    let claim = used(w, "r").await;
    w.pass(Duration::from_millis(50));
    for _ in 0..2 {
        assert_eq!(clean(w, Duration::ZERO, true).await, std::slice::from_ref(&claim.resource));
    }
    assert_eq!(answered(w.b.list(&w.page()).await, "list"), [claim.resource]);
}

/// Names that are held, waited for, or keep a record are not touched.
pub async fn what_lives_stays(w: &World) {
    let (held, recorded) = (w.claim("held"), w.claim("recorded"));
    let grant = w.granted(&w.a, &held).await;
    w.granted(&w.a, &recorded).await;
    let keep = Duration::from_secs(3600);
    answered(w.a.write(&recorded.to_ref(), b"x", keep).await, "write");
    w.leaves(&w.a, &recorded).await;
    w.pass(Duration::from_millis(50));
    assert_eq!(clean(w, Duration::ZERO, false).await, []);
    assert_eq!(w.granted(&w.a, &held).await.token, grant.token);
    w.waits(&w.b, &Claim { place: Place::No, ..w.claim("held") }).await;
    assert!(answered(w.b.read(&recorded.resource).await, "read").is_some());
}

/// Cleaning goes page by page and reaches every name once.
pub async fn it_goes_page_by_page(w: &World) {
    let mut names = Vec::new();
    for n in 0..5 {
        names.push(used(w, &format!("n{n}")).await.resource);
    }
    w.pass(Duration::from_millis(50));
    let mut page = Page { limit: 2, ..w.page() };
    let mut cleaned = Vec::new();
    loop {
        let step = answered(w.a.clean(Duration::ZERO, &page, false).await, "clean");
        cleaned.extend(step.names);
        match step.next {
            Some(after) => page.after = Some(after),
            None => break,
        }
    }
    assert_eq!(cleaned, names);
}
