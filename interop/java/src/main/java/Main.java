import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;

/**
 * Lock clients of the Java world, driven line by line.
 *
 * <p>Arguments: {@code redisson URL [OPTION=VALUE]...} or {@code curator HOSTS [OPTION=VALUE]...}.
 * It prints {@code AT 0 - ready} once connected.
 *
 * <p>Input: {@code NUMBER LABEL VERB ARGUMENT...}. Each label is a thread that carries out its
 * commands one after the other, so that locks that belong to threads belong to labels. The verb
 * {@code interrupt} interrupts the one that runs, or is about to.
 *
 * <p>Output: {@code AT NUMBER LABEL WORD...}, one line a command when it is done, {@code
 * error ...} if it failed; AT is nanoseconds of the machine's monotonic clock. The end of the input
 * ends the process at once, without unlocking anything.
 */
public final class Main {
    /** One kind of client: what it answers to a command. */
    interface Verbs {
        String run(String label, String verb, List<String> args) throws Exception;
    }

    record Command(String number, String verb, List<String> args) {}

    private static final class Worker extends Thread {
        private final BlockingQueue<Command> commands = new LinkedBlockingQueue<>();
        private final String label;
        private final Verbs verbs;
        private int waiting;
        private boolean running;
        private boolean interrupted;

        Worker(String label, Verbs verbs) {
            this.label = label;
            this.verbs = verbs;
            setDaemon(true);
        }

        synchronized void add(Command command) {
            waiting++;
            commands.add(command);
        }

        synchronized void stopCommand() {
            if (running) {
                interrupt();
            } else {
                interrupted = waiting > 0;
            }
        }

        private synchronized void begin() {
            waiting--;
            running = true;
            if (interrupted) {
                interrupt();
            }
            interrupted = false;
        }

        private synchronized void end() {
            running = false;
            Thread.interrupted();
        }

        @Override
        public void run() {
            while (true) {
                Command command;
                try {
                    command = commands.take();
                } catch (InterruptedException never) {
                    throw new IllegalStateException(never);
                }
                begin();
                String answer;
                try {
                    answer = verbs.run(label, command.verb, command.args);
                } catch (Throwable error) {
                    answer = "error " + error;
                }
                end();
                print(command.number, label, answer);
            }
        }
    }

    private Main() {}

    static void print(String number, String label, String text) {
        String line = text.replace('\n', ' ');
        synchronized (System.out) {
            System.out.println(System.nanoTime() + " " + number + " " + label + " " + line);
            System.out.flush();
        }
    }

    static Map<String, String> options(String[] args) {
        Map<String, String> options = new HashMap<>();
        for (int i = 2; i < args.length; i++) {
            String[] parts = args[i].split("=", 2);
            options.put(parts[0], parts[1]);
        }
        return options;
    }

    public static void main(String[] args) throws Exception {
        Map<String, String> options = options(args);
        Verbs verbs = switch (args[0]) {
            case "redisson" -> new RedissonVerbs(args[1], options);
            case "curator" -> new CuratorVerbs(args[1], options);
            default -> throw new IllegalArgumentException(args[0]);
        };
        print("0", "-", "ready");
        Map<String, Worker> workers = new HashMap<>();
        BufferedReader input =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            List<String> words = List.of(line.trim().split(" +"));
            String label = words.get(1);
            Worker worker = workers.get(label);
            if (worker == null) {
                worker = new Worker(label, verbs);
                worker.start();
                workers.put(label, worker);
            }
            if (words.get(2).equals("interrupt")) {
                worker.stopCommand();
                print(words.get(0), label, "ok");
                continue;
            }
            worker.add(new Command(words.get(0), words.get(2), words.subList(3, words.size())));
        }
        Runtime.getRuntime().halt(0);
    }
}
