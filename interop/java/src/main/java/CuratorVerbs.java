import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.leader.LeaderLatch;
import org.apache.curator.framework.recipes.leader.LeaderLatchListener;
import org.apache.curator.framework.recipes.locks.InterProcessLock;
import org.apache.curator.framework.recipes.locks.InterProcessMultiLock;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreMutex;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Lease;
import org.apache.curator.retry.RetryForever;

/**
 * Curator's recipes. Options: {@code session} (milliseconds), {@code auth} (digest USER:PASSWORD).
 * Changes of the connection are printed as {@code AT 0 - state NAME}.
 *
 * <p>Verbs: {@code KIND.acquire PATH [WAIT]}, {@code KIND.release PATH}, {@code KIND.held PATH},
 * {@code KIND.pairs PATH TIMES}, which acquires and releases so often and tells the nanoseconds of it;
 * the kinds are mutex, read, write, semmutex, multi (several paths with commas). {@code sem.acquire PATH LIMIT [WAIT]}, {@code
 * sem.release PATH}. {@code leader.start PATH ID}, {@code leader.await PATH WAIT}, {@code
 * leader.close PATH}, {@code leader.has PATH}.
 */
final class CuratorVerbs implements Main.Verbs {
    private final CuratorFramework client;
    private final Map<String, InterProcessLock> locks = new ConcurrentHashMap<>();
    private final Map<String, InterProcessReadWriteLock> pairs = new ConcurrentHashMap<>();
    private final Map<String, Deque<Lease>> leases = new ConcurrentHashMap<>();
    private final Map<String, LeaderLatch> latches = new ConcurrentHashMap<>();

    CuratorVerbs(String hosts, Map<String, String> options) throws Exception {
        int session = Integer.parseInt(options.getOrDefault("session", "10000"));
        CuratorFrameworkFactory.Builder builder = CuratorFrameworkFactory.builder()
                .connectString(hosts)
                .sessionTimeoutMs(session)
                .connectionTimeoutMs(10_000)
                .retryPolicy(new RetryForever(100));
        if (options.containsKey("auth")) {
            builder.authorization("digest", options.get("auth").getBytes(StandardCharsets.UTF_8));
        }
        client = builder.build();
        client.getConnectionStateListenable()
                .addListener((c, state) -> Main.print("0", "-", "state " + state));
        client.start();
        if (!client.blockUntilConnected(60, TimeUnit.SECONDS)) {
            throw new IllegalStateException("not connected");
        }
    }

    @Override
    public String run(String label, String verb, List<String> args) throws Exception {
        String path = args.isEmpty() ? "" : args.get(0);
        int dot = verb.indexOf('.');
        String kind = dot < 0 ? "" : verb.substring(0, dot);
        String what = verb.substring(dot + 1);
        switch (kind) {
            case "":
                return plain(what, path);
            case "sem":
                return semaphore(label, what, path, args);
            case "leader":
                return leader(label, what, path, args);
            default:
                return lock(locks.computeIfAbsent(kind + path, k -> make(kind, path)), what, args);
        }
    }

    private String plain(String what, String path) throws Exception {
        return switch (what) {
            case "session" -> "session "
                    + Long.toHexString(client.getZookeeperClient().getZooKeeper().getSessionId());
            case "children" -> "children " + client.getChildren().forPath(path);
            case "shutdown" -> {
                client.close();
                yield "ok";
            }
            default -> throw new IllegalArgumentException(what);
        };
    }

    private InterProcessLock make(String kind, String path) {
        return switch (kind) {
            case "mutex" -> new InterProcessMutex(client, path);
            case "read" -> both(path).readLock();
            case "write" -> both(path).writeLock();
            case "semmutex" -> new InterProcessSemaphoreMutex(client, path);
            case "multi" -> new InterProcessMultiLock(client, List.of(path.split(",")));
            default -> throw new IllegalArgumentException(kind);
        };
    }

    /** One object for both sides: else a writer could not read. */
    private InterProcessReadWriteLock both(String path) {
        return pairs.computeIfAbsent(path, p -> new InterProcessReadWriteLock(client, p));
    }

    private static String lock(InterProcessLock lock, String what, List<String> args)
            throws Exception {
        switch (what) {
            case "acquire":
                if (args.size() < 2) {
                    lock.acquire();
                    return "acquired";
                }
                long wait = Long.parseLong(args.get(1));
                return lock.acquire(wait, TimeUnit.MILLISECONDS) ? "acquired" : "refused";
            case "release":
                lock.release();
                return "released";
            case "held":
                return "held " + lock.isAcquiredInThisProcess();
            case "pairs":
                long begun = System.nanoTime();
                for (int left = Integer.parseInt(args.get(1)); left > 0; left--) {
                    lock.acquire();
                    lock.release();
                }
                return "pairs " + (System.nanoTime() - begun);
            default:
                throw new IllegalArgumentException(what);
        }
    }

    private String semaphore(String label, String what, String path, List<String> args)
            throws Exception {
        Deque<Lease> mine = leases.computeIfAbsent(label + path, k -> new ArrayDeque<>());
        switch (what) {
            case "acquire":
                int limit = Integer.parseInt(args.get(1));
                var semaphore = new InterProcessSemaphoreV2(client, path, limit);
                Lease lease = args.size() < 3
                        ? semaphore.acquire()
                        : semaphore.acquire(Long.parseLong(args.get(2)), TimeUnit.MILLISECONDS);
                if (lease == null) {
                    return "refused";
                }
                mine.push(lease);
                return "acquired " + lease.getNodeName();
            case "release":
                mine.pop().close();
                return "released";
            default:
                throw new IllegalArgumentException(what);
        }
    }

    private String leader(String label, String what, String path, List<String> args)
            throws Exception {
        String key = label + path;
        switch (what) {
            case "start":
                LeaderLatch latch = new LeaderLatch(client, path, args.get(1));
                latch.addListener(new LeaderLatchListener() {
                    @Override
                    public void isLeader() {
                        Main.print("0", label, "leader");
                    }

                    @Override
                    public void notLeader() {
                        Main.print("0", label, "follower");
                    }
                });
                latches.put(key, latch);
                latch.start();
                return "started";
            case "await":
                long wait = Long.parseLong(args.get(1));
                return latches.get(key).await(wait, TimeUnit.MILLISECONDS) ? "leader" : "refused";
            case "has":
                return "leader " + latches.get(key).hasLeadership();
            case "close":
                latches.remove(key).close();
                return "closed";
            default:
                throw new IllegalArgumentException(what);
        }
    }
}
