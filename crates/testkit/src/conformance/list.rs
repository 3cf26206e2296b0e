//! Listing: in byte order, by prefix, page by page.

use leasehold_core::{Page, ResourceName};

use super::world::{World, answered};

/// Names are listed in byte order, also those that are remembered but not held.
pub async fn names_are_listed_in_order(w: &World) {
    for suffix in ["b", "a", "é", "a/b", "B"] {
        w.granted(&w.a, &w.claim(suffix)).await;
    }
    let free = w.claim("free");
    w.granted(&w.a, &free).await;
    w.leaves(&w.a, &free).await;
    let listed = answered(w.b.list(&w.page()).await, "list");
    let expected: Vec<_> = ["B", "a", "a/b", "b", "free", "é"].map(|s| w.name(s)).into();
    assert_eq!(listed, expected);
}

/// Only names with the prefix are listed, whatever the prefix means to the store.
pub async fn a_prefix_is_taken_as_bytes(w: &World) {
    for suffix in ["x%1", "x_1", "x*1", "x[1", "x1", "X_1"] {
        w.granted(&w.a, &w.claim(suffix)).await;
    }
    for suffix in ["x%", "x_", "x*", "x["] {
        let prefix = w.name(suffix).as_str().into();
        let listed = answered(w.b.list(&Page { prefix, ..Page::default() }).await, "list");
        assert_eq!(listed, [w.name(&format!("{suffix}1"))]);
    }
    let prefix = w.name("y").as_str().into();
    let listed = answered(w.b.list(&Page { prefix, ..Page::default() }).await, "list");
    assert_eq!(listed, []);
}

/// Page by page every name comes once.
pub async fn pages_follow_each_other(w: &World) {
    let mut expected: Vec<ResourceName> = Vec::new();
    for n in 0..7 {
        let claim = w.claim(&format!("n{n}"));
        w.granted(&w.a, &claim).await;
        expected.push(claim.resource);
    }
    let mut listed = Vec::new();
    let mut page = Page { limit: 3, ..w.page() };
    loop {
        let names = answered(w.b.list(&page).await, "list");
        assert!(names.len() <= 3);
        let Some(last) = names.last() else { break };
        page.after = Some(last.clone());
        listed.extend(names);
    }
    assert_eq!(listed, expected);
}
