//! The fences for ZooKeeper in a caller's own transactions, by another client library.
#![allow(clippy::unwrap_used)]

mod common;

use common::{claim, config, connect, granted, leaves, root, server};
use leasehold_core::{Access, Mark, Store as _};
use leasehold_fence::zookeeper::{Fence, Op, held};
use leasehold_fence::{ErrorKind, Resource};
use leasehold_testkit::block_on;
use leasehold_testkit::server::zookeeper::Release;
use zookeeper_client::{Acls, Client, CreateMode, Error, MultiWriteError};

/// The caller's own client, and what it keeps.
struct Caller {
    client: Client,
    balance: String,
}

impl Caller {
    async fn new(root: &str) -> Caller {
        let addr = server(Release::Newest).addr().to_string();
        let client = Client::connect(&addr).await.unwrap();
        let caller = Caller { client, balance: format!("/{root}/balance") };
        let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
        for path in [format!("/{root}/.leasehold-fence"), caller.balance.clone()] {
            caller.client.create(&path, b"", &options).await.unwrap();
        }
        caller
    }

    /// One transaction: the fence's operation and the caller's write.
    async fn put(&self, op: Op, value: &str) -> Result<(), Error> {
        let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
        let mut writer = self.client.new_multi_writer();
        match &op {
            Op::Create { path, data } => writer.add_create(path, data, &options).unwrap(),
            Op::Set { path, data, version } => {
                writer.add_set_data(path, data, Some(*version)).unwrap();
            }
            Op::Check { path, version } => {
                writer.add_check_version(path, *version).unwrap();
            }
        }
        writer.add_set_data(&self.balance, value.as_bytes(), None).unwrap();
        match writer.commit().await {
            Ok(_) => Ok(()),
            Err(MultiWriteError::OperationFailed { index: 0, source }) => Err(source),
            Err(other) => panic!("{other}"),
        }
    }

    async fn balance(&self) -> String {
        String::from_utf8(self.client.get_data(&self.balance).await.unwrap().0).unwrap()
    }

    async fn seen(&self, fence: &Fence) -> Option<(Vec<u8>, i32)> {
        match self.client.get_data(fence.path()).await {
            Ok((data, stat)) => Some((data, stat.version)),
            Err(Error::NoNode) => None,
            Err(other) => panic!("{other}"),
        }
    }
}

fn seen(found: &Option<(Vec<u8>, i32)>) -> Option<(&[u8], i32)> {
    found.as_ref().map(|(data, version)| (data.as_slice(), *version))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_passes_only_while_the_locks_own_node_stands() {
    let root = root();
    let store = connect_at(&root);
    let caller = Caller::new(&root).await;
    let first = claim("r");
    granted(&store, &first);
    let node = store.node(&first.to_ref()).unwrap();
    caller.put(held(&node), "90").await.unwrap();
    leaves(&store, &first);
    assert_eq!(store.node(&first.to_ref()), None);
    granted(&store, &claim("r"));
    // The late write of who held before.
    assert!(matches!(caller.put(held(&node), "1").await, Err(Error::NoNode)));
    assert_eq!(caller.balance().await, "90");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_token_is_refused_once_a_newer_has_entered() {
    let root = root();
    let store = connect_at(&root);
    let caller = Caller::new(&root).await;
    let fence = Fence::new(&format!("/{root}"), &Resource::new("r").unwrap());
    let first = claim("r");
    let old = Mark::from(granted(&store, &first).token);
    let nothing = caller.seen(&fence).await;
    caller.put(fence.enter(Access::Exclusive, old, seen(&nothing)).unwrap(), "90").await.unwrap();
    let before = caller.seen(&fence).await;
    let late = fence.guard(Access::Exclusive, old, seen(&before)).unwrap();
    leaves(&store, &first);
    let new = Mark::from(granted(&store, &claim("r")).token);
    let entering = fence.enter(Access::Exclusive, new, seen(&before)).unwrap();
    caller.put(entering, "80").await.unwrap();
    // What was judged before the newer came is refused by the version, and after another read by
    // the mark.
    assert!(matches!(caller.put(late, "1").await, Err(Error::BadVersion)));
    let now = caller.seen(&fence).await;
    let refused = fence.guard(Access::Exclusive, old, seen(&now)).unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::Stale(_)), "{refused}");
    assert_eq!(caller.balance().await, "80");
}

fn connect_at(root: &str) -> leasehold_zookeeper::ZookeeperStore {
    let store = connect(config(server(Release::Newest).addr(), root));
    assert!(block_on(store.list(&leasehold_core::Page::default())).unwrap().is_empty());
    store
}
