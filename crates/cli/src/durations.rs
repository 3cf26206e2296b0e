//! Spans as people write and read them.

use std::time::{Duration, SystemTime};

/// Reads `500ms`, `30s`, `5m`, `1h30m`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text)
        .map_err(|_| "want numbers with units, such as 500ms, 30s, 5m or 1h30m".to_string())
}

/// As [`duration`], but not nothing.
pub(crate) fn some_duration(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("too short: want at least 1ms".to_string()),
        span => Ok(span),
    }
}

/// A span for people: the two largest units that say something, `1h 30m`, `12s`, `350ms`.
pub(crate) fn brief(span: Duration) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")];
    let secs = span.as_secs();
    if secs == 0 {
        return format!("{}ms", span.subsec_millis());
    }
    let Some(at) = UNITS.iter().position(|(size, _)| secs >= *size) else {
        return format!("{secs}s");
    };
    let (size, unit) = UNITS[at];
    let first = format!("{}{unit}", secs / size);
    match UNITS.get(at + 1) {
        Some((next, unit)) if secs % size / next > 0 => {
            format!("{first} {}{unit}", secs % size / next)
        }
        _ => first,
    }
}

/// Whole milliseconds, for programs.
pub(crate) fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// The moment `ago` before now, in RFC 3339.
pub(crate) fn rfc3339_ago(ago: Duration) -> String {
    let at = SystemTime::now().checked_sub(ago).unwrap_or(SystemTime::UNIX_EPOCH);
    rfc3339(at.max(SystemTime::UNIX_EPOCH))
}

/// A moment in RFC 3339, to the millisecond.
pub(crate) fn rfc3339(at: SystemTime) -> String {
    humantime::format_rfc3339_millis(at).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_people_write_them() {
        for (text, ms) in [
            ("500ms", 500),
            ("30s", 30_000),
            ("5m", 300_000),
            ("1h30m", 5_400_000),
            ("1h 30m", 5_400_000),
            ("2d", 172_800_000),
            ("0s", 0),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for bad in ["", "30", "abc", "-5s", "5 lightyears", "1h-3m", "99999999999999999999s"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn brief_spans_say_two_units() {
        for (ms, text) in [
            (0, "0ms"),
            (350, "350ms"),
            (12_000, "12s"),
            (60_000, "1m"),
            (61_000, "1m 1s"),
            (3_600_000, "1h"),
            (3_601_000, "1h"),
            (5_400_000, "1h 30m"),
            (90_000_000, "1d 1h"),
        ] {
            assert_eq!(brief(Duration::from_millis(ms)), text);
        }
    }
}
