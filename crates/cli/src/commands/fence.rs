//! `fence`: refuses what comes with a stale token.

use std::ffi::OsStr;
use std::os::fd::AsFd;

use leasehold_core::BadName;
use leasehold_fence::file::FileFence;
use leasehold_fence::{Access, Resource};
use leasehold_supervise::{Event, Front, How, Plan, Start};

use crate::args::{Common, Fence, FenceCheck, FencePut, FenceRun, Token};
use crate::commands::run::{find, is_from_keyboard, not_started};
use crate::context::Context;
use crate::exit::{Code, End, usage};
use crate::marks::refusal;

pub(crate) fn fence(common: &Common, args: &Fence) -> Result<End, End> {
    let context = Context::new(common)?;
    match args {
        Fence::Run(args) => run(&context, args),
        Fence::Put(args) => put(&context, args),
        Fence::Check(args) => check(&context, args),
    }
}

fn run(context: &Context, args: &FenceRun) -> Result<End, End> {
    let of = resource(context, &args.resource, args.slot)?;
    let program = find(args.command.first().map_or(OsStr::new(""), |first| first))?;
    let gate = context.gate()?;
    // Signals still end this process as they do by default; there is nothing to undo.
    let passage =
        gate.enter(&of, access(&args.token), args.token.token, context.timeout).map_err(refusal)?;
    let mut front = Front::fork(&Plan::new(program, args.command.clone()))?;
    // The command's tree has the passage too: it ends when the last of them has.
    front.start(&Start {
        descriptors: vec![passage.as_fd()],
        release_stdio: true,
        ..Start::default()
    })?;
    drop(passage);
    let ended = loop {
        if let Event::Ended(ended) = front.wait(None)? {
            break ended;
        }
    };
    Ok(match ended.how {
        How::Exited(code) => End::Exit(code),
        How::Signaled(signal) if is_from_keyboard(signal) => End::Signal(signal),
        How::Signaled(signal) => End::by_signal(signal),
        How::StartFailed(errno) => not_started(&args.command, errno, ended.how),
        How::StillRunning | How::Unknown => {
            End::Fail(Code::Bug, "nobody saw how the command ended".into())
        }
    })
}

fn put(context: &Context, args: &FencePut) -> Result<End, End> {
    // Rust reads nothing from a closed stdin, and says that it ended: the file would be emptied.
    if leasehold_supervise::closed_at_start()[0] {
        return Err(usage("stdin is closed: want the new content of the file there"));
    }
    let gate = context.gate()?;
    let fence = FileFence::in_gate(&args.file, gate).with_wait(context.timeout);
    let stdin = std::io::stdin().lock();
    fence.put(stdin, access(&args.token), args.token.token).map_err(refusal)?;
    Ok(End::DONE)
}

fn check(context: &Context, args: &FenceCheck) -> Result<End, End> {
    let of = resource(context, &args.resource, args.slot)?;
    let gate = context.gate()?;
    let token = args.token.token;
    gate.check(&of, access(&args.token), token, context.timeout).map_err(refusal)?;
    context.voice.warn(format_args!(
        "token {token} would be accepted now, which alone is a race: a newer one may come next"
    ));
    Ok(End::DONE)
}

fn access(token: &Token) -> Access {
    if token.shared { Access::Shared } else { Access::Exclusive }
}

fn resource(context: &Context, name: &OsStr, slot: Option<u32>) -> Result<Resource, End> {
    if name.to_str().is_none() {
        return Err(usage(BadName::Utf8.to_string()));
    }
    let named = context.names.full(name)?;
    let of = match slot {
        Some(slot) => Resource::slot(named.full.as_str(), slot),
        None => Resource::new(named.full.as_str()),
    };
    of.map_err(refusal)
}
