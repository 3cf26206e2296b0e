//! The scripts; each verb's file follows the desk that all of them decide at.

use crate::link::{Script, Usual};

macro_rules! deciding {
    ($name:ident, $file:literal) => {
        pub(crate) static $name: Script = Script::new(
            $file,
            concat!(include_str!("desk.lua"), include_str!("queue.lua"), include_str!($file)),
        );
    };
}

deciding!(ENTER, "enter.lua");
deciding!(RENEW, "renew.lua");
deciding!(LEAVE, "leave.lua");
deciding!(WRITE, "write.lua");
deciding!(BREAK, "break.lua");
deciding!(CLEAN, "clean.lua");
deciding!(INSPECT, "inspect.lua");
deciding!(CONFIRM, "confirm.lua");
deciding!(WITHDRAW, "withdraw.lua");
pub(crate) static READ: Script = Script::new("read.lua", include_str!("read.lua"));
pub(crate) static PROBE: Script = Script::new("probe.lua", include_str!("probe.lua"));

/// What happens most is tried without the desk, and many at once where many come at once.
pub(crate) static ENTER_USUAL: Usual = Usual {
    one: Script::new("enter_usual.lua", include_str!("enter_usual.lua")),
    many: Script::new("enter_many.lua", include_str!("enter_many.lua")),
};
pub(crate) static LEAVE_USUAL: Usual = Usual {
    one: Script::new("leave_usual.lua", include_str!("leave_usual.lua")),
    many: Script::new("leave_many.lua", include_str!("leave_many.lua")),
};
pub(crate) static RENEW_USUAL: Script =
    Script::new("renew_many.lua", include_str!("renew_many.lua"));
