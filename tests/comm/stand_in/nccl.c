/* A stand-in for libnccl.so.2: collectives on host memory between the processes of one host, for tests.

   It has the symbols that CuPy's module cupy.cuda.nccl needs. A call puts work into the one queue of the process, in
   the order of the calls, whatever their streams; a thread carries it out, one after the other. So work is in flight
   for a while, as on a GPU, and is serialised as strictly as a GPU could. Streams are numbers from 1 on; events ask
   standInLast and standInDone.

   Ranks meet in a memfd that the others open through /proc: it goes with the processes, however they end.

   Environment: STAND_IN_LOG     file to which every call is appended, one JSON object a line
                STAND_IN_VERSION what ncclGetVersion says
                STAND_IN_DELAY   microseconds by which every work begins late
                STAND_IN_FAULT   KIND, or KIND:RANK:CALL for one rank of the world and its how-manieth work, from 0 on:
                                 async  the work never ends, and ncclCommGetAsyncError tells of an error
                                 lost   the work never ends, unless its communicator is aborted
                                 wrong  one bit of what arrives is flipped
                                 id     ncclGetUniqueId fails
                                 split  ncclCommSplit fails
                                 dry    no work is carried out: buffers need no memory */
#define _GNU_SOURCE
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SUCCESS = 0, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, REMOTE_ERROR = 6 };
enum { INT8, UINT8, INT32, UINT32, INT64, UINT64, FLOAT16, FLOAT32, FLOAT64, BFLOAT16, DATATYPES };
enum { SUM = 0 };
enum { SLOT_BYTES = 1 << 16, MOST_RANKS = 16, MOST_STREAMS = 1024, PATH_BYTES = 128, NEVER = -1 };

static const size_t SIZES[DATATYPES] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};

typedef int ncclResult_t;
typedef struct {
    char internal[PATH_BYTES];
} ncclUniqueId;

/* What a call announces, so that the receiver can see a partner that calls something else. */
struct call {
    int code, datatype;
    size_t bytes;
};

struct mailbox {
    _Atomic int full;
    struct call call;
    size_t bytes;
    char data[SLOT_BYTES];
};

struct meeting {
    _Atomic int arrived, generation;
    int color[MOST_RANKS], key[MOST_RANKS];
    char child[MOST_RANKS][PATH_BYTES];
    struct mailbox box[]; /* from each rank to each */
};

typedef struct comm {
    int number, rank, size;
    struct meeting *meeting;
    _Atomic int pending, error;
    _Atomic bool aborted;
} *ncclComm_t;

/* One message of a work, or a copy within the process. */
struct part {
    enum { COPY, OUT, IN, ADD } direction;
    ncclComm_t comm;
    struct call call;
    const char *source;
    char *target;
    size_t moved;
    int peer;
    bool finished;
};

struct work {
    struct work *next;
    uint64_t ticket;
    bool lost, wrong, dry;
    size_t count, room;
    struct part *part;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t arrival = PTHREAD_COND_INITIALIZER;
static struct work *first_work, *last_work;
static uint64_t tickets, last_ticket[MOST_STREAMS];
static _Atomic uint64_t done;
static int communicators, world_rank, calls;

static struct work *group;
static int group_depth;
static uintptr_t group_stream;

static long number_of(const char *variable, long otherwise) {
    const char *value = getenv(variable);
    return value ? atol(value) : otherwise;
}

/* Append one JSON object to the log; a single write keeps the lines of several processes apart. */
__attribute__((format(printf, 1, 2))) static void record(const char *format, ...) {
    const char *path = getenv("STAND_IN_LOG");
    if (!path) return;
    char line[1024];
    int length = snprintf(line, sizeof line, "{\"world_rank\": %d, ", world_rank);
    va_list arguments;
    va_start(arguments, format);
    length += vsnprintf(line + length, sizeof line - length - 3, format, arguments);
    va_end(arguments);
    length += snprintf(line + length, 3, "}\n");
    int file = open(path, O_WRONLY | O_APPEND | O_CREAT, 0600);
    if (file < 0 || write(file, line, length) != length) perror(path);
    close(file);
}

static bool fault(const char *kind, int call) {
    char found[16] = "";
    int rank = NEVER, from = NEVER;
    const char *value = getenv("STAND_IN_FAULT");
    if (!value || sscanf(value, "%15[a-z]:%d:%d", found, &rank, &from) < 1 || strcmp(found, kind)) return false;
    return rank == NEVER || (rank == world_rank && from == call);
}

static float from_bf16(uint16_t half) {
    uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint16_t to_bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16; /* to the nearest, ties to even */
}

/* By hand: compilers have a type for it only of late. */
static float from_half(uint16_t half) {
    float magnitude = half & 0x3ff;
    int exponent = half >> 10 & 0x1f;
    magnitude = exponent ? ldexpf(magnitude + 1024, exponent - 25) : ldexpf(magnitude, -24);
    return half & 0x8000 ? -magnitude : magnitude;
}

static uint16_t to_half(float value) {
    uint16_t sign = value < 0 ? 0x8000 : 0;
    float magnitude = value < 0 ? -value : value;
    if (!(magnitude < 65520)) return sign | 0x7c00;
    int exponent;
    frexpf(magnitude, &exponent); /* magnitude is below 2 to the exponent */
    if (exponent < -13 || magnitude == 0) exponent = -13;
    float scaled = ldexpf(magnitude, 11 - exponent);
    uint16_t whole = scaled;
    float rest = scaled - whole;
    whole += rest > 0.5f || (rest == 0.5f && whole & 1); /* to the nearest, ties to even */
    return sign + (uint16_t)((exponent + 13) << 10) + whole; /* a carry, and the leading 1, count up the exponent */
}

#define ADD_AS(TYPE)                                                                  \
    for (size_t i = 0; i < bytes / sizeof(TYPE); i++) ((TYPE *)sum)[i] += ((const TYPE *)share)[i]; \
    break

static void add(int datatype, void *sum, const void *share, size_t bytes) {
    switch (datatype) {
    case INT8:
    case UINT8: ADD_AS(uint8_t);
    case INT32:
    case UINT32: ADD_AS(uint32_t);
    case INT64:
    case UINT64: ADD_AS(uint64_t);
    case FLOAT32: ADD_AS(float);
    case FLOAT64: ADD_AS(double);
    case FLOAT16:
        for (uint16_t *to = sum, *end = to + bytes / 2, *from = (uint16_t *)share; to < end; to++, from++)
            *to = to_half(from_half(*to) + from_half(*from));
        break;
    case BFLOAT16:
        for (uint16_t *to = sum, *end = to + bytes / 2, *from = (uint16_t *)share; to < end; to++, from++)
            *to = to_bf16(from_bf16(*to) + from_bf16(*from));
    }
}

static bool put(struct part *part, struct mailbox *box) {
    if (box->full) return false;
    part->finished = part->moved == part->call.bytes; /* and the receiver has taken it */
    if (part->finished) return true;
    size_t rest = part->call.bytes - part->moved;
    box->bytes = rest < SLOT_BYTES ? rest : SLOT_BYTES;
    box->call = part->call;
    memcpy(box->data, part->source + part->moved, box->bytes);
    part->moved += box->bytes;
    box->full = true;
    return true;
}

static bool take(struct part *part, struct mailbox *box) {
    if (!box->full || part->comm->error) return false;
    if (memcmp(&box->call, &part->call, sizeof part->call)) {
        record("\"fault\": \"calls differ\", \"comm\": %d, \"peer\": %d", part->comm->number, part->peer);
        part->comm->error = INVALID_USAGE;
        return false;
    }
    if (part->direction == ADD)
        add(part->call.datatype, part->target + part->moved, box->data, box->bytes);
    else
        memcpy(part->target + part->moved, box->data, box->bytes);
    part->moved += box->bytes;
    part->finished = part->moved == part->call.bytes;
    box->full = false;
    return true;
}

static bool same_way(const struct part *one, const struct part *other) {
    return one->comm == other->comm && one->peer == other->peer && (one->direction == OUT) == (other->direction == OUT);
}

/* Move a part on; false where that is not possible now. Messages to the same rank keep their order. */
static bool step(struct work *work, struct part *part) {
    for (struct part *earlier = work->part; earlier < part; earlier++)
        if (!earlier->finished && same_way(earlier, part)) return false;
    ncclComm_t comm = part->comm;
    if (part->direction == COPY) memmove(part->target, part->source, part->call.bytes);
    if (part->direction == COPY || !part->call.bytes) return part->finished = true;
    if (part->direction == OUT) return put(part, &comm->meeting->box[comm->rank * comm->size + part->peer]);
    return take(part, &comm->meeting->box[part->peer * comm->size + comm->rank]);
}

static void carry_out(struct work *work) {
    long delay = number_of("STAND_IN_DELAY", 0);
    if (delay) usleep(delay);
    size_t left = work->dry ? 0 : work->count;
    while ((left || work->lost) && !work->part->comm->aborted) {
        bool moved = false;
        for (struct part *part = work->part; part < work->part + work->count; part++) {
            if (part->finished || work->lost || !step(work, part)) continue;
            moved = true;
            left -= part->finished;
        }
        if (!moved) usleep(1);
    }
    for (struct part *part = work->part; work->wrong && part < work->part + work->count; part++) {
        if (part->direction == OUT) continue;
        part->target[0] ^= 1;
        work->wrong = false;
    }
    for (struct part *part = work->part; part < work->part + work->count; part++) part->comm->pending--;
}

static void *worker(void *unused) {
    for (;;) {
        pthread_mutex_lock(&lock);
        while (!first_work) pthread_cond_wait(&arrival, &lock);
        struct work *work = first_work;
        first_work = work->next;
        pthread_mutex_unlock(&lock);
        carry_out(work);
        done = work->ticket;
        free(work->part);
        free(work);
    }
    return unused;
}

static void enqueue(struct work *work, uintptr_t stream) {
    work->lost = fault("async", calls) || fault("lost", calls);
    work->wrong = fault("wrong", calls);
    work->dry = fault("dry", calls);
    if (fault("async", calls)) work->part->comm->error = REMOTE_ERROR;
    calls++;
    pthread_mutex_lock(&lock);
    if (!tickets) {
        pthread_t thread;
        pthread_create(&thread, NULL, worker, NULL);
        pthread_detach(thread);
    }
    work->ticket = last_ticket[stream] = ++tickets;
    *(first_work ? &last_work->next : &first_work) = work;
    last_work = work;
    pthread_cond_signal(&arrival);
    pthread_mutex_unlock(&lock);
}

static void append(struct part part) {
    if (group->count == group->room) {
        group->room = 2 * group->room + 4;
        group->part = realloc(group->part, group->room * sizeof *group->part);
    }
    group->part[group->count++] = part;
    part.comm->pending++;
}

ncclResult_t ncclGroupStart(void) {
    record("\"call\": \"ncclGroupStart\"");
    if (!group_depth++) group = calloc(1, sizeof *group);
    return SUCCESS;
}

static void end_group(void) {
    if (--group_depth) return;
    if (group->count)
        enqueue(group, group_stream);
    else
        free(group);
}

ncclResult_t ncclGroupEnd(void) {
    record("\"call\": \"ncclGroupEnd\"");
    if (!group_depth) return INVALID_USAGE;
    end_group();
    return SUCCESS;
}

/* A call on data, in a group of its own unless there is one. False where an argument is wrong. */
static bool begin(const char *name, ncclComm_t comm, const void *send, const void *receive, size_t count, int datatype,
                  int operation, int peer, void *stream) {
    record("\"call\": \"%s\", \"comm\": %d, \"send\": %zu, \"receive\": %zu, \"count\": %zu, \"datatype\": %d, "
           "\"op\": %d, \"peer\": %d, \"stream\": %zu",
           name, comm->number, (size_t)send, (size_t)receive, count, datatype, operation, peer, (size_t)stream);
    bool known = (unsigned)datatype < DATATYPES && operation == SUM && peer < comm->size;
    bool streams = 0 < (uintptr_t)stream && (uintptr_t)stream < MOST_STREAMS; /* the default stream would block all */
    if (!known || !streams || (group && group_depth && group->count && group_stream != (uintptr_t)stream)) return false;
    if (!group_depth++) group = calloc(1, sizeof *group);
    group_stream = (uintptr_t)stream;
    return true;
}

static void out(ncclComm_t comm, struct call call, const void *source, int peer) {
    append((struct part){.direction = OUT, .comm = comm, .call = call, .source = source, .peer = peer});
}

static void in(ncclComm_t comm, struct call call, void *target, int peer, bool adding) {
    append((struct part){.direction = adding ? ADD : IN, .comm = comm, .call = call, .target = target, .peer = peer});
}

static void copy(ncclComm_t comm, struct call call, const void *source, void *target) {
    append((struct part){.direction = COPY, .comm = comm, .call = call, .source = source, .target = target, .peer = NEVER});
}

/* Exchange blocks with every rank: `from` and `to` say how far apart those of neighbouring ranks lie. */
static ncclResult_t exchange(ncclComm_t comm, struct call call, const char *send, size_t from, char *receive, size_t to,
                             bool adding) {
    copy(comm, call, send + comm->rank * from, receive + comm->rank * to);
    for (int peer = 0; peer < comm->size; peer++) {
        if (peer == comm->rank) continue;
        out(comm, call, send + peer * from, peer);
        in(comm, call, receive + peer * to, peer, adding);
    }
    end_group();
    return SUCCESS;
}

ncclResult_t ncclAllReduce(const void *send, void *receive, size_t count, int datatype, int op, ncclComm_t comm,
                           void *stream) {
    if (!begin("ncclAllReduce", comm, send, receive, count, datatype, op, NEVER, stream)) return INVALID_ARGUMENT;
    return exchange(comm, (struct call){1, datatype, count * SIZES[datatype]}, send, 0, receive, 0, true);
}

ncclResult_t ncclAllGather(const void *send, void *receive, size_t count, int datatype, ncclComm_t comm, void *stream) {
    if (!begin("ncclAllGather", comm, send, receive, count, datatype, SUM, NEVER, stream)) return INVALID_ARGUMENT;
    size_t block = count * SIZES[datatype];
    return exchange(comm, (struct call){2, datatype, block}, send, 0, receive, block, false);
}

ncclResult_t ncclReduceScatter(const void *send, void *receive, size_t count, int datatype, int op, ncclComm_t comm,
                               void *stream) {
    if (!begin("ncclReduceScatter", comm, send, receive, count, datatype, op, NEVER, stream)) return INVALID_ARGUMENT;
    size_t block = count * SIZES[datatype];
    return exchange(comm, (struct call){3, datatype, block}, send, block, receive, 0, true);
}

ncclResult_t ncclSend(const void *send, size_t count, int datatype, int peer, ncclComm_t comm, void *stream) {
    if (!begin("ncclSend", comm, send, NULL, count, datatype, SUM, peer, stream)) return INVALID_ARGUMENT;
    out(comm, (struct call){4, datatype, count * SIZES[datatype]}, send, peer);
    end_group();
    return SUCCESS;
}

ncclResult_t ncclRecv(void *receive, size_t count, int datatype, int peer, ncclComm_t comm, void *stream) {
    if (!begin("ncclRecv", comm, NULL, receive, count, datatype, SUM, peer, stream)) return INVALID_ARGUMENT;
    in(comm, (struct call){4, datatype, count * SIZES[datatype]}, receive, peer, false);
    end_group();
    return SUCCESS;
}

/* dlbench calls none of these; CuPy's module needs their names. */
ncclResult_t ncclBcast(void) { return INVALID_USAGE; }
ncclResult_t ncclBroadcast(void) { return INVALID_USAGE; }
ncclResult_t ncclReduce(void) { return INVALID_USAGE; }
ncclResult_t ncclCommInitAll(void) { return INVALID_USAGE; }

static int new_meeting(char *path) {
    int file = memfd_create("nccl stand-in", MFD_CLOEXEC);
    snprintf(path, PATH_BYTES, "/proc/%d/fd/%d", getpid(), file);
    return file;
}

static void forget_meeting(const char *path) {
    int process = 0, file = 0;
    if (sscanf(path, "/proc/%d/fd/%d", &process, &file) == 2 && process == getpid()) close(file);
}

static size_t meeting_bytes(int size) { return sizeof(struct meeting) + (size_t)size * size * sizeof(struct mailbox); }

static void meet(ncclComm_t comm) {
    struct meeting *meeting = comm->meeting;
    int generation = meeting->generation;
    if (++meeting->arrived == comm->size) {
        meeting->arrived = 0;
        meeting->generation++;
        return;
    }
    while (meeting->generation == generation) usleep(100);
}

static ncclComm_t join(const char *path, int size, int rank) {
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0 || ftruncate(file, meeting_bytes(size))) return NULL;
    ncclComm_t comm = calloc(1, sizeof *comm);
    comm->number = communicators++;
    comm->rank = rank;
    comm->size = size;
    comm->meeting = mmap(NULL, meeting_bytes(size), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    meet(comm);
    forget_meeting(path);
    return comm;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    record("\"call\": \"ncclGetUniqueId\"");
    return fault("id", NEVER) || new_meeting(id->internal) < 0 ? SYSTEM_ERROR : SUCCESS;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int size, ncclUniqueId id, int rank, void *config) {
    if (!communicators) world_rank = rank;
    if (size > MOST_RANKS || rank >= size) return INVALID_ARGUMENT;
    record("\"call\": \"ncclCommInitRankConfig\", \"comm\": %d, \"size\": %d, \"rank\": %d", communicators, size, rank);
    *comm = join(id.internal, size, rank);
    return *comm ? SUCCESS : SYSTEM_ERROR;
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *child, void *config) {
    record("\"call\": \"ncclCommSplit\", \"parent\": %d, \"comm\": %d, \"color\": %d, \"key\": %d", comm->number,
           communicators, color, key);
    if (fault("split", NEVER)) return SYSTEM_ERROR;
    struct meeting *meeting = comm->meeting;
    meeting->color[comm->rank] = color;
    meeting->key[comm->rank] = key;
    meet(comm);
    int size = 0, before = 0, leader = comm->rank;
    for (int rank = 0; rank < comm->size; rank++) {
        if (meeting->color[rank] != color) continue;
        size++;
        before += meeting->key[rank] < key || (meeting->key[rank] == key && rank < comm->rank);
        int least = meeting->key[leader];
        if (meeting->key[rank] < least || (meeting->key[rank] == least && rank < leader)) leader = rank;
    }
    if (leader == comm->rank) new_meeting(meeting->child[leader]);
    meet(comm);
    *child = join(meeting->child[leader], size, before);
    meet(comm);
    return *child ? SUCCESS : SYSTEM_ERROR;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    bool pending = comm->pending;
    record("\"call\": \"ncclCommDestroy\", \"comm\": %d, \"in_flight\": %d", comm->number, pending);
    if (pending) return INVALID_USAGE;
    munmap(comm->meeting, meeting_bytes(comm->size));
    free(comm);
    return SUCCESS;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
    record("\"call\": \"ncclCommAbort\", \"comm\": %d", comm->number);
    comm->aborted = true; /* its memory stays: work may still refer to it */
    return SUCCESS;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error) {
    *error = comm->error;
    return SUCCESS;
}

ncclResult_t ncclCommCount(ncclComm_t comm, int *size) {
    *size = comm->size;
    return SUCCESS;
}

ncclResult_t ncclCommUserRank(ncclComm_t comm, int *rank) {
    *rank = comm->rank;
    return SUCCESS;
}

ncclResult_t ncclCommCuDevice(ncclComm_t comm, int *device) {
    *device = 0;
    return SUCCESS;
}

ncclResult_t ncclGetVersion(int *version) {
    *version = number_of("STAND_IN_VERSION", 22304);
    return SUCCESS;
}

const char *ncclGetErrorString(ncclResult_t error) {
    switch (error) {
    case SUCCESS: return "no error";
    case SYSTEM_ERROR: return "unhandled system error";
    case INVALID_ARGUMENT: return "invalid argument";
    case INVALID_USAGE: return "invalid usage";
    case REMOTE_ERROR: return "remote process exited or there was a network error";
    default: return "unknown error";
    }
}

/* For the streams and events of the host device. */
uint64_t standInLast(uintptr_t stream) {
    pthread_mutex_lock(&lock);
    uint64_t ticket = last_ticket[stream];
    pthread_mutex_unlock(&lock);
    return ticket;
}

int standInDone(uint64_t ticket) { return done >= ticket; }
