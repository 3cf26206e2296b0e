// Preloaded into a server, it adds to the wall clock what stands in a file: 8 bytes, nanoseconds,
// that the test may change at any moment. Every other clock is left alone.
//
// It asks the kernel itself and looks nothing up, so that it works from the first instruction on and
// inside any allocator. Programs in Go ask no C library: they take their clock from the vDSO, the
// shared object that the kernel puts into every process. They are shown another one.

#define _GNU_SOURCE
#include <elf.h>
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

static void show_vdso(char **envp);

__attribute__((constructor)) static void map_file(int argc, char **argv, char **envp) {
    (void)argc, (void)argv;
    const char *path = getenv("LEASEHOLD_FAKE_TIME");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file >= 0) {
        void *at = mmap(NULL, sizeof *away, PROT_READ, MAP_SHARED, file, 0);
        if (at != MAP_FAILED) away = at;
        close(file);
        show_vdso(envp);
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

#if defined(__x86_64__)
// For threads of Go: without errno, and on a small stack.
static int vdso_clock_gettime(clockid_t clock, struct timespec *to) {
    long failed;
    __asm__ volatile("syscall"
                     : "=a"(failed)
                     : "a"(SYS_clock_gettime), "D"((long)clock), "S"(to)
                     : "rcx", "r11", "memory");
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        *to = shifted(*to, 1);
    }
    return (int)failed;
}

// As much of a shared object as it takes to find one function in it.
static struct {
    Elf64_Ehdr header;
    Elf64_Phdr segments[2];
    Elf64_Dyn dynamic[5];
    Elf64_Sym symbols[2];
    uint32_t hash[5];
    Elf64_Verdef version;
    char strings[32];
} vdso = {
    .header = {.e_ident = {ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64, ELFDATA2LSB, EV_CURRENT},
               .e_type = ET_DYN, .e_machine = EM_X86_64, .e_version = EV_CURRENT,
               .e_phoff = sizeof(Elf64_Ehdr), .e_phentsize = sizeof(Elf64_Phdr), .e_phnum = 2},
    .hash = {1, 2, 1, 0, 0}, // one bucket, and in it the second symbol
    .version = {.vd_version = VER_DEF_CURRENT, .vd_flags = VER_FLG_BASE},
    .strings = "\0__vdso_clock_gettime",
};

static void show_vdso(char **envp) {
    uint64_t base = (uint64_t)&vdso;
    vdso.segments[0] = (Elf64_Phdr){.p_type = PT_LOAD, .p_memsz = sizeof vdso};
    vdso.segments[1] = (Elf64_Phdr){.p_type = PT_DYNAMIC, .p_offset = (uint64_t)vdso.dynamic - base};
    vdso.dynamic[0] = (Elf64_Dyn){DT_STRTAB, {(uint64_t)vdso.strings - base}};
    vdso.dynamic[1] = (Elf64_Dyn){DT_SYMTAB, {(uint64_t)vdso.symbols - base}};
    vdso.dynamic[2] = (Elf64_Dyn){DT_HASH, {(uint64_t)vdso.hash - base}};
    vdso.dynamic[3] = (Elf64_Dyn){DT_VERDEF, {(uint64_t)&vdso.version - base}};
    vdso.symbols[1] = (Elf64_Sym){.st_name = 1, .st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC),
                                  .st_shndx = 1, .st_value = (uint64_t)vdso_clock_gettime - base};
    while (*envp) envp++;
    for (Elf64_auxv_t *each = (void *)(envp + 1); each->a_type != AT_NULL; each++) {
        if (each->a_type == AT_SYSINFO_EHDR) each->a_un.a_val = base;
    }
}
#else
static void show_vdso(char **envp) {
    (void)envp;
}
#endif
