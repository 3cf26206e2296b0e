import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RFencedLock;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RSemaphore;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/**
 * Redisson. The URL is that of one server, of several of a cluster ({@code cluster=yes}), or of
 * sentinels ({@code master=NAME}), separated by commas. Options: {@code password}, {@code
 * watchdog} (milliseconds).
 *
 * <p>Terms and waits are milliseconds; a term of 0 or none at all is the watchdog's.
 */
final class RedissonVerbs implements Main.Verbs {
    private final RedissonClient client;

    RedissonVerbs(String url, Map<String, String> options) {
        Config config = new Config();
        String[] urls = url.split(",");
        if (options.containsKey("password")) {
            config.setPassword(options.get("password"));
        }
        if (options.containsKey("watchdog")) {
            config.setLockWatchdogTimeout(Long.parseLong(options.get("watchdog")));
        }
        if (options.containsKey("cluster")) {
            config.useClusterServers().addNodeAddress(urls).setScanInterval(500);
        } else if (options.containsKey("master")) {
            config.useSentinelServers()
                    .setMasterName(options.get("master"))
                    .setCheckSentinelsList(false)
                    .setScanInterval(500)
                    .addSentinelAddress(urls);
        } else {
            config.useSingleServer()
                    .setAddress(urls[0])
                    .setConnectionMinimumIdleSize(1)
                    .setSubscriptionConnectionMinimumIdleSize(1);
        }
        client = Redisson.create(config);
    }

    @Override
    public String run(String label, String verb, List<String> args) throws Exception {
        String name = args.isEmpty() ? "" : args.get(0);
        switch (verb) {
            case "id":
                return client.getId() + ":" + Thread.currentThread().getId();
            case "token":
                return "token " + client.getFencedLock(name).getToken();
            case "fenced":
                return fenced(client.getFencedLock(name), args);
            case "cycle":
                return cycle(label, client.getLock(name), args);
            case "fencedcycle":
                return cycle(label, client.getFencedLock(name), args);
            case "permits":
                return "set " + client.getSemaphore(name).trySetPermits(integer(args, 1));
            case "acquire":
                return semaphore(client.getSemaphore(name), args);
            case "release":
                client.getSemaphore(name).release(integer(args, 1));
                return "released";
            case "available":
                return "available " + client.getSemaphore(name).availablePermits();
            case "slots":
                return "set " + client.getPermitExpirableSemaphore(name).trySetPermits(integer(args, 1));
            case "slot":
                return slot(client.getPermitExpirableSemaphore(name), args);
            case "leaveslot":
                client.getPermitExpirableSemaphore(name).release(args.get(1));
                return "released";
            case "shutdown":
                client.shutdown();
                return "ok";
            default:
                return lock(verb, name, args);
        }
    }

    /** A verb of a lock, after its kind: none, {@code fenced.}, {@code fair.}, ... */
    private String lock(String verb, String name, List<String> args) throws Exception {
        int dot = verb.indexOf('.');
        RLock lock = switch (dot < 0 ? "" : verb.substring(0, dot)) {
            case "" -> client.getLock(name);
            case "fenced" -> client.getFencedLock(name);
            case "fair" -> client.getFairLock(name);
            case "spin" -> client.getSpinLock(name);
            case "read" -> client.getReadWriteLock(name).readLock();
            case "write" -> client.getReadWriteLock(name).writeLock();
            default -> throw new IllegalArgumentException(verb);
        };
        switch (verb.substring(dot + 1)) {
            case "lock":
                take(lock, number(args, 1));
                return "locked";
            case "trylock":
                long term = number(args, 2);
                boolean taken = lock.tryLock(number(args, 1), term > 0 ? term : -1, TimeUnit.MILLISECONDS);
                return taken ? "locked" : "refused";
            case "unlock":
                lock.unlock();
                return "unlocked";
            case "forceunlock":
                return "forced " + lock.forceUnlock();
            case "held":
                return "held " + lock.isHeldByCurrentThread() + " " + lock.getHoldCount();
            case "locked":
                return "locked " + lock.isLocked() + " " + lock.remainTimeToLive();
            default:
                throw new IllegalArgumentException(verb);
        }
    }

    private static void take(RLock lock, long term) throws InterruptedException {
        if (term > 0) {
            lock.lockInterruptibly(term, TimeUnit.MILLISECONDS);
        } else {
            lock.lockInterruptibly();
        }
    }

    /** {@code fenced NAME [WAIT TERM]}: with a wait it may be refused. */
    private static String fenced(RFencedLock lock, List<String> args) {
        if (args.size() < 2) {
            return "token " + lock.lockAndGetToken();
        }
        long term = number(args, 2);
        Long token =
                lock.tryLockAndGetToken(number(args, 1), term > 0 ? term : -1, TimeUnit.MILLISECONDS);
        return token == null ? "refused" : "token " + token;
    }

    /** {@code cycle NAME TIMES HOLD}: takes it, holds it, unlocks it; says so each time. */
    private static String cycle(String label, RLock lock, List<String> args) throws Exception {
        for (long i = 0; i < number(args, 1); i++) {
            String token = "";
            if (lock instanceof RFencedLock fenced) {
                token = " " + fenced.lockAndGetToken();
            } else {
                lock.lockInterruptibly();
            }
            Main.print("0", label, "locked" + token);
            Thread.sleep(number(args, 2));
            Main.print("0", label, "unlocking" + token);
            lock.unlock();
        }
        return "done";
    }

    /** {@code acquire NAME COUNT WAIT}. */
    private static String semaphore(RSemaphore semaphore, List<String> args) throws Exception {
        long wait = number(args, 2);
        boolean taken = semaphore.tryAcquire(
                integer(args, 1), java.time.Duration.ofMillis(wait));
        return taken ? "acquired" : "refused";
    }

    /** {@code slot NAME WAIT TERM}: the id of the permit. */
    private static String slot(RPermitExpirableSemaphore semaphore, List<String> args)
            throws Exception {
        String id = semaphore.tryAcquire(number(args, 1), number(args, 2), TimeUnit.MILLISECONDS);
        return id == null ? "refused" : "slot " + id;
    }

    private static long number(List<String> args, int index) {
        return index < args.size() ? Long.parseLong(args.get(index)) : 0;
    }

    private static int integer(List<String> args, int index) {
        return Math.toIntExact(number(args, index));
    }
}
