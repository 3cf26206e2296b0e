use std::io::{ErrorKind, Read, Write};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::server::wait_until;

const SOON: Duration = Duration::from_secs(30);

/// For what must not come.
const SHORT: Duration = Duration::from_millis(100);

/// A server that answers every chunk with the same, after `mark`.
fn echo(mark: &'static [u8]) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let received = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&received);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, count) = (stream.unwrap(), Arc::clone(&count));
            thread::spawn(move || {
                let mut buffer = [0; 4096];
                while let Ok(size @ 1..) = stream.read(&mut buffer) {
                    count.fetch_add(size, Ordering::SeqCst);
                    if stream.write_all(&[mark, &buffer[..size]].concat()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    (addr, received)
}

fn connect(proxy: &Proxy) -> TcpStream {
    let client = TcpStream::connect(proxy.addr()).unwrap();
    client.set_read_timeout(Some(SOON)).unwrap();
    client
}

fn say(client: &mut TcpStream, text: &str) {
    client.write_all(text.as_bytes()).unwrap();
}

fn hear(client: &mut TcpStream, text: &str) {
    let mut bytes = vec![0; text.len()];
    client.read_exact(&mut bytes).unwrap();
    assert_eq!(String::from_utf8(bytes).unwrap(), text);
}

/// Nothing comes, though the connection is there.
fn silent(client: &mut TcpStream) {
    client.set_read_timeout(Some(SHORT)).unwrap();
    let error = client.read(&mut [0; 1]).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
    client.set_read_timeout(Some(SOON)).unwrap();
}

fn is_cut(client: &mut TcpStream) {
    match client.read(&mut [0; 1]) {
        Ok(0) => {}
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        other => panic!("not cut: {other:?}"),
    }
}

fn pair() -> (Proxy, TcpStream, Arc<AtomicUsize>) {
    let (addr, received) = echo(b"");
    let proxy = Proxy::start(addr);
    let mut client = connect(&proxy);
    say(&mut client, "one");
    hear(&mut client, "one");
    (proxy, client, received)
}

fn reach(received: &AtomicUsize, size: usize) {
    wait_until("received", SOON, || match received.load(Ordering::SeqCst) {
        now if now == size => Ok(()),
        now => Err(format!("{now} of {size}")),
    });
}

#[test]
fn bytes_pass_and_are_counted_and_an_end_passes_too() {
    let (proxy, mut client, _) = pair();
    let much = "x".repeat(1_000_000);
    let mut other = client.try_clone().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| say(&mut other, &much));
        hear(&mut client, &much);
    });
    assert_eq!((proxy.connections(), proxy.accepted()), (1, 1));
    assert_eq!((proxy.bytes_to_server(), proxy.bytes_to_client()), (1_000_003, 1_000_003));
    client.shutdown(Shutdown::Write).unwrap();
    is_cut(&mut client);
    wait_until("forgotten", SOON, || match proxy.connections() {
        0 => Ok(()),
        some => Err(some.to_string()),
    });
}

#[test]
fn severed_connections_are_cut_and_new_ones_pass() {
    let (proxy, mut client, _) = pair();
    proxy.pause();
    proxy.sever();
    is_cut(&mut client);
    assert_eq!(proxy.connections(), 0);
    proxy.resume();
    let mut client = connect(&proxy);
    say(&mut client, "two");
    hear(&mut client, "two");
}

#[test]
fn a_pause_lets_nothing_through_until_it_ends() {
    let (proxy, mut client, received) = pair();
    proxy.pause();
    say(&mut client, "two");
    let mut new = connect(&proxy);
    say(&mut new, "three");
    silent(&mut client);
    silent(&mut new);
    assert_eq!(received.load(Ordering::SeqCst), 3);
    assert_eq!(proxy.connections(), 2);
    proxy.resume();
    hear(&mut client, "two");
    hear(&mut new, "three");
}

#[test]
fn each_way_can_be_paused_alone() {
    let (proxy, mut client, received) = pair();
    proxy.pause_to_client(true);
    say(&mut client, "two");
    reach(&received, 6);
    silent(&mut client);
    proxy.pause_to_client(false);
    hear(&mut client, "two");
    proxy.pause_to_server(true);
    say(&mut client, "three");
    silent(&mut client);
    assert_eq!(received.load(Ordering::SeqCst), 6);
    proxy.pause_to_server(false);
    hear(&mut client, "three");
}

#[test]
fn new_connections_are_refused_and_the_others_stay() {
    let (proxy, mut client, _) = pair();
    for _ in 0..20 {
        proxy.refuse(true);
        let error = TcpStream::connect(proxy.addr()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        say(&mut client, "two");
        hear(&mut client, "two");
        proxy.refuse(false);
        let mut new = connect(&proxy);
        say(&mut new, "three");
        hear(&mut new, "three");
    }
}

#[test]
fn a_delay_delays_all_alike_and_keeps_the_order() {
    let (proxy, mut client, _) = pair();
    let by = Duration::from_millis(100);
    proxy.delay(by);
    let start = Instant::now();
    for _ in 0..40 {
        say(&mut client, "x");
        thread::sleep(by / 20);
    }
    hear(&mut client, &"x".repeat(40));
    let took = start.elapsed();
    assert!(took >= 2 * by, "{took:?}");
    assert!(took < 40 * by, "the delays add up: {took:?}");
    proxy.delay(Duration::from_secs(600));
    say(&mut client, "two");
    silent(&mut client);
    proxy.delay(Duration::ZERO);
    hear(&mut client, "two");
}

#[test]
fn a_dropped_reply_was_asked_for_and_never_arrives() {
    let (proxy, mut client, received) = pair();
    proxy.drop_replies(1);
    say(&mut client, "two");
    is_cut(&mut client);
    reach(&received, 6);
    let mut client = connect(&proxy);
    say(&mut client, "three");
    hear(&mut client, "three");
}

#[test]
fn new_connections_go_where_they_are_led() {
    let (proxy, mut client, _) = pair();
    proxy.retarget(echo(b"other ").0);
    let mut new = connect(&proxy);
    say(&mut new, "two");
    hear(&mut new, "other two");
    say(&mut client, "three");
    hear(&mut client, "three");
}

#[test]
fn a_server_that_is_away_cuts_its_clients() {
    let (proxy, _client, _) = pair();
    let nobody = Port::reserve();
    proxy.retarget(nobody.addr());
    is_cut(&mut connect(&proxy));
}

#[test]
fn a_hook_sees_swallows_holds_and_cuts() {
    let (proxy, mut client, received) = pair();
    proxy.on_chunk(|way, number, bytes| match (way, bytes) {
        (Way::ToClient, b"gone") => Verdict::Swallow,
        (Way::ToClient, b"held") if number == 1 => Verdict::Hold,
        (Way::ToServer, b"cut") => Verdict::Cut,
        _ => Verdict::Pass,
    });
    say(&mut client, "gone");
    reach(&received, 7);
    silent(&mut client);
    say(&mut client, "kept");
    hear(&mut client, "kept");
    say(&mut client, "held");
    reach(&received, 15);
    say(&mut client, "next");
    reach(&received, 19);
    silent(&mut client);
    let mut other = connect(&proxy);
    say(&mut other, "held");
    hear(&mut other, "held");
    proxy.resume();
    hear(&mut client, "heldnext");
    say(&mut client, "cut");
    is_cut(&mut client);
    reach(&received, 23);
    proxy.clear_hook();
    say(&mut other, "cut");
    hear(&mut other, "cut");
}

#[test]
fn a_dropped_proxy_is_gone() {
    let (proxy, mut client, _) = pair();
    proxy.pause();
    let addr = proxy.addr();
    drop(proxy);
    is_cut(&mut client);
    assert!(TcpStream::connect(addr).is_err());
}
