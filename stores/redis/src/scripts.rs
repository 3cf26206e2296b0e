//! The scripts; each verb's file follows the desk that all of them decide at.

use crate::link::Script;

macro_rules! deciding {
    ($name:ident, $file:literal) => {
        pub(crate) static $name: Script = Script::new(
            $file,
            concat!(include_str!("desk.lua"), include_str!("queue.lua"), include_str!($file)),
        );
    };
}

/// What happens most is decided before the desk is set up.
macro_rules! usual {
    ($name:ident, $first:literal, $file:literal) => {
        pub(crate) static $name: Script = Script::new(
            $file,
            concat!(
                include_str!($first),
                include_str!("desk.lua"),
                include_str!("queue.lua"),
                include_str!($file)
            ),
        );
    };
}

usual!(ENTER, "enter_fast.lua", "enter.lua");
usual!(RENEW, "renew_fast.lua", "renew.lua");
usual!(LEAVE, "leave_fast.lua", "leave.lua");
deciding!(WRITE, "write.lua");
deciding!(BREAK, "break.lua");
deciding!(CLEAN, "clean.lua");
deciding!(INSPECT, "inspect.lua");
deciding!(JOIN, "enter.lua");
deciding!(CONFIRM, "confirm.lua");
deciding!(WITHDRAW, "withdraw.lua");
pub(crate) static READ: Script = Script::new("read.lua", include_str!("read.lua"));
pub(crate) static PROBE: Script = Script::new("probe.lua", include_str!("probe.lua"));
