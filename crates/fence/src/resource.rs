//! What a fence guards, by name.

use std::fmt;

use leasehold_core::{BadName, ResourceName};

use crate::error::{Error, ErrorKind, Result};

/// A resource as a fence knows it: a name, or one numbered slot of a semaphore's name.
///
/// The holders of a semaphore are there together, so no pair of marks can tell a live one from a
/// dead one; each slot has its own line of holders, and is fenced as a resource of its own.
/// No slot is ever taken for a plain name, whatever the name looks like.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Resource {
    name: ResourceName,
    slot: Option<u32>,
}

impl Resource {
    /// The resource of this name.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Usage`]: a name is 1 to 512 bytes of UTF-8 without control characters.
    pub fn new(name: &str) -> Result<Resource> {
        let name = ResourceName::new(name).map_err(bad_name)?;
        Ok(Resource { name, slot: None })
    }

    /// One permit slot of the semaphore of this name, as the grant names it.
    ///
    /// # Errors
    ///
    /// As [`Resource::new`].
    pub fn slot(name: &str, slot: u32) -> Result<Resource> {
        Ok(Resource { slot: Some(slot), ..Resource::new(name)? })
    }

    /// The name.
    pub fn name(&self) -> &ResourceName {
        &self.name
    }

    /// The slot, if it is one.
    pub fn slot_number(&self) -> Option<u32> {
        self.slot
    }
}

impl From<ResourceName> for Resource {
    fn from(name: ResourceName) -> Resource {
        Resource { name, slot: None }
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.slot {
            None => write!(f, "`{}`", self.name),
            Some(slot) => write!(f, "slot {slot} of `{}`", self.name),
        }
    }
}

fn bad_name(bad: BadName) -> Error {
    Error::new(ErrorKind::Usage, format!("name a resource: {bad}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_names_are_refused_with_the_reason() {
        for bad in ["", "a\nb", "\u{85}", &"x".repeat(513)] {
            let error = Resource::new(bad).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Usage);
            assert!(Resource::slot(bad, 1).is_err());
        }
        assert!(Resource::new(&"x".repeat(512)).is_ok());
    }

    #[test]
    fn a_slot_is_never_a_plain_name() {
        let slot = Resource::slot("r", 3).unwrap();
        assert_ne!(slot, Resource::new("r").unwrap());
        assert_ne!(slot, Resource::new(&slot.to_string()).unwrap());
    }
}
