//! A process of its own that holds a lock as users do, until it is told to release it or killed.
#![allow(unreachable_pub, reason = "as the rest that the tests share")]

use std::io::BufRead as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use leasehold::{Client, Options};
use leasehold_core::{Moment, Token};
use leasehold_testkit::block_on;
use leasehold_testkit::process::Process;
use leasehold_testkit::server::{FakeTime, Program};

const ROLE: &str = "LEASEHOLD_ZOOKEEPER_TEST_AGENT";
const PATIENCE: Duration = Duration::from_secs(60);

/// An agent as its master sees it.
pub struct Agent {
    pub process: Process,
    asked: usize,
}

impl Agent {
    /// One that holds `name` below `root`; it may be shown another wall clock.
    pub fn holding(
        addr: SocketAddr,
        root: &str,
        name: &str,
        time: Option<&FakeTime>,
    ) -> (Agent, Token) {
        let mut program = Program::new(std::env::current_exe().unwrap())
            .args(["--exact", "agent", "--nocapture", "--test-threads=1"])
            .env(ROLE, format!("{addr} {root} {name}"));
        if let Some(time) = time {
            program = program.fake_time(time);
        }
        let process = Process::start(&mut program.command()).unwrap();
        let agent = Agent { process, asked: 0 };
        let token = agent.said("@held ");
        (agent, Token::new(token).unwrap())
    }

    /// The number behind the first line that begins so.
    fn said(&self, begin: &str) -> u64 {
        let line = self.process.wait_for(begin, PATIENCE);
        let (_, number) = line.text.split_once(begin).unwrap();
        number.trim().parse().unwrap()
    }

    /// Asks for a number.
    pub fn ask(&mut self, what: &str) -> u64 {
        self.asked += 1;
        let asked = self.asked;
        self.process.write(format!("{what} {asked}\n").as_bytes()).unwrap();
        self.said(&format!("@{asked} "))
    }

    /// Until when it believes that it holds.
    pub fn until(&mut self) -> Moment {
        Moment::from_nanos(self.ask("until"))
    }

    /// Waits until it has heard that it holds no longer; until when it had believed.
    pub fn lost(&self) -> Moment {
        Moment::from_nanos(self.said("@lost "))
    }

    pub fn is_lost(&self) -> bool {
        self.process.lines().iter().any(|line| line.text.contains("@lost "))
    }
}

/// What the process of an agent does; nothing in any other.
pub fn agent() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let [addr, root, name] = role.split(' ').collect::<Vec<_>>()[..] else { panic!("{role}") };
    let store = super::connect(super::config(addr.parse().unwrap(), root));
    let client = Client::new(Arc::new(store), Options::default()).unwrap();
    let term = client.profile().term_bounds.1;
    let lease = Arc::new(block_on(client.lock(name).ttl(term).acquire()).unwrap());
    println!("@held {}", lease.token().get());
    let held = Arc::clone(&lease);
    std::thread::spawn(move || {
        block_on(held.lost());
        println!("@lost {}", held.until().as_nanos());
    });
    for line in std::io::stdin().lock().lines() {
        let line = line.unwrap();
        let (what, number) = line.split_once(' ').unwrap();
        let answer = match what {
            "until" => lease.until().as_nanos(),
            "wall" => SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs(),
            "close" => {
                u64::from(block_on(client.clone().close(PATIENCE)) == leasehold::Closed::Clean)
            }
            _ => panic!("{line}"),
        };
        println!("@{number} {answer}");
    }
}
