//! The same contract over stores behind servers: real ones, that are killed, cut off and let back.
//!
//! Each store says how it is named and started; what must hold is said once.

mod etcd;
mod foreign;
mod mysql;
mod postgres;
mod redis;
mod zookeeper;

use std::fs;
use std::net::SocketAddr;
use std::process::Command;

use leasehold_testkit::proxy::Proxy;
use leasehold_testkit::server::Server;
use rustix::process::Signal;

use crate::world::{Ran, Started, World, eventually, exists, finish, lives, start, start_as_it_is};

/// A store behind a server of its own, which asks for a password.
pub(crate) trait Site: Send + Sync {
    /// The server.
    fn server(&self) -> &Server;
    /// The store's URL at this address, without its password.
    fn url(&self, addr: SocketAddr) -> String;
    /// The password; it holds `s3cr3t`.
    fn password(&self) -> String;
    /// Whether another process may enter a lock again.
    fn lets_others_reenter(&self) -> bool {
        true
    }
    /// Whether a claim outlives the process that made it.
    fn keeps_claims(&self) -> bool {
        true
    }
}

/// The tests of one store: on a server that they share, or on one of their own that they hurt.
macro_rules! suite {
    ($shared:expr, $own:expr) => {
        $crate::servers::suite!(@ $shared,
            runs_exclude_each_other_and_tokens_rise,
            busy_is_75_and_show_tells_who_holds,
            a_wrong_password_is_78_and_shown_nowhere,
            each_source_gives_the_password,
            the_command_gets_the_url_without_its_secret,
            scripts_acquire_renew_check_and_release,
            an_operator_lists_and_breaks,
            a_store_that_is_away_is_69_within_the_timeout,
            a_store_that_hangs_is_69_within_the_timeout,
            a_wait_tries_a_store_that_is_away_until_its_end,
            a_signal_leaves_off_while_the_store_is_away,
            a_store_lost_while_waiting_is_told_and_tried_on,
            a_holder_that_is_killed_frees_it_with_its_term,
            no_process_of_a_run_is_left,
            the_command_has_no_descriptor_of_the_store,
            a_nested_run_of_the_same_name_does_not_wait_for_itself
        );
        $crate::servers::suite!(@ $own, a_dead_server_ends_the_command_before_its_right_ends);
    };
    (@ $site:expr, $($case:ident),*) => {
        $(
            #[test]
            fn $case() {
                $crate::servers::$case(&$site);
            }
        )*
    };
}
pub(crate) use suite;

/// A world in which the variables name the store, in a namespace of the test's own.
struct Remote<'a> {
    world: World,
    site: &'a dyn Site,
}

impl<'a> Remote<'a> {
    fn new(site: &'a dyn Site, namespace: &str) -> Remote<'a> {
        Remote::at(site, site.server().addr(), namespace)
    }

    fn at(site: &'a dyn Site, addr: SocketAddr, namespace: &str) -> Remote<'a> {
        let vars = [
            ("LEASEHOLD_STORE", site.url(addr)),
            ("LEASEHOLD_NAMESPACE", namespace.to_string()),
            ("LEASEHOLD_STORE_PASSWORD", site.password()),
        ];
        Remote { world: World::with(&vars), site }
    }

    /// The same world, with its store at another address.
    fn by(&self, proxy: &Proxy, args: &str, more: &[&str]) -> Command {
        let mut command = self.world.leasehold(args, more);
        command.env("LEASEHOLD_STORE", self.site.url(proxy.addr()));
        command
    }

    /// A run that holds `n` until the file `go` is there.
    fn holder(&self) -> Started {
        let script = "until test -e go; do sleep 0.01; done";
        let holder = self.world.start("run n --holder someone --", &["sh", "-c", script]);
        self.world.held("n");
        holder
    }

    fn go(&self) {
        fs::write(self.world.path("go"), "").unwrap();
    }

    fn assert_silent(&self, ran: &Ran) {
        for text in [&ran.out, &ran.err] {
            assert!(!text.contains("s3cr3t"), "{ran:?}");
        }
    }
}

pub(crate) fn runs_exclude_each_other_and_tokens_rise(site: &dyn Site) {
    let remote = Remote::new(site, "exclude");
    let world = &remote.world;
    fs::write(world.path("n"), "0\n").unwrap();
    let ran = world.sh("seq 60 | xargs -P 8 -I{} $L run ctr -- sh -c \
         'n=$(cat n); echo $LEASEHOLD_TOKEN >>tokens; echo $((n+1)) > n'");
    assert_eq!(ran.ended(0).err, "");
    assert_eq!(world.read("n"), "60\n");
    let tokens = world.read("tokens");
    let tokens: Vec<u64> = tokens.lines().map(|line| line.parse().unwrap()).collect();
    assert!(tokens.windows(2).all(|pair| pair[0] < pair[1]), "{tokens:?}");
    assert!(tokens.iter().all(|token| *token < 1 << 53));
}

pub(crate) fn busy_is_75_and_show_tells_who_holds(site: &dyn Site) {
    let remote = Remote::new(site, "busy");
    let world = &remote.world;
    let holder = remote.holder();
    for args in ["run n --no-wait -- touch never", "run n --wait 3s -- touch never"] {
        let ran = world.run(args, &[]).ended(75);
        assert!(ran.err.contains("held by someone"), "{ran:?}");
        assert_eq!(ran.err.lines().count(), 1, "{ran:?}");
    }
    assert!(!exists(&world.path("never")));
    world.run("run n --no-wait --busy-exit-code 3 -- true", &[]).ended(3);
    let shown = world.shown("n");
    assert_eq!(shown["holders"][0]["holder"], "someone", "{shown}");
    assert_eq!(shown["store"].as_str(), Some(site.url(site.server().addr()).as_str()));
    world.run("-q show n", &[]).ended(0);
    let waiter = world.start("run n --", &["sh", "-c", "echo $LEASEHOLD_TOKEN >token"]);
    world.waiters("n", 1);
    remote.go();
    holder.finish().ended(0);
    waiter.finish().ended(0);
    assert!(world.line("token").parse::<u64>().unwrap() > 0);
    world.run("-q show n", &[]).ended(1);
}

pub(crate) fn a_wrong_password_is_78_and_shown_nowhere(site: &dyn Site) {
    let remote = Remote::new(site, "wrong");
    let world = &remote.world;
    // Some servers keep no list of users: there, what one has made is another's to be refused.
    world.run("run n -- true", &[]).ended(0);
    for args in ["run n -- touch never", "-v ls", "show n", "acquire n --wait 5s"] {
        let mut command = world.leasehold(args, &[]);
        command.env("LEASEHOLD_STORE_PASSWORD", "wr0ng-s3cr3t");
        let ran = finish(command).ended(78);
        remote.assert_silent(&ran);
        assert_eq!(ran.err.lines().count(), 1, "{ran:?}");
    }
    assert!(!exists(&world.path("never")));
}

pub(crate) fn each_source_gives_the_password(site: &dyn Site) {
    let remote = Remote::new(site, "sources");
    let world = &remote.world;
    fs::write(world.path("file"), site.password() + "\n").unwrap();
    fs::create_dir(world.path("credentials")).unwrap();
    fs::write(world.path("credentials/leasehold"), site.password()).unwrap();
    let sources = [
        vec![("LEASEHOLD_STORE_PASSWORD", site.password())],
        vec![("LEASEHOLD_STORE_PASSWORD_FILE", "file".into())],
        vec![("CREDENTIALS_DIRECTORY", "credentials".into())],
        // The first of them wins.
        vec![
            ("LEASEHOLD_STORE_PASSWORD_FILE", "file".into()),
            ("CREDENTIALS_DIRECTORY", "missing".into()),
        ],
    ];
    for source in sources {
        for args in ["run n -- true", "ls"] {
            let mut command = world.leasehold(args, &[]);
            command.env_remove("LEASEHOLD_STORE_PASSWORD").envs(source.clone());
            let ran = finish(command).ended(0);
            assert_eq!(ran.err, "");
        }
    }
}

pub(crate) fn the_command_gets_the_url_without_its_secret(site: &dyn Site) {
    let remote = Remote::new(site, "url");
    let world = &remote.world;
    let bare = site.url(site.server().addr());
    let whole = with_password(&bare, &site.password());
    let script = "echo $LEASEHOLD_STORE; $L run m -- sh -c 'echo $LEASEHOLD_STORE'";
    let told = |command: Command| finish(command).ended(0);
    // From --store: without, and with a warning.
    let mut command = world.leasehold("--store", &[&whole, "run", "n", "--", "sh", "-c", script]);
    let ran = told(command);
    remote.assert_silent(&ran);
    assert!(ran.err.contains("password in --store"), "{ran:?}");
    assert_eq!(ran.out, format!("{bare}\n{bare}\n"));
    // The environment's own: unchanged, so that nested calls work.
    command = world.leasehold("run n --", &["sh", "-c", script]);
    command.env("LEASEHOLD_STORE", &whole).env_remove("LEASEHOLD_STORE_PASSWORD");
    let ran = told(command);
    assert_eq!(ran.err, "");
    assert_eq!(ran.out, format!("{whole}\n{whole}\n"));
}

fn with_password(url: &str, password: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap();
    let password = password.replace(' ', "%20");
    match rest.split_once('@') {
        Some((user, rest)) => format!("{scheme}://{user}:{password}@{rest}"),
        None => format!("{scheme}://:{password}@{rest}"),
    }
}

pub(crate) fn scripts_acquire_renew_check_and_release(site: &dyn Site) {
    let remote = Remote::new(site, "scripts");
    let world = &remote.world;
    if !site.keeps_claims() {
        let ran = world.run("acquire n", &[]).ended(64);
        assert!(ran.err.contains("leasehold hold"), "{ran:?}");
        let ran = world.run("run n --hold-at-least 1m -- touch never", &[]).ended(64);
        assert!(ran.err.contains("--hold-at-least") && !exists(&world.path("never")), "{ran:?}");
        return;
    }
    let acquired = world.run("acquire n --ttl 1m", &[]).ended(0).json();
    let id = acquired["claim"].as_str().unwrap();
    world.run("run n --no-wait -- true", &[]).ended(75);
    world.run("check n --claim", &[id]).ended(0);
    world.run("renew n --ttl 10m --claim", &[id]).ended(0);
    let left = world.shown("n")["holders"][0]["expires_in_ms"].as_u64().unwrap();
    assert!(left > 120_000, "{left}");
    world.run("release n --claim", &[id]).ended(0);
    let next = world.run("acquire n", &[]).ended(0).json();
    assert!(next["token"].as_u64() > acquired["token"].as_u64());
    for verb in ["check", "renew", "release"] {
        world.run(&format!("{verb} n --claim"), &[id]).ended(76);
    }
    world.run("release n --claim", &[next["claim"].as_str().unwrap()]).ended(0);
    world.run("run m --hold-at-least 5m -- true", &[]).ended(0);
    world.run("run m --no-wait -- true", &[]).ended(75);
}

pub(crate) fn an_operator_lists_and_breaks(site: &dyn Site) {
    let remote = Remote::new(site, "operator");
    let world = &remote.world;
    let mut command = world.leasehold("run", &["a b/ü", "--ttl", "6s", "--", "sleep", "1000"]);
    command.env("LEASEHOLD_NAMESPACE", "operator");
    let holder = start(command);
    world.held("a b/ü");
    let listed = world.run("ls a --json", &[]).ended(0);
    assert_eq!(listed.out.lines().count(), 1, "{listed:?}");
    assert_eq!(listed.json()["name"], "a b/ü");
    world.run("break --yes", &["a b/ü"]).ended(0);
    let ran = holder.finish().ended(76);
    assert!(ran.err.contains("broke it"), "{ran:?}");
    world.run("run --wait 30s", &["a b/ü", "--", "true"]).ended(0);
    world.run("gc --dry-run", &[]).ended(0);
}

/// A run with a longer timeout, begun before, still tries when the one with a short one has ended.
fn ends_within_its_timeout(remote: &Remote<'_>, proxy: &Proxy) {
    let slow = start(remote.by(proxy, "--timeout 100s run n -- true", &[]));
    for args in [
        "--timeout 300ms run n -- touch never",
        "--timeout 300ms run n --no-wait -- touch never",
        "--timeout 10s run n --wait 300ms -- touch never",
        "--timeout 300ms show n",
        "--timeout 300ms ls",
    ] {
        let ran = finish(remote.by(proxy, args, &[])).ended(69);
        remote.assert_silent(&ran);
        assert_eq!(ran.err.lines().count(), 1, "{args}: {ran:?}");
        let port = proxy.port().to_string();
        assert!(ran.err.contains(&port), "{args}: it says where: {ran:?}");
    }
    assert!(lives(slow.pid()) && !exists(&remote.world.path("never")));
}

pub(crate) fn a_store_that_is_away_is_69_within_the_timeout(site: &dyn Site) {
    let remote = Remote::new(site, "away");
    let proxy = Proxy::start(site.server().addr());
    proxy.refuse(true);
    ends_within_its_timeout(&remote, &proxy);
}

pub(crate) fn a_store_that_hangs_is_69_within_the_timeout(site: &dyn Site) {
    let remote = Remote::new(site, "hangs");
    let proxy = Proxy::start(site.server().addr());
    proxy.pause();
    ends_within_its_timeout(&remote, &proxy);
}

pub(crate) fn a_wait_tries_a_store_that_is_away_until_its_end(site: &dyn Site) {
    let remote = Remote::new(site, "tries");
    let world = &remote.world;
    let proxy = Proxy::start(site.server().addr());
    proxy.refuse(true);
    let ran = finish(remote.by(&proxy, "--timeout 1s run n --wait 4s -- touch never", &[]));
    let ran = ran.ended(69);
    assert!(ran.err.contains("going on trying") && ran.err.lines().count() == 2, "{ran:?}");
    let mut command = remote.by(&proxy, "--timeout 1s run n --wait 100s -- touch done", &[]);
    command.stderr(fs::File::create(world.path("said")).unwrap());
    let waiter = start_as_it_is(command);
    assert!(world.line("said").contains("going on trying"), "{}", world.read("said"));
    proxy.refuse(false);
    waiter.finish().ended(0);
    assert!(exists(&world.path("done")) && !exists(&world.path("never")));
}

pub(crate) fn a_signal_leaves_off_while_the_store_is_away(site: &dyn Site) {
    let remote = Remote::new(site, "signal");
    let proxy = Proxy::start(site.server().addr());
    proxy.pause();
    for args in ["run n --wait 1h -- true", "--timeout 1h run n -- true", "--timeout 1h acquire n"]
    {
        let before = proxy.accepted();
        let waiter = start(remote.by(&proxy, args, &[]));
        eventually("it connects", || (proxy.accepted() > before).then_some(()));
        waiter.signal(Signal::TERM);
        waiter.finish().ended(143);
    }
}

pub(crate) fn a_store_lost_while_waiting_is_told_and_tried_on(site: &dyn Site) {
    let remote = Remote::new(site, "lost");
    let world = &remote.world;
    let holder = remote.holder();
    let proxy = Proxy::start(site.server().addr());
    let mut command = remote.by(&proxy, "--timeout 2s run n -- touch done", &[]);
    command.stderr(fs::File::create(world.path("said")).unwrap());
    let waiter = start_as_it_is(command);
    world.waiters("n", 1);
    proxy.refuse(true);
    proxy.sever();
    assert!(world.line("said").contains("going on trying"), "{}", world.read("said"));
    proxy.refuse(false);
    remote.go();
    holder.finish().ended(0);
    waiter.finish().ended(0);
    assert!(exists(&world.path("done")));
}

pub(crate) fn a_holder_that_is_killed_frees_it_with_its_term(site: &dyn Site) {
    let remote = Remote::new(site, "killed");
    let world = &remote.world;
    let script = "echo $$ >pid; exec sleep 1000";
    let holder = world.start("run n --ttl 6s --", &["sh", "-c", script]);
    let pid: i32 = world.line("pid").parse().unwrap();
    holder.signal(Signal::KILL);
    holder.finish().ended(137);
    eventually("its command is killed", || (!lives(pid)).then_some(()));
    world.run("run n --wait 60s -- true", &[]).ended(0);
}

pub(crate) fn no_process_of_a_run_is_left(site: &dyn Site) {
    let remote = Remote::new(site, "left");
    let world = &remote.world;
    let started = world.start("run n --", &["sh", "-c", "until test -e go; do sleep 0.01; done"]);
    world.held("n");
    let keeper = crate::world::keeper(started.pid());
    remote.go();
    started.finish().ended(0);
    eventually("the keeper is gone", || (!lives(keeper)).then_some(()));
    world.run("run n --no-wait -- true", &[]).ended(0);
}

pub(crate) fn the_command_has_no_descriptor_of_the_store(site: &dyn Site) {
    let remote = Remote::new(site, "descriptors");
    let world = &remote.world;
    let list = ["sh", "-c", "exec ls /proc/self/fd"];
    let mut bare = world.program(list[0]);
    bare.args(&list[1..]);
    let bare = finish(bare).ended(0).out;
    assert_eq!(world.run("run n --", &list).ended(0).out, bare);
}

pub(crate) fn a_nested_run_of_the_same_name_does_not_wait_for_itself(site: &dyn Site) {
    let remote = Remote::new(site, "nested");
    let world = &remote.world;
    let ran = world.sh("$L run n -- sh -c '$L run n -- touch never; echo $?'").ended(0);
    assert_eq!(ran.out, "64\n");
    assert!(ran.err.contains("--reenter") && !exists(&world.path("never")), "{ran:?}");
    let ran = world.sh("$L run n -- sh -c 'echo $LEASEHOLD_TOKEN; \
         $L run n --reenter -- sh -c \"echo \\$LEASEHOLD_TOKEN\"; echo $?'");
    let ran = ran.ended(0);
    let lines: Vec<&str> = ran.out.lines().collect();
    if site.lets_others_reenter() {
        assert_eq!((lines[0], lines[2]), (lines[1], "0"), "{ran:?}");
    } else {
        assert_eq!(lines[1..], ["64"], "{ran:?}");
        assert!(ran.err.contains("no other process"), "{ran:?}");
    }
}

/// The server is killed for good: the command has ended when less than a term has passed.
pub(crate) fn a_dead_server_ends_the_command_before_its_right_ends(site: &dyn Site) {
    let remote = Remote::new(site, "dead");
    let world = &remote.world;
    let ttl_ns = 9_000_000_000_u64;
    let script = "echo $$ >pid; trap '' TERM; while :; do date +%s%N >>beats; sleep 0.02; done";
    let run = "run n --ttl 9s --grace 500ms --";
    let started = world.start(run, &["sh", "-c", script]);
    let pid: i32 = world.line("pid").parse().unwrap();
    eventually("a renewal", || {
        let left = world.shown("n")["holders"][0]["expires_in_ms"].as_u64()?;
        let beats = world.read("beats").lines().count();
        (left > 5_000 && beats > 50).then_some(())
    });
    let now = || {
        let since = std::time::UNIX_EPOCH.elapsed().unwrap();
        u64::try_from(since.as_nanos()).unwrap()
    };
    let last_answer_at_most = now();
    site.server().kill9();
    let ran = started.finish().ended(76);
    remote.assert_silent(&ran);
    assert!(!lives(pid), "it was dead before leasehold was");
    let beats = world.read("beats");
    let last: u64 = beats.lines().next_back().unwrap().parse().unwrap();
    assert!(last < last_answer_at_most + ttl_ns, "it ran on into another's right");
}
