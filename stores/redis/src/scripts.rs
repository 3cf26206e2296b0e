//! The scripts; each verb's file follows the desk that all of them decide at.

use crate::link::Script;

macro_rules! deciding {
    ($name:ident, $file:literal) => {
        pub(crate) static $name: Script =
            Script::new($file, concat!(include_str!("desk.lua"), include_str!($file)));
    };
}

deciding!(ENTER, "enter.lua");
deciding!(RENEW, "renew.lua");
deciding!(LEAVE, "leave.lua");
deciding!(WRITE, "write.lua");
deciding!(BREAK, "break.lua");
deciding!(CLEAN, "clean.lua");
deciding!(INSPECT, "inspect.lua");
pub(crate) static READ: Script = Script::new("read.lua", include_str!("read.lua"));
pub(crate) static PROBE: Script = Script::new("probe.lua", include_str!("probe.lua"));
