/* Block devices with a volatile cache, served over NBD, whose power can be cut all at one moment.
 *
 *     cutdevices SOCKET SEED NAME:BYTES...
 *
 * One thread serves all devices (the export name chooses one), so that a cut is one moment for all of them. Commands are lines on stdin,
 * each is answered by one line on stdout; the end of stdin ends the process:
 *
 *     cut EVENT N          arm: the N-th event from now cuts the power; EVENT is flush, flushed, write, fua, trim or any. Line "cut" follows.
 *     cut now              at once
 *     survive SEED P TORN UNIT  after a cut: each un-flushed page (UNIT page), or the pages of each write together (UNIT write), survive with
 *                          probability P/100; TORN/100 of the pages that survive do so in part, by sectors. Then the power is back.
 *     delay NAME WRITE FLUSH   answers take a random time up to so many microseconds
 *     drop NAME, raise NAME    the link to one device dies, with its connections, and comes back
 *     save NAME PATH       write what a device reads as to a file
 *     counts               what has been done so far
 *
 * The rules are those of a drive: a write is in the cache when it is answered, and durable when a FLUSH sent after that answer is answered, or
 * with FUA its own. Before that each 4 KiB page is durable or not independently of all others, in its newest or an older un-flushed version. A
 * FLUSH takes time; what is written meanwhile is not covered. A TRIM leaves each page as it was or zeroed. What was under way at a cut may
 * have been done.
 */
#define _GNU_SOURCE
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, SECTOR = 512, SECTORS = PAGE / SECTOR, DEVICES_MAX = 8, CONNS_MAX = 64, EVENTS = 6, BODY_MAX = 33 << 20 };
enum { READ = 0, WRITE = 1, DISC = 2, FLUSH = 3, TRIM = 4, ZEROES = 6 };
enum { AT_FLUSH, AT_FLUSHED, AT_WRITE, AT_FUA, AT_TRIM, AT_ANY };
enum { FLAGS = 1 << 0 | 1 << 2 | 1 << 3 | 1 << 5 | 1 << 6 | 1 << 8 };
static const char *const EVENT_NAMES[EVENTS] = {"flush", "flushed", "write", "fua", "trim", "any"};

struct device {
    char name[64];
    uint64_t bytes;
    uint8_t *now, *durable; /* what is read; what a cut leaves for certain */
    uint8_t *mask;          /* sectors of each page that differ in durability: bit set, not flushed */
    uint64_t *written;      /* number of the last write of each page */
    uint32_t *dirty;        /* pages with a mask, each once */
    size_t dirty_count;
    uint64_t flush_below;   /* the newest write that a flush under way covers; 0: none is */
    uint64_t write_us, flush_us;
    bool down;
};

struct bytes {
    uint8_t *at;
    size_t from, to, room;
};

struct conn {
    int fd, device; /* device -1: still in the handshake */
    bool greeted;
    uint64_t number;
    struct bytes in, out;
};

/* An answer that takes its time. */
struct late {
    uint64_t due_ns, conn_number, cookie, covers; /* covers: of a flush, the last write before it */
    int device;
    bool is_flush;
};

static struct device devices[DEVICES_MAX];
static int device_count;
static struct conn conns[CONNS_MAX];
static struct late *lates;
static size_t late_count, late_room;
static uint64_t next_conn = 1, next_write = 1, random_state;
static int armed = -1;
static uint64_t armed_left;
static bool is_cut;
static struct { uint64_t events[EVENTS], reads, overwritten; } counts;

static void die(const char *what) {
    perror(what);
    exit(1);
}

static void *need(void *memory) {
    if (!memory) die("memory");
    return memory;
}

/* splitmix64 */
static uint64_t draw(uint64_t *state) {
    uint64_t z = (*state += 0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
}

static bool coin(void) {
    return draw(&random_state) & 1;
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void say(const char *form, ...) {
    va_list list;
    va_start(list, form);
    vprintf(form, list);
    va_end(list);
    putchar('\n');
    fflush(stdout);
}

/* --- bytes of a connection ------------------------------------------------------------------------------------------------ */

static void make_room(struct bytes *b, size_t more) {
    if (b->from == b->to) b->from = b->to = 0;
    if (b->room - b->to >= more) return;
    memmove(b->at, b->at + b->from, b->to - b->from);
    b->to -= b->from;
    b->from = 0;
    if (b->room - b->to < more) {
        b->room = b->to + more + (1 << 18);
        b->at = need(realloc(b->at, b->room));
    }
}

static void put(struct conn *c, const void *data, size_t len) {
    make_room(&c->out, len);
    memcpy(c->out.at + c->out.to, data, len);
    c->out.to += len;
}

static void put16(struct conn *c, uint16_t v) { v = htobe16(v); put(c, &v, 2); }
static void put32(struct conn *c, uint32_t v) { v = htobe32(v); put(c, &v, 4); }
static void put64(struct conn *c, uint64_t v) { v = htobe64(v); put(c, &v, 8); }
static uint16_t get16(const uint8_t *p) { uint16_t v; memcpy(&v, p, 2); return be16toh(v); }
static uint32_t get32(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return be32toh(v); }
static uint64_t get64(const uint8_t *p) { uint64_t v; memcpy(&v, p, 8); return be64toh(v); }

static void hang_up(struct conn *c) {
    close(c->fd);
    free(c->in.at);
    free(c->out.at);
    memset(c, 0, sizeof *c);
    c->fd = -1;
}

/* False when the peer is gone. */
static bool push(struct conn *c) {
    while (c->out.from < c->out.to) {
        ssize_t n = send(c->fd, c->out.at + c->out.from, c->out.to - c->out.from, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0) return errno == EAGAIN || errno == EINTR;
        c->out.from += (size_t)n;
    }
    return true;
}

/* False when the peer is gone. */
static bool pull(struct conn *c) {
    for (;;) {
        make_room(&c->in, 1 << 18);
        ssize_t n = recv(c->fd, c->in.at + c->in.to, c->in.room - c->in.to, MSG_DONTWAIT);
        if (n == 0) return false;
        if (n < 0) return errno == EAGAIN || errno == EINTR;
        c->in.to += (size_t)n;
        if (c->in.to - c->in.from > BODY_MAX) return true;
    }
}

static void answer(struct conn *c, uint64_t cookie, uint32_t error) {
    put32(c, 0x67446698);
    put32(c, error);
    put64(c, cookie);
}

/* --- the volatile cache ----------------------------------------------------------------------------------------------------- */

static void persist(struct device *d, uint32_t page) {
    for (int s = 0; s < SECTORS; s++)
        if (d->mask[page] >> s & 1) {
            size_t at = (size_t)page * PAGE + (size_t)s * SECTOR;
            memcpy(d->durable + at, d->now + at, SECTOR);
        }
}

/* `data` NULL: zeroes. Sectors are never torn. */
static void store(struct device *d, uint64_t offset, const uint8_t *data, uint64_t len, bool fua) {
    uint64_t number = next_write++;
    for (uint64_t at = offset; at < offset + len;) {
        uint32_t page = (uint32_t)(at / PAGE);
        uint64_t end = ((uint64_t)page + 1) * PAGE;
        if (end > offset + len) end = offset + len;
        if (d->mask[page] && !fua) {
            /* A flush under way has taken it, or the drive has written it by itself. */
            if (d->written[page] <= d->flush_below || coin()) {
                persist(d, page);
                counts.overwritten++;
            }
        }
        if (data) memcpy(d->now + at, data + (at - offset), end - at);
        else memset(d->now + at, 0, end - at);
        unsigned first = (unsigned)(at % PAGE / SECTOR), last = (unsigned)((end - 1) % PAGE / SECTOR);
        uint8_t sectors = (uint8_t)((2u << last) - (1u << first));
        if (fua) {
            memcpy(d->durable + at, d->now + at, end - at);
            /* The page stays in the list until the next flush looks. */
            d->mask[page] &= (uint8_t)~sectors;
        } else {
            if (!d->written[page]) d->dirty[d->dirty_count++] = page;
            d->mask[page] |= sectors;
            d->written[page] = number;
        }
        at = end;
    }
}

static void flush_done(struct device *d, uint64_t covers) {
    size_t kept = 0;
    for (size_t i = 0; i < d->dirty_count; i++) {
        uint32_t page = d->dirty[i];
        if (d->mask[page] && d->written[page] > covers) {
            d->dirty[kept++] = page;
            continue;
        }
        persist(d, page);
        d->mask[page] = 0;
        d->written[page] = 0;
    }
    d->dirty_count = kept;
}

static void trim(struct device *d, uint64_t offset, uint64_t len) {
    for (uint64_t at = offset; at < offset + len;) {
        uint64_t end = (at / PAGE + 1) * PAGE;
        if (end > offset + len) end = offset + len;
        if (coin()) store(d, at, NULL, end - at, false);
        at = end;
    }
}

static void survive(struct device *d, uint64_t seed, unsigned percent, unsigned torn_percent, bool by_write, uint64_t *kept, uint64_t *lost, uint64_t *torn) {
    for (size_t i = 0; i < d->dirty_count; i++) {
        uint32_t page = d->dirty[i];
        if (d->mask[page]) {
            /* Of the unit, not of the order in which pages were written. */
            uint64_t unit = seed ^ (by_write ? d->written[page] : page) * 0xD1342543DE82EF95;
            uint64_t state = seed ^ page * 0x9FB21C651E98DF25;
            draw(&unit);
            draw(&state);
            if (draw(&unit) % 100 >= percent) {
                ++*lost;
            } else {
                if (draw(&state) % 100 < torn_percent) {
                    d->mask[page] &= (uint8_t)draw(&state);
                    ++*torn;
                } else {
                    ++*kept;
                }
                persist(d, page);
            }
        }
        d->mask[page] = 0;
        d->written[page] = 0;
    }
    d->dirty_count = 0;
    d->flush_below = 0;
    memcpy(d->now, d->durable, d->bytes);
}

/* --- requests ---------------------------------------------------------------------------------------------------------------- */

/* Carry out what is under way, each request or not: nobody is answered. */
static void drain(struct conn *c) {
    struct device *d = &devices[c->device];
    pull(c);
    while (c->in.to - c->in.from >= 28) {
        const uint8_t *p = c->in.at + c->in.from;
        uint16_t command = get16(p + 6);
        uint64_t offset = get64(p + 16), len = get32(p + 24);
        size_t whole = 28 + (command == WRITE ? len : 0);
        if (c->in.to - c->in.from < whole) break;
        if (offset + len <= d->bytes && offset % SECTOR == 0 && len % SECTOR == 0 && coin()) {
            if (command == WRITE || command == ZEROES) store(d, offset, command == WRITE ? p + 28 : NULL, len, false);
            if (command == TRIM) trim(d, offset, len);
        }
        c->in.from += whole;
    }
}

static void cut_now(void) {
    if (is_cut) return;
    is_cut = true;
    armed = -1;
    for (struct conn *c = conns; c < conns + CONNS_MAX; c++)
        if (c->fd >= 0 && c->device >= 0) drain(c);
    late_count = 0;
    say("cut");
}

/* True: this event is the cut. */
static bool event(int which) {
    counts.events[which]++;
    if (armed < 0 || (armed != which && (armed != AT_ANY || which == AT_ANY))) return false;
    return --armed_left == 0;
}

static void later(struct conn *c, uint64_t cookie, uint64_t most_us, bool is_flush) {
    struct device *d = &devices[c->device];
    if (most_us == 0 && !is_flush) {
        answer(c, cookie, 0);
        return;
    }
    if (late_count == late_room) {
        late_room = late_room * 2 + 64;
        lates = need(realloc(lates, late_room * sizeof *lates));
    }
    uint64_t wait_ns = most_us ? draw(&random_state) % (most_us * 1000) : 0;
    if (is_flush) d->flush_below = next_write - 1;
    lates[late_count++] = (struct late){now_ns() + wait_ns, c->number, cookie, next_write - 1, c->device, is_flush};
}

static struct conn *conn_numbered(uint64_t number) {
    for (struct conn *c = conns; c < conns + CONNS_MAX; c++)
        if (c->fd >= 0 && c->number == number) return c;
    return NULL;
}

/* Answer what is due; nanoseconds until the next is. */
static int64_t answer_due(void) {
    int64_t wait = -1;
    uint64_t now = now_ns();
    for (size_t i = 0; i < late_count && !is_cut;) {
        struct late l = lates[i];
        if (l.due_ns > now) {
            if (wait < 0 || (int64_t)(l.due_ns - now) < wait) wait = (int64_t)(l.due_ns - now);
            i++;
            continue;
        }
        lates[i] = lates[--late_count];
        if (l.is_flush) {
            struct device *d = &devices[l.device];
            flush_done(d, l.covers);
            d->flush_below = 0;
            for (size_t k = 0; k < late_count; k++)
                if (lates[k].is_flush && lates[k].device == l.device && lates[k].covers > d->flush_below) d->flush_below = lates[k].covers;
            if (event(AT_FLUSHED)) {
                cut_now();
                return -1;
            }
        }
        struct conn *c = conn_numbered(l.conn_number);
        if (c) answer(c, l.cookie, 0);
    }
    return wait;
}

/* False when the connection is to be closed. */
static bool serve(struct conn *c) {
    struct device *d = &devices[c->device];
    while (!is_cut && c->in.to - c->in.from >= 28) {
        const uint8_t *p = c->in.at + c->in.from;
        if (get32(p) != 0x25609513) return false;
        uint16_t flags = get16(p + 4), command = get16(p + 6);
        uint64_t cookie = get64(p + 8), offset = get64(p + 16), len = get32(p + 24);
        size_t whole = 28 + (command == WRITE ? len : 0);
        if (whole > BODY_MAX) return false;
        if (c->in.to - c->in.from < whole) break;
        bool is_known = command == READ || command == WRITE || command == TRIM || command == ZEROES || command == FLUSH;
        if (command == DISC) return false;
        if (!is_known || (command != FLUSH && (offset > d->bytes || len > d->bytes - offset || offset % SECTOR || len % SECTOR))) {
            answer(c, cookie, 22);
            c->in.from += whole;
            continue;
        }
        bool fua = flags & 1, cut = false;
        if (command == READ) {
            counts.reads++;
            answer(c, cookie, 0);
            put(c, d->now + offset, len);
        } else if (command == FLUSH) {
            cut = event(AT_FLUSH);
            if (!cut) later(c, cookie, d->flush_us, true);
        } else {
            cut = event(command == TRIM ? AT_TRIM : fua ? AT_FUA : AT_WRITE);
            if (command == TRIM) trim(d, offset, len);
            else store(d, offset, command == WRITE ? p + 28 : NULL, len, fua && !cut);
            if (command == TRIM && fua && !cut) flush_done(d, next_write);
            if (!cut) later(c, cookie, d->write_us, false);
        }
        c->in.from += whole;
        if (cut) cut_now();
    }
    return true;
}

static void option_reply(struct conn *c, uint32_t opt, uint32_t kind, uint32_t len) {
    put64(c, 0x3e889045565a9);
    put32(c, opt);
    put32(c, kind);
    put32(c, len);
}

/* False when the connection is to be closed. */
static bool shake_hands(struct conn *c) {
    if (!c->greeted) {
        if (c->in.to - c->in.from < 4) return true;
        c->in.from += 4;
        c->greeted = true;
    }
    while (c->device < 0 && c->in.to - c->in.from >= 16) {
        const uint8_t *p = c->in.at + c->in.from;
        uint32_t opt = get32(p + 8), len = get32(p + 12);
        if (len > 1 << 16) return false;
        if (c->in.to - c->in.from < 16 + len) break;
        if (opt == 2) return false; /* ABORT */
        if (opt == 6 || opt == 7) { /* INFO, GO */
            uint32_t name_len = len >= 4 ? get32(p + 16) : len;
            int found = -1;
            for (int i = 0; i < device_count; i++)
                if (name_len + 4 <= len && strlen(devices[i].name) == name_len && !memcmp(devices[i].name, p + 20, name_len)) found = i;
            if (found >= 0 && devices[found].down) return false;
            if (found < 0) {
                option_reply(c, opt, 1u << 31 | 6, 0);
            } else {
                option_reply(c, opt, 3, 12);
                put16(c, 0);
                put64(c, devices[found].bytes);
                put16(c, FLAGS);
                option_reply(c, opt, 3, 14);
                put16(c, 3);
                put32(c, SECTOR);
                put32(c, PAGE);
                put32(c, 32 << 20);
                option_reply(c, opt, 1, 0);
                if (opt == 7) c->device = found;
            }
        } else {
            option_reply(c, opt, 1u << 31 | 1, 0);
        }
        c->in.from += 16 + len;
    }
    return c->device < 0 || serve(c);
}

static void welcome(int listener) {
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) return;
    for (struct conn *c = conns; c < conns + CONNS_MAX; c++)
        if (c->fd < 0) {
            *c = (struct conn){.fd = fd, .device = -1, .number = next_conn++};
            put64(c, 0x4e42444d41474943);
            put64(c, 0x49484156454F5054);
            put16(c, 3);
            return;
        }
    close(fd);
}

/* --- commands ---------------------------------------------------------------------------------------------------------------- */

static struct device *device_named(const char *name) {
    for (int i = 0; i < device_count; i++)
        if (!strcmp(devices[i].name, name)) return &devices[i];
    fprintf(stderr, "cutdevices: no device %s\n", name);
    exit(2);
}

static void obey(char *line) {
    char word[64], path[2048];
    unsigned long long a = 0, b = 0;
    unsigned p, t;
    if (!strcmp(line, "cut now")) {
        cut_now();
    } else if (sscanf(line, "cut %63s %llu", word, &a) == 2 && a > 0) {
        armed = -1;
        for (int i = 0; i < EVENTS; i++)
            if (!strcmp(word, EVENT_NAMES[i])) armed = i;
        armed_left = a;
        say(armed < 0 ? "no such event" : "armed");
    } else if (sscanf(line, "survive %llu %u %u %63s", &a, &p, &t, word) == 4) {
        uint64_t kept = 0, lost = 0, torn = 0, state = a;
        for (struct conn *c = conns; c < conns + CONNS_MAX; c++)
            if (c->fd >= 0) hang_up(c);
        for (int i = 0; i < device_count; i++) survive(&devices[i], draw(&state), p, t, !strcmp(word, "write"), &kept, &lost, &torn);
        late_count = 0;
        random_state = draw(&state);
        is_cut = false;
        armed = -1;
        say("survived %llu lost %llu torn %llu", (unsigned long long)kept, (unsigned long long)lost, (unsigned long long)torn);
    } else if (sscanf(line, "delay %63s %llu %llu", word, &a, &b) == 3) {
        struct device *d = device_named(word);
        d->write_us = a;
        d->flush_us = b;
        say("done");
    } else if (sscanf(line, "drop %63s", word) == 1) {
        struct device *d = device_named(word);
        d->down = true;
        for (struct conn *c = conns; c < conns + CONNS_MAX; c++)
            if (c->fd >= 0 && c->device == d - devices) {
                drain(c);
                hang_up(c);
            }
        say("done");
    } else if (sscanf(line, "raise %63s", word) == 1) {
        device_named(word)->down = false;
        say("done");
    } else if (sscanf(line, "save %63s %2047s", word, path) == 2) {
        struct device *d = device_named(word);
        FILE *file = fopen(path, "w");
        bool is_saved = file && fwrite(d->now, 1, d->bytes, file) == d->bytes;
        if (file && fclose(file)) is_saved = false;
        say(is_saved ? "done" : "not saved");
    } else if (!strcmp(line, "counts")) {
        printf("counts");
        for (int i = 0; i < EVENTS; i++) printf(" %s %llu", EVENT_NAMES[i], (unsigned long long)counts.events[i]);
        say(" read %llu overwritten %llu", (unsigned long long)counts.reads, (unsigned long long)counts.overwritten);
    } else {
        say("what?");
    }
}

/* False at the end of stdin. */
static bool hear(void) {
    static char text[4096];
    static size_t len;
    ssize_t n = read(0, text + len, sizeof text - 1 - len);
    if (n <= 0) return false;
    len += (size_t)n;
    text[len] = 0;
    for (char *end; (end = strchr(text, '\n'));) {
        *end = 0;
        obey(text);
        len -= (size_t)(end + 1 - text);
        memmove(text, end + 1, len + 1);
    }
    return true;
}

int main(int argc, char **argv) {
    if (argc < 4 || argc - 3 > DEVICES_MAX) {
        fprintf(stderr, "usage: cutdevices SOCKET SEED NAME:BYTES...\n");
        return 2;
    }
    random_state = strtoull(argv[2], NULL, 10);
    for (int i = 3; i < argc; i++) {
        struct device *d = &devices[device_count++];
        unsigned long long bytes;
        if (sscanf(argv[i], "%63[^:]:%llu", d->name, &bytes) != 2 || bytes % PAGE || bytes == 0) {
            fprintf(stderr, "cutdevices: %s is not NAME:BYTES in pages of 4 KiB\n", argv[i]);
            return 2;
        }
        d->bytes = bytes;
        d->now = need(calloc(1, bytes));
        d->durable = need(calloc(1, bytes));
        d->mask = need(calloc(bytes / PAGE, sizeof *d->mask));
        d->written = need(calloc(bytes / PAGE, sizeof *d->written));
        d->dirty = need(calloc(bytes / PAGE, sizeof *d->dirty));
    }
    for (struct conn *c = conns; c < conns + CONNS_MAX; c++) c->fd = -1;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(argv[1]) >= sizeof address.sun_path) return fprintf(stderr, "cutdevices: path too long\n"), 2;
    strcpy(address.sun_path, argv[1]);
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, CONNS_MAX)) die(argv[1]);
    say("ready");
    for (;;) {
        int64_t wait = answer_due();
        struct pollfd fds[CONNS_MAX + 2] = {{0, POLLIN, 0}, {listener, POLLIN, 0}};
        struct conn *of[CONNS_MAX];
        nfds_t count = 2;
        for (struct conn *c = conns; c < conns + CONNS_MAX; c++) {
            if (c->fd < 0) continue;
            if (!is_cut && !push(c)) {
                hang_up(c);
                continue;
            }
            short want = POLLIN | (c->out.from < c->out.to ? POLLOUT : 0);
            of[count - 2] = c;
            fds[count++] = (struct pollfd){c->fd, want, 0};
        }
        struct timespec until = {wait / 1000000000, wait % 1000000000};
        /* A dead machine reads nothing and says nothing: only commands are heard. */
        if (is_cut) count = 1;
        int ready = ppoll(fds, count, is_cut || wait < 0 ? NULL : &until, NULL);
        if (ready < 0 && errno != EINTR) die("poll");
        if (ready <= 0) continue;
        if (fds[0].revents && !hear()) return 0;
        if (count > 1 && fds[1].revents && !is_cut) welcome(listener);
        for (nfds_t i = 2; i < count && !is_cut; i++) {
            struct conn *c = of[i - 2];
            if (!fds[i].revents || c->fd != fds[i].fd) continue;
            if (!(fds[i].revents & (POLLIN | POLLHUP | POLLERR))) continue; /* POLLOUT: pushed above */
            bool is_there = pull(c);
            bool goes_on = c->device < 0 ? shake_hands(c) : serve(c);
            if (!is_cut && (!goes_on || !is_there)) hang_up(c);
        }
    }
}
