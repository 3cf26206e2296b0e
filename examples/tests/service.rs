//! The service as a process of its own: with curl, with many clients at once, killed and lost.
#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold::blocking;
use leasehold_testkit::process::Process;
use leasehold_testkit::server::postgres::Postgres;
use leasehold_testkit::server::wait_until;

const SOON: Duration = Duration::from_secs(60);
const SCHEMA: &str = "leasehold_example_service";

fn server() -> &'static Postgres {
    static SERVER: OnceLock<Postgres> = OnceLock::new();
    SERVER.get_or_init(Postgres::start)
}

/// A database of its own, and instances of the service at it.
struct Site {
    database: String,
}

struct Instance {
    process: Process,
    addr: SocketAddr,
}

impl Site {
    fn new() -> Site {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let database = format!("site{}", NUMBER.fetch_add(1, Ordering::SeqCst));
        server().create_database(&database);
        Site { database }
    }

    fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{}", server().port(), self.database)
    }

    fn launch(&self) -> Process {
        let mut command = Command::new(env!("CARGO_BIN_EXE_service"));
        Process::start(command.args([&self.url(), "127.0.0.1:0", "1000"])).unwrap()
    }

    fn start(&self) -> Instance {
        Instance::of(self.launch())
    }

    fn sql(&self, statements: &str) -> String {
        let statements = format!("SET search_path = {SCHEMA}; {statements}");
        server().sql_in(&self.database, &statements)
    }

    fn locks(&self) -> leasehold::Client {
        blocking::connect(&format!("{}?schema={SCHEMA}", self.url())).unwrap()
    }
}

impl Instance {
    /// Once it is the active one.
    fn of(process: Process) -> Instance {
        let line = process.wait_for("active on", SOON).text;
        let addr = line.split(' ').nth(2).unwrap().parse().unwrap();
        Instance { process, addr }
    }

    /// What curl prints of the answer: its head and its body.
    fn curl(&self, args: &[&str], path: &str) -> Answer {
        let url = format!("http://{}{path}", self.addr);
        let output =
            Command::new("curl").args(["-s", "-i", "-m", "60"]).args(args).arg(url).output();
        let output = output.unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((text.as_str(), ""));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        Answer { status, head: head.to_lowercase(), body: body.to_owned() }
    }

    fn order(&self, key: &str, pieces: &str) -> Answer {
        let key = format!("Idempotency-Key: \"{key}\"");
        let who = "Authorization: Bearer alice-secret";
        self.curl(&["-H", who, "-H", &key, "-d", pieces], "/orders")
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn is_replay(&self) -> bool {
        self.head.contains("idempotent-replayed: true")
    }
}

#[test]
fn with_curl_an_order_is_made_once_and_answered_the_same() {
    let site = Site::new();
    let service = site.start();
    let first = service.order("k", "3");
    assert_eq!((first.status, first.body.as_str()), (201, "order 1, 997 left\n"));
    assert!(first.head.contains("location: /orders/1") && !first.is_replay(), "{first:?}");
    let again = service.order("k", "3");
    assert_eq!((again.status, &again.body), (201, &first.body));
    assert!(again.is_replay() && again.head.contains("location: /orders/1"), "{again:?}");
    assert_eq!(service.order("k", "4").status, 422);
    assert_eq!(service.order("", "3").status, 400);
    assert_eq!(service.order("l", "5000").status, 409, "more than there is");
    let who = "Authorization: Bearer alice-secret";
    assert_eq!(service.curl(&["-H", who, "-d", "1"], "/orders").status, 400);
    assert_eq!(service.curl(&["-H", "Idempotency-Key: m", "-d", "1"], "/orders").status, 401);
    // Another customer's key of the same name is another key.
    let bob = ["-H", "Authorization: Bearer bob-secret", "-H", "Idempotency-Key: k", "-d", "1"];
    assert_eq!(service.curl(&bob, "/orders").body, "order 2, 996 left\n");
    assert_eq!(site.sql("SELECT count(*) FROM orders"), "2");
}

#[test]
fn many_clients_at_once_order_each_once() {
    let site = Site::new();
    let service = site.start();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for key in 0..10 {
                    let mut answer = service.order(&format!("key-{key}"), "1");
                    while answer.status == 409 {
                        answer = service.order(&format!("key-{key}"), "1");
                    }
                    assert_eq!(answer.status, 201, "{answer:?}");
                }
            });
        }
    });
    assert_eq!(site.sql("SELECT count(*) FROM orders"), "10");
    assert_eq!(site.sql("SELECT pieces FROM stock"), "990");
}

/// Killed while its order is under way, uncommitted: the next instance takes over, and makes it once.
#[test]
fn an_instance_killed_within_an_order_is_taken_over() {
    let site = Site::new();
    let mut service = site.start();
    // Whoever orders waits for this, within its transaction.
    let barrier = Process::start(
        Command::new("psql")
            .args(["-h", "127.0.0.1", "-p", &server().port().to_string(), "-U", "postgres"])
            .args(["-X", "-q", "-A", "-t", "-d", &site.database]),
    );
    let mut barrier = barrier.unwrap();
    let lock = format!("BEGIN; LOCK TABLE {SCHEMA}.orders; SELECT 'locked';\n");
    barrier.write(lock.as_bytes()).unwrap();
    barrier.wait_for("locked", SOON);
    let waiting = "SELECT count(*) FROM pg_stat_activity \
                   WHERE wait_event_type = 'Lock' AND query LIKE 'INSERT INTO orders%'";
    let killed = std::thread::scope(|scope| {
        let asked = scope.spawn(|| service.order("k", "2"));
        wait_until("the order waits for its table", SOON, || match site.sql(waiting).as_str() {
            "1" => Ok(()),
            count => Err(format!("{count} wait")),
        });
        service.process.kill9().unwrap();
        asked.join().unwrap()
    });
    assert_eq!(killed.status, 0, "the client was told nothing");
    assert!(!service.process.wait(SOON).success());
    barrier.close_stdin();
    barrier.wait(SOON);
    assert_eq!(site.sql("SELECT count(*) FROM orders"), "0");

    // Its lease on being the active one runs out first.
    let service = site.start();
    let mut answer = service.order("k", "2");
    while answer.status == 409 {
        answer = service.order("k", "2");
    }
    assert_eq!((answer.status, answer.is_replay()), (201, false));
    let again = service.order("k", "2");
    assert_eq!((again.status, again.is_replay(), &again.body), (201, true, &answer.body));
    assert_eq!(site.sql("SELECT count(*) FROM orders"), "1");
    assert_eq!(site.sql("SELECT pieces FROM stock"), "998");
}

#[test]
fn only_a_live_holder_changes_a_route() {
    let site = Site::new();
    let service = site.start();
    let locks = site.locks();
    let put = |token: &str, route: &str| {
        let token = format!("Fencing-Token: {token}");
        service.curl(&["-X", "PUT", "-H", &token, "-d", route], "/routes/berlin")
    };
    let first = blocking::acquire(locks.lock("routes/berlin")).unwrap();
    let old = first.mark().to_string();
    assert_eq!(put(&old, "north").body, "berlin goes north\n");
    assert!(matches!(blocking::release(first), leasehold::Release::Released));
    let second = blocking::acquire(locks.lock("routes/berlin")).unwrap();
    assert_eq!(put(&second.mark().to_string(), "south").status, 200);
    // The first one's request was on its way for long.
    let late = put(&old, "north");
    assert_eq!(late.status, 412);
    assert!(late.head.contains("application/problem+json"), "{late:?}");
    assert_eq!(put("x", "north").status, 400);
    let missing = service.curl(&["-X", "PUT", "-d", "north"], "/routes/berlin");
    assert_eq!(missing.status, 428);
    assert_eq!(site.sql("SELECT route FROM routes"), "south");
}

#[test]
fn a_report_is_made_by_one_at_a_time() {
    let site = Site::new();
    let service = site.start();
    let locks = site.locks();
    let report = || service.curl(&["-X", "POST"], "/reports/daily");
    let other = blocking::acquire(locks.lock("reports/daily")).unwrap();
    let busy = report();
    assert_eq!(busy.status, 423);
    assert!(busy.head.contains("retry-after: 1"), "{busy:?}");
    let before = other.token();
    assert!(matches!(blocking::release(other), leasehold::Release::Released));
    let made = report();
    assert_eq!(made.status, 200);
    let token: u64 = made.body.trim().rsplit(' ').next().unwrap().parse().unwrap();
    assert!(token > before.get());
    assert_eq!(report().status, 200, "the handler has let go of it");
}

#[test]
fn an_instance_that_loses_its_lease_ends_and_the_next_takes_over() {
    let site = Site::new();
    let mut first = site.start();
    let second = site.launch();
    blocking::block_on(site.locks().break_("service", None, true)).unwrap();
    let status = first.process.wait(SOON);
    assert_eq!(status.code(), Some(76), "{:?}", first.process.lines());
    let mut second = Instance::of(second);
    assert_eq!(second.curl(&[], "/health").body, "well");
    second.process.signal(rustix::process::Signal::TERM).unwrap();
    assert_eq!(second.process.wait(SOON).code(), Some(0));
}
