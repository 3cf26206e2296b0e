//! The only place with `unsafe`: safe functions over what the operating system offers. One
//! module a system, all with the same functions.

#![allow(unsafe_code, reason = "fork, execve, signals and descriptors are the system's own")]

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
pub(crate) use linux::*;

#[cfg(not(target_os = "linux"))]
compile_error!(
    "leasehold-supervise supports Linux only so far: another system needs a module beside \
     src/sys/linux that finds and ends a process tree, and a timer that counts suspend"
);
