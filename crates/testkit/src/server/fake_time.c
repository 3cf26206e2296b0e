// Preloaded into a server, it adds to the wall clock what stands in a file: 8 bytes, nanoseconds,
// that the test may change at any moment. Every other clock is left alone.
//
// It asks the kernel itself and looks nothing up, so that it works from the first instruction on and
// inside any allocator.

#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL

static _Atomic int64_t *away;

__attribute__((constructor)) static void map_file(void) {
    const char *path = getenv("LEASEHOLD_FAKE_TIME");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file >= 0) {
        void *at = mmap(NULL, sizeof *away, PROT_READ, MAP_SHARED, file, 0);
        if (at != MAP_FAILED) away = at;
        close(file);
    }
}

static struct timespec shifted(struct timespec t, int sign) {
    int64_t by = away ? sign * atomic_load(away) : 0;
    int64_t nanos = t.tv_nsec + by % SECOND;
    int64_t seconds = t.tv_sec + by / SECOND;
    if (nanos < 0) nanos += SECOND, seconds--;
    if (nanos >= SECOND) nanos -= SECOND, seconds++;
    return (struct timespec){.tv_sec = seconds, .tv_nsec = nanos};
}

int clock_gettime(clockid_t clock, struct timespec *to) {
    int failed = (int)syscall(SYS_clock_gettime, clock, to);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        *to = shifted(*to, 1);
    }
    return failed;
}

int gettimeofday(struct timeval *restrict to, void *restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    if (to) *to = (struct timeval){.tv_sec = now.tv_sec, .tv_usec = now.tv_nsec / 1000};
    return 0;
}

time_t time(time_t *to) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (to) *to = now.tv_sec;
    return now.tv_sec;
}

// A wait until a time on the wall clock that the server has read here: no other clock has reached
// its first billion of seconds.
static clockid_t real(const struct timespec *until, struct timespec *end) {
    int wall = until->tv_sec > 1000000000;
    *end = wall ? shifted(*until, -1) : *until;
    if (end->tv_sec < 0) *end = (struct timespec){0};
    return wall ? CLOCK_REALTIME : CLOCK_MONOTONIC;
}

int pthread_cond_timedwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until) {
    struct timespec end;
    clockid_t clock = real(until, &end);
    return pthread_cond_clockwait(cond, mutex, clock, &end);
}

int sem_timedwait(sem_t *restrict sem, const struct timespec *restrict until) {
    struct timespec end;
    clockid_t clock = real(until, &end);
    return sem_clockwait(sem, clock, &end);
}

int pthread_mutex_timedlock(pthread_mutex_t *restrict mutex, const struct timespec *restrict until) {
    struct timespec end;
    clockid_t clock = real(until, &end);
    return pthread_mutex_clocklock(mutex, clock, &end);
}
