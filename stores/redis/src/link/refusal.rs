//! What a server's refusals mean.

use leasehold_core::{Error, ErrorKind};

/// What is being done, in the words that stand first in an error; the verb puts its own in.
pub(crate) const DOING: &str = "use the store";

/// What a refusal asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The server does not know the script: load it and send the same again.
    NoScript,
    /// Another node has the slot, for good.
    Moved { slot: u16, host: String, port: u16 },
    /// Another node is taking the slot over: ask it this once.
    Ask { host: String, port: u16 },
    /// The keys are on their way from one node to another, or the cluster has no owner for them.
    NotNow,
    /// This is not, or no longer, a master.
    Demoted,
    /// Only the caller can do something about it.
    Final,
}

/// What to do about a refusal.
pub(crate) fn refusal(text: &str) -> Refusal {
    let mut words = text.split(' ');
    match words.next().unwrap_or_default() {
        "NOSCRIPT" => Refusal::NoScript,
        "MOVED" => match (words.next().and_then(|slot| slot.parse().ok()), address(words.next())) {
            (Some(slot), Some((host, port))) => Refusal::Moved { slot, host, port },
            _ => Refusal::Final,
        },
        "ASK" => match address(words.nth(1)) {
            Some((host, port)) => Refusal::Ask { host, port },
            None => Refusal::Final,
        },
        "TRYAGAIN" | "CLUSTERDOWN" => Refusal::NotNow,
        "READONLY" | "MASTERDOWN" | "UNBLOCKED" => Refusal::Demoted,
        _ => Refusal::Final,
    }
}

/// `host:port`, where the host may be empty (the one that was asked) or an IPv6 address.
fn address(word: Option<&str>) -> Option<(String, u16)> {
    let (host, port) = word?.rsplit_once(':')?;
    Some((host.to_owned(), port.parse().ok()?))
}

/// The error that a refusal is for a user.
pub(crate) fn error(text: &str) -> Error {
    let error = told(text);
    // What fails inside a script may have done a part of it.
    if text.contains("script: ") || text.contains("user_script") {
        error.maybe_applied()
    } else {
        error
    }
}

fn told(text: &str) -> Error {
    use ErrorKind::{Bug, Config, Permission, Unavailable, Usage};
    let made = |kind, detail: &str| Error::new(kind, DOING, format!("{detail} ({text})"));
    match text.split(' ').next().unwrap_or_default() {
        "NOAUTH" => made(Permission, "the server asks for a password")
            .advise("put user and password into the URL: redis://user:password@host"),
        "WRONGPASS" => made(Permission, "the server refuses this user or password")
            .advise("check the user and the password in the URL"),
        "NOPERM" => made(Permission, "the server does not allow this user to do that").advise(
            "have the user allowed what leasehold needs: \
             ACL SETUSER name +@all -@dangerous +info +role ~* &*",
        ),
        "DENIED" => made(Permission, "the server is in protected mode")
            .advise("set a password or an address to bind to at the server"),
        "READONLY" => made(Unavailable, "the server is a read-only replica")
            .advise("name the master, or the Sentinels: redis+sentinel://host,host/master"),
        "MASTERDOWN" => made(Unavailable, "the server is a replica cut off from its master")
            .advise("name the master, or the Sentinels: redis+sentinel://host,host/master"),
        "UNBLOCKED" => made(Unavailable, "the server has just become a replica").maybe_applied(),
        "LOADING" => made(Unavailable, "the server is still loading its data"),
        "BUSY" => made(Unavailable, "the server is busy with somebody's long script")
            .advise("SCRIPT KILL at the server ends it"),
        "OOM" => made(Unavailable, "the server is at its maxmemory")
            .advise("raise maxmemory, or remove other data; releases and renewals still work"),
        "NOREPLICAS" => made(Unavailable, "the server has too few replicas in touch to write")
            .advise("look at the replicas and at min-replicas-to-write"),
        "MISCONF" => made(Unavailable, "the server cannot save its data and refuses writes")
            .advise("look at the server's log and disk"),
        "CLUSTERDOWN" => made(Unavailable, "the cluster does not serve this slot now")
            .advise("look at CLUSTER INFO"),
        "TRYAGAIN" => made(Unavailable, "the resource's slot is on its way to another node"),
        "MOVED" | "ASK" => made(Config, "the server is part of a cluster")
            .advise("say so in the URL: redis+cluster://host,host"),
        "CROSSSLOT" => made(Bug, "keys of one resource lie in different slots")
            .advise("where this is no cluster of its own, look at the proxy before it"),
        "WRONGTYPE" => made(Usage, "something else than a lock is kept under this name")
            .advise("choose another name"),
        "NOSCRIPT" => made(Config, "the server forgets scripts as soon as they are loaded")
            .advise("a proxy before it may send them elsewhere; reach the server itself"),
        "NOPROTO" => made(Config, "the server does not speak this protocol"),
        "ERR" => generic(text),
        _ => made(Bug, "the server refused what was asked of it"),
    }
}

/// Refusals that have no word of their own.
fn generic(text: &str) -> Error {
    let made = |kind, detail: &str| Error::new(kind, DOING, format!("{detail} ({text})"));
    let says = |words: &str| text.contains(words);
    if says("max number of clients") {
        made(ErrorKind::Unavailable, "the server has all the connections it allows")
            .advise("raise maxclients at the server")
    } else if says("unknown command") || says("disabled") && says("command") {
        made(ErrorKind::Config, "the server or a proxy before it lacks a command")
            .advise("leasehold needs scripts (EVALSHA): reach a Redis or Valkey itself")
    } else if says("without any password configured") || says("no password is set") {
        made(ErrorKind::Permission, "the server has no password, but the URL names one")
            .advise("leave the password out of the URL")
    } else if says("DB index") || says("SELECT is not allowed") {
        made(ErrorKind::Config, "the server has no database of this number")
            .advise("name another: redis://host/0")
    } else if says("cluster support disabled") {
        made(ErrorKind::Config, "the server is not part of a cluster")
            .advise("name it as redis://host")
    } else if says("appendonly is disabled") {
        made(ErrorKind::Config, "the server keeps no append-only file to wait for")
            .advise("set `appendonly yes` at the server, or choose another durability")
    } else if says("executing the script can't") || says("no permissions") {
        made(ErrorKind::Permission, "the server does not allow this user a command of a script")
            .advise("have the user allowed what leasehold needs: see the README of the store")
            .maybe_applied()
    } else if says("WAIT cannot be used with replica") || says("WAITAOF cannot be used with") {
        made(ErrorKind::Unavailable, "the server has become a replica")
    } else {
        made(ErrorKind::Bug, "the server refused what was asked of it")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_core::Applied;

    #[test]
    fn redirections_name_their_node() {
        let moved = refusal("MOVED 3999 127.0.0.1:6381");
        assert_eq!(moved, Refusal::Moved { slot: 3999, host: "127.0.0.1".into(), port: 6381 });
        let same_host = refusal("MOVED 1 :6381");
        assert_eq!(same_host, Refusal::Moved { slot: 1, host: String::new(), port: 6381 });
        let ask = refusal("ASK 7 fe80::1:6381");
        assert_eq!(ask, Refusal::Ask { host: "fe80::1".into(), port: 6381 });
        assert_eq!(refusal("MOVED what ever"), Refusal::Final);
        assert_eq!(refusal("READONLY You can't write"), Refusal::Demoted);
        assert_eq!(refusal("NOSCRIPT No matching script."), Refusal::NoScript);
    }

    #[test]
    fn each_refusal_has_its_kind_and_most_have_advice() {
        use ErrorKind::{Bug, Config, Permission, Unavailable, Usage};
        for (text, kind) in [
            ("NOAUTH Authentication required.", Permission),
            ("WRONGPASS invalid username-password pair", Permission),
            ("NOPERM this user has no permissions to run the 'evalsha' command", Permission),
            ("READONLY You can't write against a read only replica.", Unavailable),
            ("LOADING Redis is loading the dataset in memory", Unavailable),
            ("BUSY Redis is busy running a script.", Unavailable),
            ("OOM command not allowed when used memory > 'maxmemory'.", Unavailable),
            ("MASTERDOWN Link with MASTER is down", Unavailable),
            ("NOREPLICAS Not enough good replicas to write.", Unavailable),
            ("CLUSTERDOWN Hash slot not served", Unavailable),
            ("CROSSSLOT Keys in request don't hash to the same slot", Bug),
            ("WRONGTYPE Operation against a key holding the wrong kind of value", Usage),
            ("ERR unknown command 'EVALSHA', with args beginning with:", Config),
            ("ERR max number of clients reached", Unavailable),
            ("ERR DB index is out of range", Config),
            ("ERR This instance has cluster support disabled", Config),
            ("ERR something new", Bug),
        ] {
            let error = error(text);
            assert_eq!(error.kind(), kind, "{text}");
            assert_eq!(error.applied(), Applied::No);
            assert!(error.to_string().contains(text));
        }
    }

    #[test]
    fn what_fails_inside_a_script_may_have_done_a_part() {
        let oom = error("OOM command not allowed. script: 6e9, on @user_script:1.");
        assert_eq!((oom.kind(), oom.applied()), (ErrorKind::Unavailable, Applied::Maybe));
    }
}
