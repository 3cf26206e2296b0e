//! The slots on a disk that loses power, and under a process that is killed.

use std::cell::RefCell;

use leasehold_core::{Access, Token};
use proptest::prelude::*;

use super::*;

const NAME: &str = "r";

/// What is on the disk, and what was written since the last sync.
struct Disk {
    durable: RefCell<Vec<u8>>,
    pending: RefCell<Vec<(usize, Slot)>>,
    /// What a sync that failed has given up: still read, never written.
    given_up: RefCell<Vec<(usize, Slot)>>,
    /// How many syncs from here on until one fails.
    syncs_left: RefCell<u32>,
    name_durable: RefCell<bool>,
    /// Steps until the process is killed.
    left: RefCell<u32>,
}

impl Disk {
    fn new() -> Disk {
        let mut bytes = vec![0; 2 * SLOT_LEN];
        bytes[..SLOT_LEN].copy_from_slice(&render(NAME, Marks::default(), ""));
        Disk {
            durable: RefCell::new(bytes),
            pending: RefCell::default(),
            given_up: RefCell::default(),
            syncs_left: RefCell::new(u32::MAX),
            name_durable: RefCell::new(false),
            left: RefCell::new(u32::MAX),
        }
    }

    fn step(&self) -> io::Result<()> {
        let mut left = self.left.borrow_mut();
        *left = left.checked_sub(1).ok_or_else(|| io::Error::other("killed"))?;
        Ok(())
    }

    /// The power fails: of each write since the last sync any part may be lost.
    fn cut(&self, mut fate: impl FnMut() -> usize) {
        self.given_up.borrow_mut().clear();
        let mut durable = self.durable.borrow_mut();
        for (slot, bytes) in self.pending.borrow_mut().drain(..) {
            let from = fate() % (SLOT_LEN + 1);
            let to = from + fate() % (SLOT_LEN + 1 - from);
            durable[slot * SLOT_LEN + from..slot * SLOT_LEN + to].copy_from_slice(&bytes[from..to]);
        }
    }
}

impl Medium for Disk {
    fn read(&self) -> io::Result<Vec<u8>> {
        let mut bytes = self.durable.borrow().clone();
        for (slot, written) in self.given_up.borrow().iter().chain(&*self.pending.borrow()) {
            bytes[slot * SLOT_LEN..(slot + 1) * SLOT_LEN].copy_from_slice(written);
        }
        Ok(bytes)
    }

    fn write(&self, slot: usize, bytes: &Slot) -> io::Result<()> {
        self.step()?;
        self.given_up.borrow_mut().retain(|(other, _)| *other != slot);
        self.pending.borrow_mut().push((slot, *bytes));
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.step()?;
        let pending = std::mem::take(&mut *self.pending.borrow_mut());
        let left = self.syncs_left.borrow().checked_sub(1);
        *self.syncs_left.borrow_mut() = left.unwrap_or(u32::MAX);
        if left.is_none() {
            self.given_up.borrow_mut().extend(pending);
            return Err(io::Error::other("the disk failed"));
        }
        let mut durable = self.durable.borrow_mut();
        for (slot, bytes) in pending {
            durable[slot * SLOT_LEN..(slot + 1) * SLOT_LEN].copy_from_slice(&bytes);
        }
        Ok(())
    }

    fn sync_name(&self) -> io::Result<()> {
        self.step()?;
        *self.name_durable.borrow_mut() = true;
        Ok(())
    }
}

fn at(n: u64) -> Mark {
    Mark::from(Token::new(n).unwrap())
}

/// What happens in a raise and after it.
#[derive(Debug, Clone)]
struct Turn {
    rise: u64,
    killed_after: u32,
    sync_fails_after: Option<u32>,
    cut: Option<Vec<usize>>,
}

fn any_turn() -> impl Strategy<Value = Turn> {
    // A torn write that keeps the first 120 bytes or so is one that cuts through the text.
    let fate = prop_oneof![0..120_usize, 0..SLOT_LEN, Just(SLOT_LEN)];
    let cut = proptest::option::of(proptest::collection::vec(fate, 1..8));
    let sync_fails_after = proptest::option::weighted(0.2, 0..6_u32);
    (0..3_u64, 0..12_u32, sync_fails_after, cut).prop_map(
        |(rise, killed_after, sync_fails_after, cut)| Turn {
            rise,
            killed_after,
            sync_fails_after,
            cut,
        },
    )
}

/// Every mark that was acknowledged is read again, whatever happens.
fn play(turns: &[Turn]) -> Result<(), TestCaseError> {
    let disk = Disk::new();
    let (mut token, mut acknowledged) = (1, Marks::default());
    for turn in turns {
        let loaded = load(&disk, NAME).expect("at most one slot is ever damaged");
        prop_assert!(loaded.marks.exclusive >= acknowledged.exclusive);
        token += turn.rise;
        let raised = loaded.marks.admit(Access::Exclusive, at(token)).unwrap();
        *disk.left.borrow_mut() = turn.killed_after;
        *disk.syncs_left.borrow_mut() = turn.sync_fails_after.unwrap_or(u32::MAX);
        if save(&disk, NAME, loaded, raised).is_ok() {
            prop_assert!(*disk.name_durable.borrow(), "the file itself could be lost");
            acknowledged = raised;
        }
        if let Some(fates) = &turn.cut {
            let mut fates = fates.iter().copied().cycle();
            disk.cut(|| fates.next().unwrap_or(0));
        }
    }
    Ok(())
}

/// A sync fails, and its writer is killed before it can do anything about it: the second slot is shown
/// and not there. Then the first is torn.
#[test]
fn what_a_failed_sync_gave_up_is_not_taken_for_durable() {
    let turn = |rise, killed_after, sync_fails_after, cut: Option<usize>| Turn {
        rise,
        killed_after,
        sync_fails_after,
        cut: cut.map(|fate| vec![fate]),
    };
    for fails_after in 0..6 {
        for killed_after in 0..12 {
            for then in 0..12 {
                let first = turn(0, killed_after, Some(fails_after), None);
                let turns = [first, turn(0, 99, None, None), turn(1, then, None, Some(20))];
                play(&[&turns[..], &[turn(0, 0, None, None)]].concat()).unwrap();
                play(&[&turns[..1], &turns[2..], &[turn(0, 0, None, None)]].concat()).unwrap();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn what_was_acknowledged_survives_kills_and_power_cuts(
        turns in proptest::collection::vec(any_turn(), 1..12),
    ) {
        play(&turns)?;
    }

    #[test]
    fn one_damaged_slot_is_healed_and_two_are_an_error(
        n in 1..Token::MAX.get(), slot in 0..2_usize, offset in 0..60_usize, bit in 0..8_u32,
    ) {
        let disk = Disk::new();
        let marks = Marks { exclusive: Some(at(n)), shared: None };
        let loaded = load(&disk, NAME).unwrap();
        save(&disk, NAME, loaded, marks).unwrap();
        disk.sync().unwrap();
        prop_assert_eq!(load(&disk, NAME).unwrap(), Loaded { marks, settled: Settled::Yes });

        disk.durable.borrow_mut()[slot * SLOT_LEN + offset] ^= 1 << bit;
        let loaded = load(&disk, NAME).unwrap();
        prop_assert_eq!(loaded, Loaded { marks, settled: Settled::Only(1 - slot) });
        save(&disk, NAME, loaded, marks).unwrap();
        disk.sync().unwrap();
        prop_assert_eq!(load(&disk, NAME).unwrap(), Loaded { marks, settled: Settled::Yes });

        for slot in 0..2 {
            disk.durable.borrow_mut()[slot * SLOT_LEN + offset] ^= 1 << bit;
        }
        prop_assert!(matches!(load(&disk, NAME), Err(Unreadable::Damaged)));
    }

    #[test]
    fn every_pair_of_marks_survives_its_text(
        exclusive in proptest::option::of((any::<u32>(), 1..=Token::MAX.get())),
        shared in proptest::option::of((any::<u32>(), 1..=Token::MAX.get())),
    ) {
        let mark = |(epoch, n)| Mark { epoch: leasehold_core::Epoch(epoch), ..at(n) };
        let marks = Marks { exclusive: exclusive.map(mark), shared: shared.map(mark) };
        for (settled, said) in [("", false), (SETTLED, true)] {
            let slot = render(NAME, marks, settled);
            prop_assert_eq!(parse(&slot, NAME).unwrap(), Some((marks, said)));
        }
    }
}

#[test]
fn another_resource_and_a_newer_format_are_told_apart_from_damage() {
    let slot = render("other", Marks::default(), "");
    assert!(matches!(parse(&slot, NAME), Err(Unreadable::Other(name)) if name == "other"));

    let body = format!("{HEAD}2\nwhatever\n");
    let whole = format!("{body}sum {:08x}\n", crc32(body.as_bytes()));
    let mut slot = [0; SLOT_LEN];
    slot[..whole.len()].copy_from_slice(whole.as_bytes());
    assert!(matches!(parse(&slot, NAME), Err(Unreadable::Version(v)) if v == "2"));
}

#[test]
fn the_longest_resource_fits_its_slot() {
    let name = "%FF".repeat(512) + "@4294967295";
    let mark = Mark { epoch: leasehold_core::Epoch(u32::MAX), token: Token::MAX };
    let marks = Marks { exclusive: Some(mark), shared: Some(mark) };
    assert_eq!(parse(&render(&name, marks, SETTLED), &name).unwrap(), Some((marks, true)));
}

#[test]
fn the_checksum_is_the_one_of_zip() {
    assert_eq!(crc32(b"123456789"), 0xCBF4_3926);
}
