//! The file of marks: two equal slots of one page each.
//!
//! Each slot is a short text, closed by its checksum and padded with zeroes. A change is written
//! to the first slot, made durable, then written to the second and made durable. So, whenever and
//! however hard the machine stops, at most one slot is torn, and if the first can be read it is
//! the newest; if it cannot, no call that wrote it has returned. Once both are durable the second is
//! written again with a line that says so: equal slots alone do not, since Linux gives up for ever
//! what a sync failed to write, but goes on to show it to readers. A single damaged slot is healed
//! from the other; two are an error, never taken for an empty file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use leasehold_core::{Mark, Marks};

use super::gate::StoreError;

/// A page: written whole, and never in the same disk block as the other slot.
pub(super) const SLOT_LEN: usize = 4096;
pub(super) type Slot = [u8; SLOT_LEN];

const HEAD: &str = "leasehold-fence ";
const VERSION: &str = "1";
/// Ends the second slot's text once both slots are durable.
const SETTLED: &str = "settled\n";

/// Where slots are kept: a file, or a test's disk that loses power.
pub(super) trait Medium {
    fn read(&self) -> io::Result<Vec<u8>>;
    fn write(&self, slot: usize, bytes: &Slot) -> io::Result<()>;
    /// Makes every write so far durable.
    fn sync(&self) -> io::Result<()>;
    /// Makes the file's name durable.
    fn sync_name(&self) -> io::Result<()>;
}

/// A file of marks with the directory that names it.
pub(super) struct OnDisk<'a> {
    pub(super) file: &'a File,
    pub(super) dir: &'a File,
}

impl Medium for OnDisk<'_> {
    fn read(&self) -> io::Result<Vec<u8>> {
        // One byte more than there may be, so that a longer file is noticed.
        let mut bytes = vec![0; 2 * SLOT_LEN + 1];
        let mut len = 0;
        while len < bytes.len() {
            match self.file.read_at(&mut bytes[len..], len as u64) {
                Ok(0) => break,
                Ok(n) => len += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        bytes.truncate(len);
        Ok(bytes)
    }

    fn write(&self, slot: usize, bytes: &Slot) -> io::Result<()> {
        self.file.write_all_at(bytes, (slot * SLOT_LEN) as u64)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn sync_name(&self) -> io::Result<()> {
        self.dir.sync_all()
    }
}

/// What a file of marks holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Loaded {
    pub(super) marks: Marks,
    settled: Settled,
}

impl Loaded {
    /// Marks that another store keeps, and makes durable itself.
    pub(super) fn elsewhere(marks: Marks) -> Loaded {
        Loaded { marks, settled: Settled::Yes }
    }
}

/// Whether what was read is known to be durable, and if not, which slot can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Settled {
    Yes,
    Only(usize),
}

/// Why a file of marks cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unreadable {
    #[error("its size is {0} bytes, not 8192")]
    Size(usize),
    #[error("neither of its two slots can be read")]
    Damaged,
    #[error("it is in format `{0}`, which this version does not know")]
    Version(String),
    #[error("it keeps the marks of `{0}`")]
    Other(String),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("another store failed")]
    Store(StoreError),
}

/// Reads the marks of `resource`.
pub(super) fn load(medium: &impl Medium, resource: &str) -> Result<Loaded, Unreadable> {
    let bytes = medium.read()?;
    if bytes.len() != 2 * SLOT_LEN {
        return Err(Unreadable::Size(bytes.len()));
    }
    let (first, second) = bytes.split_at(SLOT_LEN);
    let (first, second) = (parse(first, resource)?, parse(second, resource)?);
    match (first, second) {
        (Some((marks, _)), Some((same, true))) if marks == same => {
            Ok(Loaded { marks, settled: Settled::Yes })
        }
        (Some((marks, _)), _) => Ok(Loaded { marks, settled: Settled::Only(0) }),
        (None, Some((marks, _))) => Ok(Loaded { marks, settled: Settled::Only(1) }),
        (None, None) => Err(Unreadable::Damaged),
    }
}

/// Makes `marks` durable in place of what was loaded.
pub(super) fn save(
    medium: &impl Medium,
    resource: &str,
    loaded: Loaded,
    marks: Marks,
) -> io::Result<()> {
    if loaded.settled == Settled::Yes && marks == loaded.marks {
        return Ok(());
    }
    // Whoever was here before may have been killed between a write and its sync, and never may
    // both slots be on their way to the disk.
    medium.sync()?;
    let slot = render(resource, marks, "");
    if let Settled::Only(good) = loaded.settled {
        medium.sync_name()?;
        let slot = render(resource, loaded.marks, "");
        // The good one too: it may be read still though a sync has given it up.
        for at in [good, 1 - good] {
            medium.write(at, &slot)?;
            medium.sync()?;
        }
    }
    if marks != loaded.marks {
        for at in 0..2 {
            medium.write(at, &slot)?;
            medium.sync()?;
        }
    }
    // Durable or not: where it is not there, both slots are written once more.
    medium.write(1, &render(resource, marks, SETTLED))
}

/// Writes a new file of no marks, to be renamed into place afterwards.
///
/// Its second slot stays empty, so that whoever raises the first mark also makes the name durable.
pub(super) fn initialise(file: &File, resource: &str) -> io::Result<()> {
    file.set_len(0)?;
    file.set_len(2 * SLOT_LEN as u64)?;
    file.write_all_at(&render(resource, Marks::default(), ""), 0)?;
    file.sync_all()
}

fn render(resource: &str, marks: Marks, settled: &str) -> Slot {
    let text = |mark: Option<Mark>| mark.map_or_else(|| "-".to_string(), |m| m.to_string());
    let (exclusive, shared) = (text(marks.exclusive), text(marks.shared));
    let body = format!(
        "{HEAD}{VERSION}\nresource {resource}\nexclusive {exclusive}\nshared {shared}\n{settled}"
    );
    let whole = format!("{body}sum {:08x}\n", crc32(body.as_bytes()));
    let mut slot = [0; SLOT_LEN];
    // An escaped resource has at most 1,550 bytes, so the text always fits.
    slot[..whole.len()].copy_from_slice(whole.as_bytes());
    slot
}

/// The marks in a slot and whether it says that both are durable, or `None` if it is empty or damaged.
fn parse(slot: &[u8], resource: &str) -> Result<Option<(Marks, bool)>, Unreadable> {
    let end = slot.iter().position(|&byte| byte == 0).unwrap_or(slot.len());
    let (text, padding) = slot.split_at(end);
    let Ok(text) = str::from_utf8(text) else { return Ok(None) };
    let Some(body) = text.rfind("sum ").map(|at| &text[..at]) else { return Ok(None) };
    let sum = format!("sum {:08x}\n", crc32(body.as_bytes()));
    if padding.iter().any(|&byte| byte != 0) || text[body.len()..] != sum {
        return Ok(None);
    }
    // From here on it was written so: what is odd is another writer's doing, not damage.
    let mut lines = body.lines();
    let version = lines.next().and_then(|line| line.strip_prefix(HEAD));
    if version != Some(VERSION) {
        return Err(Unreadable::Version(version.unwrap_or_default().to_string()));
    }
    let mut field = |name| lines.next().and_then(|line| line.strip_prefix(name));
    let (name, exclusive, shared) = (field("resource "), field("exclusive "), field("shared "));
    match name {
        Some(name) if name == resource => {}
        name => return Err(Unreadable::Other(name.unwrap_or_default().to_string())),
    }
    match (exclusive.and_then(mark), shared.and_then(mark)) {
        (Some(exclusive), Some(shared)) => {
            Ok(Some((Marks { exclusive, shared }, body.ends_with(SETTLED))))
        }
        _ => Ok(None),
    }
}

fn mark(text: &str) -> Option<Option<Mark>> {
    if text == "-" { Some(None) } else { text.parse().ok().map(Some) }
}

/// The CRC-32 of zip and gzip, bit by bit: a slot is short.
fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for &byte in bytes {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0xEDB8_8320 } else { crc >> 1 };
        }
    }
    !crc
}

#[cfg(test)]
#[path = "slots_tests.rs"]
mod tests;
