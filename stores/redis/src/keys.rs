//! The keys of a resource, and how its name becomes part of them.

use leasehold_core::{Error, ErrorKind, ResourceName, Result, shown};

use crate::config::Layout;
use crate::link::slot_of;

/// The pattern of the keys that name a resource with a state.
pub(crate) const STATES: &str = "leasehold:s[:=]*";

/// How many keys a verb's script is given.
pub(crate) const DECIDING: usize = 7;

/// All keys of one resource, in the order in which scripts are given them.
///
/// The lock is the name itself, as foreign clients have it. The others hold the name as a hash
/// tag, so that a cluster keeps them in one slot; where the name has a brace of its own, that is
/// the tag, and the key begins otherwise, so that the names `a` and `{a}` have different keys.
pub(crate) struct Keys {
    all: [Vec<u8>; 8],
}

impl Keys {
    /// The keys of a resource.
    pub(crate) fn of(layout: Layout, name: &ResourceName) -> Keys {
        let name = name.as_str();
        let token = match layout {
            Layout::Redisson => foreign("redisson_lock_token", name),
            Layout::Plain => own("t", name),
        };
        Keys {
            all: [
                name.as_bytes().to_vec(),
                token,
                own("s", name),
                own("w", name),
                own("p", name),
                own("h", name),
                own("e", name),
                own("r", name),
            ],
        }
    }

    /// The keys of the first `count` in order.
    pub(crate) fn first(&self, count: usize) -> Vec<&[u8]> {
        self.all.iter().take(count).map(Vec::as_slice).collect()
    }

    /// Lock, token and state.
    pub(crate) fn usual(&self) -> [&[u8]; 3] {
        let [lock, token, state, ..] = &self.all;
        [lock, token, state]
    }

    /// The lock, by which a call is routed.
    pub(crate) fn lock(&self) -> &[u8] {
        &self.all[0]
    }

    /// The record.
    pub(crate) fn record(&self) -> &[u8] {
        &self.all[7]
    }

    /// Refuses a name whose keys a cluster would not keep together.
    pub(crate) fn check_slots(&self, name: &ResourceName) -> Result<()> {
        let slot = slot_of(self.lock());
        if self.all.iter().all(|key| slot_of(key) == slot) {
            return Ok(());
        }
        let detail = "its braces would put its keys into different slots of the cluster";
        Err(Error::new(ErrorKind::Usage, "use the store", detail)
            .on(name)
            .advise("choose a name without `{` and `}`"))
    }
}

/// The channel on which Redisson's clients wait for a lock.
pub(crate) fn foreign_channel(layout: Layout, name: &ResourceName) -> Vec<u8> {
    match layout {
        Layout::Redisson => foreign("redisson_lock__channel", name.as_str()),
        Layout::Plain => b"-".to_vec(),
    }
}

/// As Redisson makes the keys beside a lock.
fn foreign(prefix: &str, name: &str) -> Vec<u8> {
    if name.contains('{') {
        format!("{prefix}:{name}").into_bytes()
    } else {
        format!("{prefix}:{{{name}}}").into_bytes()
    }
}

pub(crate) fn own(what: &str, name: &str) -> Vec<u8> {
    if name.contains('{') {
        format!("leasehold:{what}={name}").into_bytes()
    } else {
        format!("leasehold:{what}:{{{name}}}").into_bytes()
    }
}

/// The name in the key of a state.
pub(crate) fn name_of_state(key: &[u8]) -> Result<ResourceName> {
    let text = std::str::from_utf8(key).unwrap_or_default();
    let name = match text.strip_prefix("leasehold:s=") {
        Some(name) => Some(name),
        None => text.strip_prefix("leasehold:s:{").and_then(|rest| rest.strip_suffix('}')),
    };
    let name = name.and_then(|name| ResourceName::new(name).ok());
    name.filter(|name| own("s", name.as_str()) == key).ok_or_else(|| {
        let key = String::from_utf8_lossy(key);
        let detail = format!("the key `{}` is not one that leasehold makes", shown(&key, 80));
        Error::new(ErrorKind::Corrupt, "list names", detail)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn name(text: &str) -> ResourceName {
        ResourceName::new(text).unwrap()
    }

    #[test]
    fn redissons_keys_are_made_as_redisson_does() {
        let keys = |text| {
            let keys = Keys::of(Layout::Redisson, &name(text));
            let channel = foreign_channel(Layout::Redisson, &name(text));
            [keys.lock().to_vec(), keys.all[1].clone(), channel]
                .map(|key| String::from_utf8(key).unwrap())
        };
        assert_eq!(keys("a"), ["a", "redisson_lock_token:{a}", "redisson_lock__channel:{a}"]);
        assert_eq!(
            keys("x{a}y"),
            ["x{a}y", "redisson_lock_token:x{a}y", "redisson_lock__channel:x{a}y"]
        );
    }

    #[test]
    fn what_a_cluster_would_scatter_is_refused() {
        for (text, fits) in [
            ("a", true),
            ("{a}", true),
            ("x{a}y{b}", true),
            ("a{b", false),
            ("a}b", false),
            ("a{}b", false),
        ] {
            for layout in [Layout::Redisson, Layout::Plain] {
                let checked = Keys::of(layout, &name(text)).check_slots(&name(text));
                assert_eq!(checked.is_ok(), fits, "{text}");
            }
        }
    }

    proptest! {
        #[test]
        fn states_are_told_apart_and_read_back(one in "[a-b{}:=]{1,6}", two in "[a-b{}:=]{1,6}") {
            let (key, other) = (own("s", &one), own("s", &two));
            prop_assert_eq!(name_of_state(&key).unwrap(), name(&one));
            prop_assert_eq!(one == two, key == other);
            for kind in ["t", "w", "p", "h", "e", "r"] {
                prop_assert!(name_of_state(&own(kind, &one)).is_err());
            }
        }
    }
}
