/* emulator.c: runs a kernel's threads on the host as coroutines. One block at a time, or all in rounds; a block runs
 * until all its threads wait or are done, and so does a warp within it. A deadlock ends the program with a message.
 * AddressSanitizer checks the coroutines' stacks too: it needs to know where they are only to describe what it found,
 * and is told once a block, since being told of every switch takes a third of the time. */
#define _GNU_SOURCE
#include "emulator.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include "half.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#define HAVE_ASAN 1
#else
#define HAVE_ASAN 0
#endif

enum { WARP = 32, MAX_THREADS = 1024, MAX_WARPS = MAX_THREADS / WARP, STACK_BYTES = 256 * 1024 };
enum { MAX_COPIES = 128, N_BARRIERS = 24, WARPGROUPS = 16 /* their barriers start here */, WARPGROUP = 128 };
enum { MAX_BYTE_BARRIERS = 64, MAX_BOXES = 256, SHARED_ALIGNMENT = 1024 };
enum { MOST_TOGETHER = 1024, MOST_QUIET = 100 /* rounds */ };
enum { DONE, READY, AT_BARRIER, AT_WARP, AT_BYTES, AT_POLL };
enum { PLAIN, AHEAD, TOGETHER }; /* launches */

/* A pending asynchronous copy. */
typedef struct copy {
  void *to;
  unsigned char bytes[16];
  unsigned group;
  int n_bytes;
} copy;

/* Small, and what is large outside: a switch touches a warp's. */
typedef struct fiber {
#ifdef __x86_64__
  void *stack_pointer;
#else
  ucontext_t context;
#endif
  unsigned char *stack;
  int barrier, n_expected; /* which, and for how many threads; 0: all that are running */
  int64_t n_barriers;
  unsigned n_shuffles;
  float deposit[2][12]; /* of the even and the odd shuffles; tensor core products use all of them */
  copy *copies;         /* MAX_COPIES, from the first one on */
  int n_copies;
  unsigned n_groups; /* committed */
} fiber;

/* A transaction barrier, and what is under way to shared memory: a box, or bytes. */
typedef struct byte_barrier {
  uint32_t address, phase;
  int arrivals, left;
  int64_t bytes;
} byte_barrier;
typedef struct box {
  kr_emulated_map map;
  const void *bytes; /* NULL: a box */
  uint32_t to, barrier;
  int at[4], n_bytes;
} box;

typedef struct resident {
  kr_emulated_place place;
  fiber *fibers;                      /* MAX_THREADS */
  unsigned char states[MAX_THREADS];  /* of the fibers */
  byte_barrier byte_barriers[MAX_BYTE_BARRIERS];
  box boxes[MAX_BOXES]; /* the oldest first */
  int n_byte_barriers, n_boxes, n_arrived[N_BARRIERS], is_done;
} resident;

kr_emulated_place kr_emulated_now;

static resident *blocks[MOST_TOGETHER], *current; /* those that live, and the running one */
static fiber *fibers;                          /* its own */
static fiber *running, scheduler;
static int came_further; /* anything but a poll that was not satisfied, since the round began */
static unsigned char *lowest_stack, *end_of_stacks;
static kr_emulated_kernel *kernels, *launched;
static const void *launched_args;
static int order, blocks_in_order, n_together, block_order[MOST_TOGETHER], warp_order[MAX_WARPS], lane_order[WARP];
static int64_t skipped_barrier = -1, n_skipped, n_launches, n_ahead, n_waited,
               n_exchanges /* complete ones, of any warp */;
static uint32_t random_state = 1;

void kr_emulated_add(kr_emulated_kernel *kernel) { kernel->next = kernels, kernels = kernel; }
void kr_emulated_order(int o) { order = o; }
void kr_emulated_blocks_in_order(int yes) { blocks_in_order = yes; }
void kr_emulated_skip_barrier(int64_t n) { skipped_barrier = n; }
int64_t kr_emulated_launches(void) { return n_launches; }
int64_t kr_emulated_pdl(void) { return n_ahead; }
void kr_emulated_others_done(void) { n_waited++; }
int64_t kr_emulated_skipped(void) { return n_skipped; }

/* The image's first line is "// MODULE.TIER". */
void *kr_emulated_find(const void *image, const char *name) {
  const char *const module = strncmp(image, "// ", 3) == 0 ? (const char *)image + 3 : "";
  const size_t n = strcspn(module, ".");
  for (kr_emulated_kernel *k = kernels; k; k = k->next)
    if (strlen(k->module) == n && strncmp(k->module, module, n) == 0 && strcmp(k->name, name) == 0) return k;
  return NULL;
}

/* Of states, orders and registers alone, no kernel's memory. */
#define BOOKKEEPING __attribute__((no_sanitize_address, no_sanitize_undefined))

/* ---- switching --------------------------------------------------------------------------------------------------- */

#ifdef __x86_64__
void kr_emulated_jump(void **save, void *to);
__asm__(
    ".text\n.globl kr_emulated_jump\n.hidden kr_emulated_jump\n.type kr_emulated_jump,@function\nkr_emulated_jump:\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\n"
    "pop %rcx\njmp *%rcx\n" /* the processor's guess at a ret would be wrong: it is of the other coroutine's calls */
    ".size kr_emulated_jump,.-kr_emulated_jump\n");

BOOKKEEPING static void jump(fiber *from, fiber *to) { kr_emulated_jump(&from->stack_pointer, to->stack_pointer); }

static void prepare(fiber *f, void (*entry)(void), int below_top) {
  void **top = (void **)(f->stack + STACK_BYTES - below_top) - 8;
  memset(top, 0, 8 * sizeof *top);
  top[6] = (void *)(uintptr_t)entry; /* where the first switch returns to, below six saved registers */
  f->stack_pointer = top;
}
#else
static void jump(fiber *from, fiber *to) { swapcontext(&from->context, &to->context); }

static void prepare(fiber *f, void (*entry)(void), int below_top) {
  getcontext(&f->context);
  f->context.uc_stack.ss_sp = f->stack;
  f->context.uc_stack.ss_size = (size_t)(STACK_BYTES - below_top);
  makecontext(&f->context, entry, 0);
}
#endif

/* Whether the stacks are the coroutines' from now on. */
static void tell_sanitizer(int is_inside) {
#if HAVE_ASAN
  static const void *bottom;
  static size_t bytes;
  static void *fake_stack;
  if (is_inside) {
    __sanitizer_start_switch_fiber(&fake_stack, lowest_stack, (size_t)(end_of_stacks - lowest_stack));
    __sanitizer_finish_switch_fiber(NULL, &bottom, &bytes);
  } else {
    __sanitizer_start_switch_fiber(NULL, bottom, bytes);
    __sanitizer_finish_switch_fiber(fake_stack, NULL, NULL);
  }
#else
  (void)is_inside;
#endif
}

BOOKKEEPING static unsigned char *state_of(const fiber *f) { return &current->states[f - fibers]; }

BOOKKEEPING static void wait_for(int what) {
  *state_of(running) = (unsigned char)what;
  jump(running, &scheduler);
}

static void enter_fiber(void) {
  for (;;) { /* the same coroutine serves thread i of every block */
    launched->call(launched_args);
    wait_for(DONE);
  }
}

/* The stacks' tops are not a multiple of a page apart, else all would want the same few lines of the cache. */
static void make_stack(fiber *f, int thread) {
  void *stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stack == MAP_FAILED) fprintf(stderr, "emulator: no memory for stacks\n"), abort();
  f->stack = stack;
  if (!lowest_stack || f->stack < lowest_stack) lowest_stack = f->stack;
  if (f->stack + STACK_BYTES > end_of_stacks) end_of_stacks = f->stack + STACK_BYTES;
  prepare(f, enter_fiber, thread % 16 * 192);
}

BOOKKEEPING static void resume(int thread) {
  fiber *f = &fibers[thread];
  running = f;
  kr_emulated_now.thread = thread;
  jump(&scheduler, f);
  came_further |= current->states[thread] != AT_POLL;
}

/* ---- called by kernels ------------------------------------------------------------------------------------------- */

void kr_emulated_sync_some(int barrier, int n_threads) {
  running->barrier = barrier, running->n_expected = n_threads;
  if (running->n_barriers++ == skipped_barrier) n_skipped++;
  else wait_for(AT_BARRIER);
}

void kr_emulated_sync(void) { kr_emulated_sync_some(0, 0); }

void kr_emulated_again(void) { wait_for(AT_POLL); }
void kr_emulated_published(void) { came_further = 1; }

void kr_emulated_await(const int32_t *from, int least) {
  while (*(const volatile int32_t *)from < least) kr_emulated_again();
}

void kr_emulated_sync_warp(void) { wait_for(AT_WARP); }

void kr_emulated_copy(void *to, const void *from, int n_bytes) {
  kr_emulated_copy_some(to, from, from ? n_bytes : 0, n_bytes);
}

void kr_emulated_copy_some(void *to, const void *from, int n_exist, int n_bytes) {
  if (!running->copies && !(running->copies = malloc(MAX_COPIES * sizeof *running->copies)))
    fprintf(stderr, "emulator: no memory for copies\n"), abort();
  copy *c = &running->copies[running->n_copies];
  if (n_bytes == 16 && ((uintptr_t)to | (uintptr_t)from) % 16) /* fewer: part of a block */
    fprintf(stderr, "emulator: %s copies 16 bytes from %p to %p\n", launched->name, from, to), abort();
  if (running->n_copies == MAX_COPIES)
    fprintf(stderr, "emulator: %s has more than %d copies under way\n", launched->name, MAX_COPIES), abort();
  c->to = to, c->group = running->n_groups, c->n_bytes = n_bytes;
  memset(c->bytes, 0, sizeof c->bytes);
  memcpy(c->bytes, from ? from : "", (size_t)n_exist);
  memset(to, 0xfb, (size_t)n_bytes);
  running->n_copies++;
}

void kr_emulated_commit_copies(void) { running->n_groups++; }

void kr_emulated_await_copies(unsigned n_under_way) {
  int n = 0;
  for (int i = 0; i < running->n_copies; i++) {
    const copy *c = &running->copies[i];
    if (c->group + n_under_way < running->n_groups) memcpy(c->to, c->bytes, (size_t)c->n_bytes);
    else running->copies[n++] = *c;
  }
  running->n_copies = n;
}

/* Shares n values with the warp. Returns which of two slots they are in: a fast lane may be one exchange ahead. */
BOOKKEEPING static unsigned deposit(const float *values, int n) {
  const unsigned which = running->n_shuffles++ & 1;
  for (int i = 0; i < n; i++) running->deposit[which][i] = values[i];
  wait_for(AT_WARP);
  return which;
}

BOOKKEEPING float kr_emulated_shuffle(float v, int other) {
  const unsigned which = deposit(&v, 1);
  if (other >= kr_emulated_now.block_threads || other / WARP != kr_emulated_now.thread / WARP ||
      fibers[other].n_shuffles < running->n_shuffles)
    return NAN; /* exited before */
  return fibers[other].deposit[which][0];
}

/* A matrix instruction needs the whole warp. */
BOOKKEEPING static void want_all_lanes(const fiber *warp, const char *what) {
  for (int l = 0; l < WARP; l++)
    if (warp[l].n_shuffles < running->n_shuffles)
      fprintf(stderr, "emulator: %s: %s without lane %d\n", launched->name, what, l), abort();
}

/* Lane l provides row l % 8 of matrix l / 8, and gets elements 2 q and 2 q + 1 of row g of each matrix; transposed: of
 * column g. */
void kr_emulated_load_matrices(uint32_t d[4], const void *row, int turned) {
  if ((uintptr_t)row % 16)
    fprintf(stderr, "emulator: %s loads a matrix row not aligned to 16 bytes\n", launched->name), abort();
  float chunk[4];
  memcpy(chunk, row, sizeof chunk);
  const unsigned which = deposit(chunk, 4);
  const int lane = kr_emulated_now.thread % WARP, g = lane / 4, q = lane % 4;
  const fiber *warp = fibers + kr_emulated_now.thread - lane;
  want_all_lanes(warp, "matrices");
  for (int i = 0; i < 4; i++) {
    uint16_t pair[2];
    for (int k = 0; k < 2; k++) {
      const int from_row = turned ? 2 * q + k : g, from_column = turned ? g : 2 * q + k;
      memcpy(&pair[k], (const char *)warp[8 * i + from_row].deposit[which] + 2 * from_column, 2);
    }
    d[i] = (uint32_t)pair[1] << 16 | pair[0];
  }
}

/* A warp's product: rows and columns of the sums, of the exchange that products_of tells. The first lane that goes on
 * makes it for all. */
enum { MOST_COLUMNS = 256 };
static double products[16][MOST_COLUMNS];
static int64_t products_of = -1;

/* Whether this lane is the first of its warp. */
BOOKKEEPING static int begin_products(const fiber *warp, int n_columns, const char *what) {
  if (products_of == n_exchanges) return 0;
  want_all_lanes(warp, what);
  for (int r = 0; r < 16; r++)
    for (int c = 0; c < n_columns; c++) products[r][c] = 0;
  products_of = n_exchanges;
  return 1;
}

/* Of one k: every sum gets its row's value times its column's. */
BOOKKEEPING static void add_outer(const float rows[16], const float *columns, int n_columns) {
  for (int r = 0; r < 16; r++)
    for (int c = 0; c < n_columns; c++) products[r][c] += (double)rows[r] * (double)columns[c];
}

/* Lane 4 g + q provides n elements each of rows g and g + 8 of a, and of column g of b; the lanes of a row or column
 * have all of its k. */
BOOKKEEPING static void multiply_warp(const fiber *warp, unsigned which, int n) {
  for (int q = 0; q < 4; q++)
    for (int k = 0; k < n; k++) {
      float rows[16], columns[8];
      for (int r = 0; r < 16; r++) rows[r] = warp[r % 8 * 4 + q].deposit[which][r / 8 * n + k];
      for (int c = 0; c < 8; c++) columns[c] = warp[c * 4 + q].deposit[which][2 * n + k];
      add_outer(rows, columns, 8);
    }
}

BOOKKEEPING static void add_products(float d[4], const float *factors, int n) {
  const unsigned which = deposit(factors, 3 * n);
  const int lane = kr_emulated_now.thread % WARP;
  const fiber *warp = fibers + kr_emulated_now.thread - lane;
  if (begin_products(warp, 8, "a product")) multiply_warp(warp, which, n);
  for (int i = 0; i < 4; i++) d[i] = (float)((double)d[i] + products[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2]);
}

/* Columns 2 q + {0, 1, 8, 9}. */
BOOKKEEPING static void multiply(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1, float (*widen)(uint16_t)) {
  const uint32_t words[6] = {a[0], a[2], a[1], a[3], b0, b1};
  float factors[12];
  for (int i = 0; i < 12; i++) factors[i] = widen((uint16_t)(words[i / 2] >> i % 2 * 16));
  add_products(d, factors, 4);
}
BOOKKEEPING void kr_emulated_mma(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
  multiply(d, a, b0, b1, kr_f16_to_float);
}
BOOKKEEPING void kr_emulated_mma_bf16(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
  multiply(d, a, b0, b1, kr_bf16_to_float);
}

/* Columns 4 q + {0, 1, 2, 3, 16, 17, 18, 19}: signed bytes. */
BOOKKEEPING void kr_emulated_mma_bytes(int32_t d[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
  float factors[12], sums[4] = {0};
  for (int half = 0; half < 2; half++) {
    const uint32_t words[3] = {a[2 * half], a[2 * half + 1], half ? b1 : b0};
    for (int i = 0; i < 12; i++) factors[i] = (float)(int8_t)(words[i / 4] >> i % 4 * 8);
    add_products(sums, factors, 4);
  }
  for (int i = 0; i < 4; i++) d[i] += (int32_t)sums[i];
}

/* Columns q + {0, 4}; the instruction uses 11 significant bits. */
BOOKKEEPING void kr_emulated_mma_tf32(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
  const uint32_t words[6] = {a[0] & ~0x1fffu, a[2] & ~0x1fffu, a[1] & ~0x1fffu,
                             a[3] & ~0x1fffu, b0 & ~0x1fffu,   b1 & ~0x1fffu};
  float factors[6];
  memcpy(factors, words, sizeof factors);
  add_products(d, factors, 2);
}

/* ---- clusters ---------------------------------------------------------------------------------------------------- */

/* What blocks of a launch have sent to the first of their cluster, and how many blocks of each cluster are done. */
typedef struct sent {
  int cluster;
  uint32_t to;
  float v[4];
} sent;
enum { MOST_SENT = 1 << 20, MOST_CLUSTERS = 1 << 16 };
static sent *sents;
static int n_sents, n_came[MOST_CLUSTERS], last_gathered = -1, is_complete;

void kr_emulated_send(const void *to, const float v[4], int n_blocks) {
  if (!sents) sents = malloc(MOST_SENT * sizeof *sents);
  if (!sents || n_sents == MOST_SENT) fprintf(stderr, "emulator: %s sends too much\n", launched->name), abort();
  sents[n_sents] = (sent){kr_emulated_now.block[0] / n_blocks, kr_emulated_shared_at(to), {v[0], v[1], v[2], v[3]}};
  n_sents++;
}

int kr_emulated_gathered(int n_blocks) {
  const int here = kr_emulated_now.block[0], cluster = here / n_blocks;
  kr_emulated_sync();
  if (n_together > 1) fprintf(stderr, "emulator: %s: clusters of blocks that live at once\n", launched->name), abort();
  if (cluster >= MOST_CLUSTERS) fprintf(stderr, "emulator: %s: too many clusters\n", launched->name), abort();
  if (last_gathered == here) return is_complete;
  last_gathered = here, is_complete = ++n_came[cluster] == n_blocks;
  for (int i = 0; i < n_sents && is_complete; i++)
    if (sents[i].cluster == cluster) memcpy(kr_emulated_at(sents[i].to), sents[i].v, sizeof sents[i].v);
  return is_complete;
}

static void forget_clusters(void) {
  if (last_gathered >= 0) memset(n_came, 0, sizeof n_came);
  n_sents = 0, last_gathered = -1;
}

/* ---- Hopper ------------------------------------------------------------------------------------------------------ */

void kr_emulated_arrive(int barrier, int n_threads) { (void)n_threads, current->n_arrived[barrier]++; }

void kr_emulated_sync_warpgroup(void) {
  running->barrier = WARPGROUPS + kr_emulated_now.thread / WARPGROUP, running->n_expected = WARPGROUP;
  wait_for(AT_BARRIER);
}

uint64_t kr_emulated_parameters(void) { return (uint64_t)(uintptr_t)launched_args; }

/* Shared memory starts at SHARED_ALIGNMENT: 0 is not an address. */
uint32_t kr_emulated_shared_at(const void *p) {
  return (uint32_t)((const unsigned char *)p - kr_emulated_now.dynamic_shared) + SHARED_ALIGNMENT;
}
static unsigned char *shared(uint32_t address) { return kr_emulated_now.dynamic_shared + (address - SHARED_ALIGNMENT); }

void *kr_emulated_at(uint32_t address) { return shared(address); }

static byte_barrier *byte_barrier_at(uint32_t address) {
  for (int i = 0; i < current->n_byte_barriers; i++)
    if (current->byte_barriers[i].address == address) return &current->byte_barriers[i];
  fprintf(stderr, "emulator: %s: no barrier was opened at %u\n", launched->name, address), abort();
}

static void end_phase(byte_barrier *b) {
  if (b->left || b->bytes) return;
  b->phase++, b->left = b->arrivals;
  for (int i = 0; i < kr_emulated_now.block_threads; i++)
    if (current->states[i] == AT_BYTES) current->states[i] = READY;
}

void kr_emulated_barrier_open(uint32_t barrier, int arrivals) {
  const int n_open = current->n_byte_barriers;
  if (n_open == MAX_BYTE_BARRIERS || barrier % 8)
    fprintf(stderr, "emulator: %s: a barrier at %u, %d are open\n", launched->name, barrier, n_open), abort();
  memset(shared(barrier), 0, 8);
  current->byte_barriers[current->n_byte_barriers++] =
      (byte_barrier){.address = barrier, .arrivals = arrivals, .left = arrivals};
}

void kr_emulated_barrier_arrive(uint32_t barrier, int bytes) {
  byte_barrier *b = byte_barrier_at(barrier);
  if (!b->left)
    fprintf(stderr, "emulator: %s: more arrivals at a barrier than %d\n", launched->name, b->arrivals), abort();
  b->bytes += bytes, b->left--;
  end_phase(b);
}

void kr_emulated_barrier_await(uint32_t barrier, uint32_t parity) {
  const byte_barrier *b = byte_barrier_at(barrier);
  while ((b->phase & 1) == parity) wait_for(AT_BYTES);
}

/* The address of 16-byte chunk `chunk` in a row of 128 bytes: the swizzle depends on the address. */
static unsigned char *swizzled(uint32_t block, uint32_t row, uint32_t byte) {
  const uint32_t address = block + row * 128 + byte;
  return shared(address ^ (address >> 7 & 7) << 4);
}

static int64_t box_bytes(const kr_emulated_map *m) {
  int64_t n = m->bytes;
  for (uint32_t i = 0; i < m->rank; i++) n *= m->box[i];
  return n;
}

static box *new_box(uint32_t to, uint32_t barrier, int64_t n_bytes) {
  if (current->n_boxes == MAX_BOXES)
    fprintf(stderr, "emulator: %s: more than %d boxes under way\n", launched->name, MAX_BOXES), abort();
  box *const b = &current->boxes[current->n_boxes++];
  *b = (box){.to = to, .barrier = barrier, .n_bytes = (int)n_bytes};
  memset(shared(to), 0xfb, (size_t)n_bytes);
  return b;
}

void kr_emulated_load_box(uint32_t to, uint64_t map, uint32_t barrier, const int at[4]) {
  kr_emulated_map m;
  memcpy(&m, (const void *)(uintptr_t)map, sizeof m);
  if (to % SHARED_ALIGNMENT || m.box[0] * m.bytes != 128)
    fprintf(stderr, "emulator: %s: a box of %u elements at %u\n", launched->name, m.box[0], to), abort();
  box *const b = new_box(to, barrier, box_bytes(&m));
  b->map = m;
  memcpy(b->at, at, sizeof b->at);
}

void kr_emulated_load_bytes(uint32_t to, const void *from, int bytes, uint32_t barrier) {
  if ((to | (uint32_t)bytes | (uint32_t)(uintptr_t)from) % 16)
    fprintf(stderr, "emulator: %s: a bulk copy of %d bytes from %p to %u\n", launched->name, bytes, from, to), abort();
  new_box(to, barrier, bytes)->bytes = from;
}

/* Address of a box's element i in its tensor, or NULL outside. */
static unsigned char *box_element(const kr_emulated_map *m, const int at[4], int64_t i) {
  int64_t rest = i, from = 0;
  for (uint32_t d = 0; d < m->rank; d++) {
    const int64_t x = at[d] + rest % m->box[d] * m->steps[d];
    rest /= m->box[d];
    if (x < 0 || x >= (int64_t)m->sizes[d]) return NULL;
    from += x * (d ? (int64_t)m->strides[d - 1] : (int64_t)m->bytes);
  }
  return (unsigned char *)m->data + from;
}

static unsigned char *box_place(const kr_emulated_map *m, uint32_t shared_at, int64_t i) {
  const uint32_t row = (uint32_t)(i / m->box[0]), byte = (uint32_t)(i % m->box[0]) * m->bytes,
                 half = shared_at + row * 64 + byte; /* rows of 64 bytes have a swizzle of their own */
  return m->box[0] * m->bytes == 64 ? shared(half ^ (half >> 7 & 3) << 4) : swizzled(shared_at, row, byte);
}

static uint16_t sum_of(uint16_t a, uint16_t b, int is_bf16) {
  return is_bf16 ? kr_float_to_bf16(kr_bf16_to_float(a) + kr_bf16_to_float(b))
                 : kr_float_to_f16(kr_f16_to_float(a) + kr_f16_to_float(b));
}

/* A box is stored at once. */
void kr_emulated_store_box(uint64_t map, uint32_t from, const int at[4], int adds) {
  kr_emulated_map m;
  kr_emulated_published();
  memcpy(&m, (const void *)(uintptr_t)map, sizeof m);
  for (int64_t i = 0; i < box_bytes(&m) / m.bytes; i++) {
    uint16_t *const to = (uint16_t *)box_element(&m, at, i);
    const uint16_t v = *(const uint16_t *)box_place(&m, from, i);
    if (to) *to = adds < 0 ? v : sum_of(*to, v, adds);
  }
}

static void copy_box(const box *b) {
  const kr_emulated_map *m = &b->map;
  const int64_t n = box_bytes(m) / m->bytes;
  for (int64_t i = 0; i < n; i++) {
    const unsigned char *const from = box_element(m, b->at, i);
    unsigned char *const to = box_place(m, b->to, i);
    if (from) memcpy(to, from, m->bytes);
    else memset(to, 0, m->bytes);
  }
}

/* The oldest box arrives. */
static int receive_box(void) {
  if (!current->n_boxes) return 0;
  const box b = current->boxes[0];
  memmove(current->boxes, current->boxes + 1, (size_t)--current->n_boxes * sizeof b);
  if (b.bytes) memcpy(shared(b.to), b.bytes, (size_t)b.n_bytes);
  else copy_box(&b);
  byte_barrier *barrier = byte_barrier_at(b.barrier);
  barrier->bytes -= b.n_bytes;
  end_phase(barrier);
  return 1;
}

/* Element (row, k) of a factor whose rows, m or n, are laid out by its descriptor. */
static uint16_t factor_at(uint64_t descriptor, int mn_major, int row, int k) {
  const uint32_t start = (uint32_t)(descriptor & 0x3fff) << 4, next = (uint32_t)(descriptor >> 16 & 0x3fff) << 4;
  return *(const uint16_t *)(mn_major
                                 ? swizzled(start + (uint32_t)row / 64 * next, (uint32_t)k, (uint32_t)(row % 64) * 2)
                                 : swizzled(start, (uint32_t)row, (uint32_t)k * 2));
}

/* The warp's 16 rows of a, given by its lanes or in shared memory, with all columns of b. */
static void multiply_warpgroup(const fiber *warp, unsigned which, int n, int has_registers, uint64_t a, uint64_t b,
                               int a_mn, int b_mn, float (*widen)(uint16_t)) {
  const int first = kr_emulated_now.thread % WARPGROUP / WARP * 16;
  for (int k = 0; k < 16; k++) {
    float rows[16], columns[MOST_COLUMNS];
    for (int r = 0; r < 16; r++)
      rows[r] = has_registers ? warp[4 * (r % 8) + k % 8 / 2].deposit[which][r / 8 * 4 + k / 8 * 2 + k % 2]
                              : widen(factor_at(a, a_mn, first + r, k));
    for (int c = 0; c < n; c++) columns[c] = widen(factor_at(b, b_mn, c, k));
    add_outer(rows, columns, n);
  }
}

void kr_emulated_wgmma(float *d, int n, const uint32_t *registers, uint64_t a, uint64_t b, int add, int a_mn, int b_mn,
                       int is_bf16) {
  float (*widen)(uint16_t) = is_bf16 ? kr_bf16_to_float : kr_f16_to_float;
  const int lane = kr_emulated_now.thread % WARP, g = lane / 4, q = lane % 4;
  float mine[8] = {0};
  if (registers) {
    const uint32_t words[4] = {registers[0], registers[2], registers[1], registers[3]};
    for (int i = 0; i < 8; i++) mine[i] = widen((uint16_t)(words[i / 2] >> i % 2 * 16));
  }
  const unsigned which = deposit(mine, 8);
  const fiber *warp = fibers + kr_emulated_now.thread - lane;
  if (begin_products(warp, n, "a warpgroup's product"))
    multiply_warpgroup(warp, which, n, registers != NULL, a, b, a_mn, b_mn, widen);
  for (int i = 0; i < n / 2; i++) /* of each 8 columns two in row g, two in row g + 8 */
    d[i] = (float)((add ? (double)d[i] : 0) + products[g + i % 4 / 2 * 8][i / 4 * 8 + 2 * q + i % 2]);
}

/* ---- a block ----------------------------------------------------------------------------------------------------- */

static int threads_of(int warp) {
  const int left = kr_emulated_now.block_threads - warp * WARP;
  return left < WARP ? left : WARP;
}

BOOKKEEPING static int count(int first, int n, int state) {
  int found = 0;
  for (int i = first; i < first + n; i++) found += current->states[i] == state;
  return found;
}

BOOKKEEPING static void release(int first, int n, int state) {
  for (int i = first; i < first + n; i++)
    if (current->states[i] == state) current->states[i] = READY;
}

/* Releases threads whose barrier is complete. Returns how many. */
BOOKKEEPING static int release_barriers(int n, int n_done) {
  int waiting[N_BARRIERS] = {0}, expected[N_BARRIERS], released = 0;
  for (int i = 0; i < n; i++)
    if (current->states[i] == AT_BARRIER) {
      const int b = fibers[i].barrier;
      waiting[b]++, expected[b] = b ? fibers[i].n_expected : n - n_done;
    }
  for (int b = 0; b < N_BARRIERS; b++)
    if (waiting[b] && waiting[b] + current->n_arrived[b] == expected[b])
      current->n_arrived[b] = 0, released += waiting[b];
    else waiting[b] = 0;
  for (int i = 0; i < n && released; i++)
    if (current->states[i] == AT_BARRIER && waiting[fibers[i].barrier]) current->states[i] = READY;
  return released;
}

/* Until every thread of the warp is done or at the block's barrier, or deadlocked. */
BOOKKEEPING static void run_warp(int warp) {
  const int first = warp * WARP, n = threads_of(warp);
  for (;;) {
    for (int k = 0; k < WARP; k++)
      if (lane_order[k] < n && current->states[first + lane_order[k]] == READY) resume(first + lane_order[k]);
    const int at_warp = count(first, n, AT_WARP);
    if (!at_warp || at_warp + count(first, n, DONE) != n) return;
    release(first, n, AT_WARP), n_exchanges++;
  }
}

static void enter_block(resident *b) { current = b, fibers = b->fibers, kr_emulated_now = b->place; }

static void fail_stuck(void) {
  int n = 0, found[AT_POLL + 1] = {0};
  for (int b = 0; b < n_together; b++) {
    enter_block(blocks[b]), n += blocks[b]->place.block_threads;
    for (int state = 0; state <= AT_POLL; state++) found[state] += count(0, blocks[b]->place.block_threads, state);
  }
  fprintf(stderr,
          "emulator: %s/%s: of %d threads of %d blocks %d wait at a block barrier, %d for their warp, %d for bytes, %d "
          "in polls, %d are done\n",
          launched->module, launched->name, n, n_together, found[AT_BARRIER], found[AT_WARP], found[AT_BYTES],
          found[AT_POLL], found[DONE]);
  abort();
}

/* The module's, before every block or all together; memset would stop at the red zones, and a loop takes a quarter of
 * the tests' time. */
__attribute__((no_sanitize("address"))) static void spoil_static_shared(void) {
#ifdef __x86_64__
  void *to = launched->shared;
  size_t n = (size_t)(launched->end_of_shared - launched->shared);
  __asm__ volatile("rep stosb" : "+D"(to), "+c"(n) : "a"(0xff) : "memory");
#else
  for (volatile unsigned char *p = launched->shared; p < launched->end_of_shared; p++) *p = 0xff;
#endif
}

/* There is one for all blocks: those that live at once must not use it. */
__attribute__((no_sanitize("address"))) static int is_static_shared_spoilt(void) {
  for (const unsigned char *p = launched->shared; p < launched->end_of_shared; p++)
    if (*p != 0xff) return 0;
  return 1;
}

static uint32_t random_below(uint32_t n) {
  random_state ^= random_state << 13, random_state ^= random_state >> 17, random_state ^= random_state << 5;
  return random_state % n;
}

static void choose_order(int *at, int n) {
  for (int i = 0; i < n; i++) at[i] = order == KR_ORDER_BACKWARDS ? n - 1 - i : i;
  for (int i = n - 1; i > 0 && order == KR_ORDER_RANDOM; i--) {
    int j = (int)random_below((uint32_t)i + 1), swap = at[i];
    at[i] = at[j], at[j] = swap;
  }
}

/* Block `i` of the launch becomes the `which`-th of those that live. */
static void start_block(int which, int64_t i, const unsigned grid[3], unsigned n_threads, unsigned shared_bytes) {
  void *dynamic = NULL;
  resident *b = blocks[which];
  if (!b) b = blocks[which] = calloc(1, sizeof *b);
  if (b && !b->fibers) b->fibers = calloc(MAX_THREADS, sizeof *b->fibers);
  if (!b || !b->fibers || posix_memalign(&dynamic, SHARED_ALIGNMENT, shared_bytes ? shared_bytes : 1))
    fprintf(stderr, "emulator: no memory for a block\n"), abort();
  if (shared_bytes) memset(dynamic, 0xff, shared_bytes);
  b->place = (kr_emulated_place){.block_threads = (int)n_threads, .grid_x = (int)grid[0], .dynamic_shared = dynamic,
    .block = {(int)(i % grid[0]), (int)(i / grid[0] % grid[1]), (int)(i / grid[0] / grid[1])}};
  b->n_byte_barriers = b->n_boxes = b->is_done = 0;
  memset(b->n_arrived, 0, sizeof b->n_arrived);
  memset(b->states, READY, sizeof b->states);
  for (unsigned t = 0; t < n_threads; t++) {
    b->fibers[t].n_barriers = 0, b->fibers[t].n_shuffles = 0, b->fibers[t].n_copies = 0, b->fibers[t].n_groups = 0;
    if (!b->fibers[t].stack) make_stack(&b->fibers[t], (int)t);
  }
}

/* Runs a block until none of its threads can. Boxes arrive when all wait for the block itself; while some poll, only
 * when no block comes further. */
BOOKKEEPING static void visit(resident *b) {
  const int n = b->place.block_threads, n_warps = (n + WARP - 1) / WARP;
  enter_block(b);
  choose_order(warp_order, n_warps);
  choose_order(lane_order, WARP);
  release(0, n, AT_POLL);
  for (;;) {
    for (int w = 0; w < n_warps; w++) run_warp(warp_order[w]);
    const int done = count(0, n, DONE);
    if ((b->is_done = done == n)) return;
    if (count(0, n, READY)) continue; /* released by an arrival */
    if (!release_barriers(n, done) && (count(0, n, AT_POLL) || !receive_box())) return;
  }
}

static void receive_boxes(void) {
  for (int k = 0; k < n_together; k++) {
    enter_block(blocks[k]);
    came_further |= !current->is_done && receive_box();
  }
}

/* What has been written for others may have been written in a way that the emulator does not see: a deadlock is many
 * rounds in which threads only polled. */
static void run_blocks(void) {
  for (int n_done = 0, n_quiet = 0; n_done < n_together;) {
    came_further = n_done = 0;
    choose_order(block_order, n_together);
    for (int k = 0; k < n_together; k++) {
      resident *const b = blocks[block_order[k]];
      if (!b->is_done) visit(b);
      n_done += b->is_done;
    }
    if (!came_further) receive_boxes();
    n_quiet = came_further ? 0 : n_quiet + 1;
    if (n_quiet > MOST_QUIET && n_done < n_together) fail_stuck();
  }
  for (int k = 0; k < n_together; k++) free(blocks[k]->place.dynamic_shared);
}

static void launch_emulator(void *kernel, const unsigned grid[3], unsigned n_threads, unsigned shared_bytes,
                            const void *args, int how) {
  const int64_t n_blocks = (int64_t)grid[0] * grid[1] * grid[2],
                first = order == KR_ORDER_RANDOM && !blocks_in_order ? (int64_t)random_below((uint32_t)n_blocks) : 0;
  launched = kernel, launched_args = args;
  n_launches++;
  forget_clusters();
  if (n_threads > MAX_THREADS) fprintf(stderr, "emulator: %u threads in a block\n", n_threads), abort();
  if (how == TOGETHER && n_blocks > MOST_TOGETHER)
    fprintf(stderr, "emulator: %lld blocks together\n", (long long)n_blocks), abort();
  n_together = how == TOGETHER ? (int)n_blocks : 1;
  for (int64_t k = 0; k < n_blocks; k += n_together) {
    const int64_t i = order == KR_ORDER_BACKWARDS && !blocks_in_order ? n_blocks - 1 - k : (first + k) % n_blocks;
    for (int b = 0; b < n_together; b++) start_block(b, how == TOGETHER ? b : i, grid, n_threads, shared_bytes);
    n_waited = 0;
    spoil_static_shared();
    tell_sanitizer(1);
    run_blocks();
    tell_sanitizer(0);
    if (how == AHEAD && !n_waited)
      fprintf(stderr, "emulator: %s: no thread of block %lld waits for the kernel before\n", launched->name,
              (long long)i),
          abort();
    if (n_together > 1 && !is_static_shared_spoilt())
      fprintf(stderr, "emulator: %s: static shared memory of blocks that live at once\n", launched->name), abort();
  }
}

void kr_emulated_launch(void *kernel, const unsigned grid[3], unsigned block, unsigned shared_bytes, const void *args) {
  launch_emulator(kernel, grid, block, shared_bytes, args, PLAIN);
}
void kr_emulated_launch_pdl(void *kernel, const unsigned grid[3], unsigned block, unsigned shared_bytes,
                              const void *args) {
  n_ahead++;
  launch_emulator(kernel, grid, block, shared_bytes, args, AHEAD);
}
void kr_emulated_launch_cooperative(void *kernel, const unsigned grid[3], unsigned block, unsigned shared_bytes,
                                 const void *args) {
  launch_emulator(kernel, grid, block, shared_bytes, args, TOGETHER);
}
