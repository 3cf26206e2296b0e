//! What this process found when it began, before Rust's runtime changed it: the runtime ignores
//! SIGPIPE and opens `/dev/null` over closed descriptors 0 to 2 before `main`.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};

/// What was found before the runtime began.
#[derive(Clone, Copy)]
pub(crate) struct Inherited {
    /// Which of descriptors 0, 1 and 2 were closed.
    pub(crate) closed: [bool; 3],
    /// What to do on SIGPIPE: `SIG_DFL` or `SIG_IGN`.
    pub(crate) sigpipe: libc::sighandler_t,
    /// What to do on SIGCHLD.
    pub(crate) sigchld: libc::sighandler_t,
    /// The blocked signals.
    pub(crate) mask: libc::sigset_t,
}

struct Cell(UnsafeCell<MaybeUninit<Inherited>>);

// SAFETY: it is written once, by the constructor, before `main` and before any other thread, and
// only read afterwards; `READ` orders the two.
unsafe impl Sync for Cell {}

static FOUND: Cell = Cell(UnsafeCell::new(MaybeUninit::uninit()));
static READ: AtomicBool = AtomicBool::new(false);

// SAFETY: the section holds pointers to functions that the C runtime calls before `main`, which is
// what this is; the function touches nothing that the runtime has yet to set up.
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = look;

extern "C" fn look() {
    if !READ.load(Ordering::Acquire) {
        // SAFETY: `look` runs before `main`, on the only thread (see `inherited` for the other
        // caller), so that nobody reads or writes the cell.
        unsafe { (*FOUND.0.get()).write(read()) };
        READ.store(true, Ordering::Release);
    }
}

fn read() -> Inherited {
    let closed = [0, 1, 2].map(|fd| {
        // SAFETY: asking for the flags of a number touches no memory.
        unsafe { libc::fcntl(fd, libc::F_GETFD) == -1 }
    });
    let mut mask = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: with no new set the call only writes the current one; all zeros is a valid set.
    let mask = unsafe {
        libc::sigprocmask(libc::SIG_SETMASK, std::ptr::null(), mask.as_mut_ptr());
        mask.assume_init()
    };
    Inherited {
        closed,
        sigpipe: super::signals::disposition(libc::SIGPIPE),
        sigchld: super::signals::disposition(libc::SIGCHLD),
        mask,
    }
}

/// What was found before `main`.
pub(crate) fn inherited() -> Inherited {
    // Naming the constructor here keeps it in every program that links this function.
    std::hint::black_box(&CONSTRUCTOR);
    if !READ.load(Ordering::Acquire) {
        // A loader that runs no constructors: what is now is the best there is.
        return read();
    }
    // SAFETY: `READ` says that the constructor wrote it, and nobody writes it again.
    unsafe { (*FOUND.0.get()).assume_init() }
}
