//! Names of the files a fence makes: injective, fit for every file system, and recognisable.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use leasehold_core::ResourceName;

use crate::error::Result;
use crate::resource::Resource;

/// The longest name that is used as it is; with what is put around it, it stays below 255 bytes.
const LEN_MAX: usize = 200;

/// The file of marks beside a guarded file.
const BESIDE: &str = ".leasehold-fence";
/// The new content of a guarded file, before it is renamed into place.
const PUT: &str = ".leasehold-put";

/// The name of a resource's file in a gate's directory, and the whole name, kept inside it.
///
/// `@` and `~` are always escaped in names, so neither a slot nor a shortened name is ever another
/// name's.
pub(super) fn of_resource(of: &Resource) -> (String, String) {
    let mut text = of.name().escaped(b"");
    if let Some(slot) = of.slot_number() {
        // Writing to a String cannot fail.
        let _ = write!(text, "@{slot}");
    }
    let name = if text.len() <= LEN_MAX {
        text.clone()
    } else {
        // Escaped text is ASCII, so any cut is between characters.
        format!("{}~{}", &text[..LEN_MAX - 40], hash(text.as_bytes()))
    };
    (name, text)
}

/// The name of the file of marks beside the file `name`, and the whole name, kept inside it.
pub(super) fn beside(name: &OsStr) -> (OsString, String) {
    let mut text = String::new();
    for &byte in name.as_bytes() {
        if byte.is_ascii_alphanumeric() || b"._-".contains(&byte) {
            text.push(char::from(byte));
        } else {
            let _ = write!(text, "%{byte:02X}");
        }
    }
    (hidden(name, BESIDE), text)
}

/// The name of the temporary file for `name`; fences that keep their marks elsewhere have another
/// `keeper`, and so do not meet.
pub(super) fn put(name: &OsStr, keeper: Option<&Path>) -> OsString {
    let mut put = hidden(name, PUT);
    if let Some(keeper) = keeper {
        put.push("-");
        put.push(&hash(keeper.as_os_str().as_bytes())[..16]);
    }
    put
}

/// Whether a file is one that a fence has made for itself.
pub(super) fn is_own(name: &OsStr) -> bool {
    let name = name.as_bytes();
    let has = |part: &str| name.windows(part.len()).any(|window| window == part.as_bytes());
    name.starts_with(b".") && (has(BESIDE) || has(PUT))
}

/// The resource that stands for a file in a gate: its absolute path, shortened if it must be.
pub(super) fn of_path(path: &Path) -> Result<Resource> {
    let bytes = path.as_os_str().as_bytes();
    if let Ok(name) = ResourceName::new(&format!("file:{}", String::from_utf8_lossy(bytes)))
        && path.to_str().is_some()
    {
        return Ok(name.into());
    }
    // Any two paths that met here would share their marks, which only refuses too much.
    Resource::new(&format!("file~{}", hash(bytes)))
}

fn hidden(name: &OsStr, suffix: &str) -> OsString {
    let mut hidden = OsString::from(".");
    if name.len() <= LEN_MAX {
        hidden.push(name);
    } else {
        hidden.push(hash(name.as_bytes()));
    }
    hidden.push(suffix);
    hidden
}

/// FNV-1a of 128 bits, in hexadecimal: tells long names apart. The whole name is kept and compared
/// where that matters.
fn hash(bytes: &[u8]) -> String {
    let mut hash: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    for &byte in bytes {
        hash ^= u128::from(byte);
        hash = hash.wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
    }
    format!("{hash:032x}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_resource() -> impl Strategy<Value = Resource> {
        let name = prop_oneof!["[a@~%.1]{1,6}", "[a-b/@é~]{190,210}", "\\PC{1,60}"];
        (name, proptest::option::of(0..12_u32)).prop_map(|(name, slot)| match slot {
            Some(slot) => Resource::slot(&name, slot).unwrap(),
            None => Resource::new(&name).unwrap(),
        })
    }

    proptest! {
        #[test]
        fn names_are_injective_and_fit(one in any_resource(), other in any_resource()) {
            let (name, text) = of_resource(&one);
            let (other_name, other_text) = of_resource(&other);
            prop_assert_eq!(one == other, name == other_name);
            prop_assert_eq!(one == other, text == other_text);
            prop_assert!(name.len() <= LEN_MAX && !name.contains(['/', '.', '\0']));
        }
    }

    #[test]
    fn a_long_name_keeps_room_for_what_is_put_around_it() {
        let long = OsString::from("x".repeat(255));
        let keeper = Path::new("/var/lib/leasehold");
        for name in [&long, &OsString::from("x".repeat(LEN_MAX))] {
            assert!(beside(name).0.len() + ".new".len() <= 255);
            assert!(put(name, Some(keeper)).len() <= 255);
            assert!(is_own(&beside(name).0) && is_own(&put(name, Some(keeper))));
        }
        assert!(!is_own(OsStr::new("notes")) && !is_own(OsStr::new("x.leasehold-fence")));
        assert_ne!(put(&long, Some(keeper)), put(&long, None));
    }

    #[test]
    fn the_hash_is_the_published_one() {
        assert_eq!(hash(b""), "6c62272e07bb014262b821756295c58d");
        assert_eq!(hash(b"a"), "d228cb696f1a8caf78912b704e4a8964");
    }
}
