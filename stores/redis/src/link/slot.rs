//! In which slot of a cluster a key lies.

use std::sync::OnceLock;

use super::disturbance::SLOTS;

/// The slot of a key: of what stands between its first `{` and the next `}`, if anything does.
pub(crate) fn slot_of(key: &[u8]) -> u16 {
    crc16(tag(key)) % SLOTS
}

/// A short word that lies in a slot, as a hash tag for what has to be there.
pub(crate) fn word_in(slot: u16) -> u32 {
    static WORDS: OnceLock<Vec<u32>> = OnceLock::new();
    let words = WORDS.get_or_init(|| {
        let mut words = vec![None; usize::from(SLOTS)];
        let mut missing = words.len();
        for word in 0_u32.. {
            if let Some(place @ None) =
                words.get_mut(usize::from(slot_of(word.to_string().as_bytes())))
            {
                *place = Some(word);
                missing -= 1;
                if missing == 0 {
                    break;
                }
            }
        }
        words.into_iter().map(Option::unwrap_or_default).collect()
    });
    words.get(usize::from(slot)).copied().unwrap_or_default()
}

fn tag(key: &[u8]) -> &[u8] {
    let Some(open) = key.iter().position(|&byte| byte == b'{') else { return key };
    let inner = key.get(open + 1..).unwrap_or_default();
    match inner.iter().position(|&byte| byte == b'}') {
        Some(length) if length > 0 => &inner[..length],
        _ => key,
    }
}

/// CRC-16/XMODEM, as the cluster specification demands.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, &byte| {
        let index = usize::from((crc >> 8) ^ u16::from(byte));
        (crc << 8) ^ TABLE[index & 0xff]
    })
}

const TABLE: [u16; 256] = table();

const fn table() -> [u16; 256] {
    let mut table = [0; 256];
    let mut index: u16 = 0;
    while index < 256 {
        let mut crc = index << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[index as usize] = crc;
        index += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_slot_has_a_word_of_its_own() {
        for slot in 0..SLOTS {
            assert_eq!(slot_of(word_in(slot).to_string().as_bytes()), slot);
        }
    }

    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        // `CLUSTER KEYSLOT`
        assert_eq!(slot_of(b"foo"), 12182);
        assert_eq!(slot_of(b"hello"), 866);
        assert_eq!(slot_of(b"{foo}.bar"), 12182);
        assert_eq!(slot_of(b"a{foo}b"), 12182);
        // Only a tag that is not empty counts, and only the first.
        assert_eq!(slot_of(b"{}foo"), crc16(b"{}foo") % SLOTS);
        assert_eq!(slot_of(b"foo{"), crc16(b"foo{") % SLOTS);
        assert_eq!(slot_of(b"x{foo}{bar}"), 12182);
    }
}
