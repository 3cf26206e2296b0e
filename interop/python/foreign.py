"""Lock clients of the Python world, driven line by line.

Arguments: `kazoo HOSTS [OPTION=VALUE]...` or `redis URL [OPTION=VALUE]...`.
It prints `AT 0 - ready` once connected.

Input: `NUMBER LABEL VERB ARGUMENT...`. Each label is a thread that carries out its commands one
after the other.

Output: `AT NUMBER LABEL WORD...`, one line a command when it is done, `error ...` if it failed; AT is
nanoseconds of the machine's monotonic clock. The end of the input ends the process at once, without
unlocking anything.
"""

import os
import queue
import sys
import threading
import time

PRINTING = threading.Lock()


def say(number, label, text):
    with PRINTING:
        line = str(text).replace("\n", " ")
        print(time.monotonic_ns(), number, label, line, flush=True)


class Worker(threading.Thread):
    def __init__(self, label, verbs):
        super().__init__(daemon=True)
        self.label = label
        self.verbs = verbs
        self.commands = queue.Queue()

    def run(self):
        while True:
            number, verb, args = self.commands.get()
            try:
                answer = self.verbs.run(self.label, verb, args)
            except Exception as error:  # whatever the client raises is an answer
                answer = f"error {type(error).__name__}: {error}"
            say(number, self.label, answer)


class Kazoo:
    """kazoo's recipes. Options: `session` (milliseconds), `auth` (digest USER:PASSWORD).

    Verbs: `KIND.acquire PATH [WAIT]`, `KIND.try PATH`, `KIND.release PATH`, `KIND.contenders PATH`,
    `KIND.pairs PATH TIMES`, which acquires and releases so often and tells the nanoseconds of it;
    the kinds are lock, read, write, and with contenders named as Curator's mutex, c-read, c-write.
    `sem.acquire PATH LIMIT [WAIT]`, `sem.release PATH`.
    Changes of the connection are printed as `AT 0 - state NAME`.
    """

    def __init__(self, hosts, options):
        from kazoo.client import KazooClient

        auth = [("digest", options["auth"])] if "auth" in options else None
        self.client = KazooClient(
            hosts=hosts, timeout=int(options.get("session", "10000")) / 1000, auth_data=auth
        )
        self.client.add_listener(lambda state: say("0", "-", f"state {state}"))
        self.client.start(timeout=60)
        self.recipes = {}

    def run(self, label, verb, args):
        if verb == "session":
            return f"session {self.client.client_id[0]:x}"
        kind, _, what = verb.partition(".")
        path = args[0]
        recipe = self.recipes.get((label, kind, path))
        if recipe is None:
            recipe = self.make(kind, label, args)
            self.recipes[label, kind, path] = recipe
        if what == "try":
            return "acquired" if recipe.acquire(blocking=False) else "refused"
        if what == "acquire":
            return self.acquire(recipe, args[2:] if kind == "sem" else args[1:])
        if what == "release":
            return f"released {recipe.release()}"
        if what == "pairs":
            return self.pairs(recipe, int(args[1]))
        if what == "contenders":
            return f"contenders {recipe.contenders()}"
        raise ValueError(verb)

    def pairs(self, recipe, times):
        begun = time.monotonic_ns()
        for _ in range(times):
            recipe.acquire()
            recipe.release()
        return f"pairs {time.monotonic_ns() - begun}"

    def make(self, kind, label, args):
        if kind == "lock":
            return self.client.Lock(args[0], label)
        if kind in CURATOR:
            return curator(kind)(self.client, args[0], label)
        if kind == "read":
            return self.client.ReadLock(args[0], label)
        if kind == "write":
            return self.client.WriteLock(args[0], label)
        if kind == "sem":
            return self.client.Semaphore(args[0], label, int(args[1]))
        raise ValueError(kind)

    def acquire(self, recipe, args):
        from kazoo.exceptions import LockTimeout

        try:
            return "acquired" if recipe.acquire(timeout=seconds(args, 0)) else "refused"
        except LockTimeout:
            return "refused"


# How Curator names the contenders, and whom each waits for.
CURATOR = {
    "mutex": ("-lock-", ["-lock-"]),
    "c-write": ("__WRIT__", ["__WRIT__", "__READ__"]),
    "c-read": ("__READ__", ["__WRIT__"]),
}


def curator(kind):
    from kazoo.recipe.lock import Lock

    name, excluded = CURATOR[kind]
    return type("Curator", (Lock,), {"_NODE_NAME": name, "_EXCLUDE_NAMES": excluded})


class Redis:
    """redis-py's Lock. Terms and waits are milliseconds.

    Verbs: `lock NAME TERM [WAIT]`, `trylock NAME TERM`, `unlock NAME`, `extend NAME TERM`,
    `owned NAME`, `locked NAME`, `value NAME`.
    """

    def __init__(self, url, options):
        import redis

        self.client = redis.Redis.from_url(url, **options)
        self.client.ping()
        self.locks = {}

    def run(self, label, verb, args):
        name = args[0]
        if verb in ("lock", "trylock"):
            return self.lock(label, verb == "trylock", args)
        if verb == "locked":
            return f"locked {self.client.lock(name).locked()}"
        lock = self.locks[label, name]
        if verb == "unlock":
            lock.release()
            return "unlocked"
        if verb == "extend":
            return f"extended {lock.extend(seconds(args, 1), replace_ttl=True)}"
        if verb == "owned":
            return f"owned {lock.owned()}"
        if verb == "value":
            return f"value {lock.local.token.decode()}"
        raise ValueError(verb)

    def lock(self, label, once, args):
        lock = self.client.lock(args[0], timeout=seconds(args, 1), sleep=0.02)
        self.locks[label, args[0]] = lock
        wait = seconds(args, 2)
        taken = lock.acquire(blocking=not once, blocking_timeout=None if once else wait)
        return "locked" if taken else "refused"


def seconds(args, index):
    return int(args[index]) / 1000 if index < len(args) else None


def main():
    options = dict(arg.split("=", 1) for arg in sys.argv[3:])
    kinds = {"kazoo": Kazoo, "redis": Redis}
    verbs = kinds[sys.argv[1]](sys.argv[2], options)
    say("0", "-", "ready")
    workers = {}
    for line in sys.stdin:
        number, label, verb, *args = line.split()
        if label not in workers:
            workers[label] = Worker(label, verbs)
            workers[label].start()
        workers[label].commands.put((number, verb, args))
    os._exit(0)


main()
