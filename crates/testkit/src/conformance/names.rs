//! Names: every name that core takes is one of its own.

use leasehold_core::{ErrorKind, ResourceName};

use super::world::{World, answered};

/// Names that mean something to stores, and pairs that a careless escape would join.
const ODD: [&str; 30] = [
    "a",
    "a/",
    "a/b",
    "/a",
    "a//b",
    ".",
    "..",
    "a.b",
    "a}b",
    "a{b",
    "a{}b",
    "{a}",
    "%",
    "%2F",
    "a%2Fb",
    "a b",
    " a",
    "a ",
    "A",
    "é",
    "e\u{301}",
    "\u{f8ff}",
    "💥",
    "'",
    "\"",
    "a;b",
    "a:b",
    "a*",
    "a\\b",
    "a\u{2028}b",
];

/// Each odd name holds for itself, and is listed and inspected as it was given. Where the profile
/// says so, a name with braces may be refused, in words.
pub async fn each_is_one_of_its_own(w: &World) {
    let mut names: Vec<ResourceName> = Vec::new();
    let refuses = w.profile().limits.iter().any(|limit| limit.contains("braces"));
    for suffix in ODD {
        let claim = w.claim(suffix);
        if refuses && suffix.contains(['{', '}']) {
            let entered = w.a.enter(&claim).await;
            if let Err(error) = entered {
                let told = error.kind() == ErrorKind::Usage && error.advice().is_some();
                assert!(told, "{suffix:?} is refused in words: {error}");
                continue;
            }
        }
        w.granted(&w.a, &claim).await;
        let queue = answered(w.b.inspect(&claim.resource).await, "inspect");
        assert_eq!(queue.entries.len(), 1, "{suffix:?} is alone on its name");
        assert_eq!(queue.entries[0].claim, claim.id);
        names.push(claim.resource);
    }
    names.sort();
    assert_eq!(answered(w.b.list(&w.page()).await, "list"), names);
}

/// The longest name works, and differs from one that ends otherwise.
pub async fn the_longest_works(w: &World) {
    let fill = "é/".repeat((ResourceName::LEN_MAX - w.prefix().len() - 1) / 3);
    let (one, two) = (w.claim(&format!("{fill}1")), w.claim(&format!("{fill}2")));
    w.granted(&w.a, &one).await;
    w.granted(&w.a, &two).await;
    assert_eq!(answered(w.b.list(&w.page()).await, "list"), [one.resource, two.resource]);
}

/// Labels of holders come back as they are, whatever they hold.
pub async fn labels_come_back(w: &World) {
    for (n, label) in ["", "é 💥 '\"\\", "a:b{c}%", &"x".repeat(200)].iter().enumerate() {
        let mut claim = w.claim(&format!("r{n}"));
        claim.holder = leasehold_core::Holder::new(claim.holder.id, label);
        w.granted(&w.a, &claim).await;
        let queue = answered(w.b.inspect(&claim.resource).await, "inspect");
        assert_eq!(queue.entries[0].holder, claim.holder);
    }
}
