/* host.c: a LADSPA host that watches what run does (trap.h): host PLUGIN.so [planted | SECONDS [busy | RUNS]]. planted:
 * the plug-in (planted.c) does some on purpose, which must be seen. SECONDS: no test, but how long blocks of 64 samples
 * take for so much sound. busy: they come at their times, as from a sound card, on a core that another process keeps
 * busy; like a sound server's thread this one has priority, if it may. RUNS: the same sound so often, and of each block
 * the least time: what the plug-in takes, without what the machine does meanwhile. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <ladspa.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../test.h"
#include "trap.h"

/* ---- plug-ins ---- */

typedef struct plugin {
  const LADSPA_Descriptor *d;
  LADSPA_Handle handle;
  int n_channels;
  LADSPA_Data mix, limit, gate, speech, latency;
} plugin;

static LADSPA_Descriptor_Function descriptor_of;

static plugin open_plugin(int n_channels, unsigned long rate_hz) {
  plugin p = {.d = descriptor_of((unsigned long)n_channels - 1), .n_channels = n_channels, .mix = 1, .limit = 60};
  assert_non_null(p.d);
  p.handle = p.d->instantiate(p.d, rate_hz);
  return p;
}

static void begin_plugin(plugin *p) {
  LADSPA_Data *const controls[] = {&p->mix, &p->limit, &p->gate, &p->speech, &p->latency};
  for (unsigned long i = 0; i < 5; i++)
    p->d->connect_port(p->handle, 2 * (unsigned long)p->n_channels + i, controls[i]);
  if (p->d->activate) p->d->activate(p->handle);
}

static void close_plugin(plugin *p) { p->d->cleanup(p->handle); }

/* In blocks of this size, or with 0 of random ones. Any call of what the trap watches is a failure. */
static void run_plugin(plugin *p, const float *const *in, float *const *out, long n, long block) {
  const unsigned long n_channels = (unsigned long)p->n_channels;
  uint32_t random_state = 9;
  for (long i = 0, some; i < n; i += some) {
    some = block;
    if (!some) random_state = random_state * 1664525u + 1013904223u, some = (random_state >> 8) % 3000;
    if (some > n - i) some = n - i;
    for (unsigned long c = 0; c < n_channels; c++) {
      p->d->connect_port(p->handle, c, (LADSPA_Data *)in[c] + i);
      p->d->connect_port(p->handle, n_channels + c, out[c] + i);
    }
    is_in_run = 1;
    p->d->run(p->handle, (unsigned long)some);
    is_in_run = 0;
  }
}

/* ---- sound ---- */

/* Under a sanitizer, where a frame takes thirteen times as long, half as much of it and of the rates. */
#if defined(__SANITIZE_ADDRESS__)
enum { HZ = 48000, N = HZ / 6 };
static const long blocks[] = {1024, 0, -1};
static const unsigned long rates[] = {8000, 22050, 96000};
#else
enum { HZ = 48000, N = HZ / 3 };
static const long blocks[] = {1024, 1, 0, -1};
static const unsigned long rates[] = {8000, 16000, 22050, 44100, 48000, 96000, 192000};
#endif
static float in[2][N], out[2][N], other[2][N];
static float *const outs[] = {out[0], out[1]}, *const others[] = {other[0], other[1]};
static const float *const ins[] = {in[0], in[1]};

/* Like a voice: harmonics that rise and fall, in noise. */
static void draw_host(int seed) {
  uint32_t state = (uint32_t)seed;
  for (int c = 0; c < 2; c++)
    for (int i = 0; i < N; i++) {
      double sum = 0, t = (double)i / HZ;
      for (int k = 1; k < 60; k++) sum += sin(2 * 3.14159265 * (120 + 30 * c + 20 * sin(6 * t)) * k * t) / (k + 3);
      state = state * 1664525u + 1013904223u;
      in[c][i] = (float)(0.1 * sum * fmax(0, sin(9 * t + c)) + 0.02 * ((double)(state >> 8) / (1 << 24) - 0.5));
    }
}

static double worst_difference(const float *a, const float *b, long n) {
  double worst = 0;
  for (long i = 0; i < n; i++) worst = isfinite(a[i]) ? fmax(worst, fabs((double)a[i] - b[i])) : INFINITY;
  return worst;
}

static void assert_untrapped(void) {
  if (n_trapped) fail_msg("run called %s, and others: %d calls", trapped, n_trapped);
}

/* ---- tests ---- */

static void blocks_do_not_matter(void **state) {
  (void)state;
  draw_host(1);
  plugin p = open_plugin(2, HZ);
  begin_plugin(&p);
  run_plugin(&p, ins, outs, N, 480);
  for (const long *block = blocks; *block >= 0; block++) {
    begin_plugin(&p); /* which also starts anew */
    run_plugin(&p, ins, others, N, *block);
    for (int c = 0; c < 2; c++) assert_true(worst_difference(out[c], other[c], N) == 0);
  }
  assert_true(worst_difference(out[0], out[1], N) > 0.01);
  close_plugin(&p);
  assert_untrapped();
}

/* Dry, it is a delay by the reported latency, at every rate; also when the gate looks back. */
static void latency_is_as_reported(void **state) {
  (void)state;
  draw_host(2);
  for (size_t r = 0; r < sizeof rates / sizeof *rates; r++)
    for (int gate = 0; gate < 2; gate++) {
      plugin p = open_plugin(1, rates[r]);
      p.mix = 0, p.gate = 0.5f * (float)gate;
      begin_plugin(&p);
      const long n = rates[r] < 8 * N ? (long)rates[r] / 8 : N;
      run_plugin(&p, ins, outs, n, 64);
      const long latency = lrintf(p.latency);
      const double seconds = (double)latency / (double)rates[r];
      assert_true(seconds > 0.024 && seconds < 0.034 + 0.03 * gate);
      assert_true(worst_difference(out[0] + latency, in[0], n - latency) < 1e-7);
      for (long i = 0; i < latency; i++) assert_true(out[0][i] == 0);
      close_plugin(&p);
    }
  assert_untrapped();
}

static void rates_out_of_range_are_refused(void **state) {
  (void)state;
  for (const unsigned long *hz = (const unsigned long[]){1, 7999, 192001, 4000000000, 0}; *hz; hz++)
    assert_null(open_plugin(1, *hz).handle);
}

/* What no microphone says: nothing but numbers comes out, and later sound is as if it had not been. */
static void nonsense_heals(void **state) {
  (void)state;
  draw_host(3);
  plugin p = open_plugin(1, HZ);
  begin_plugin(&p);
  run_plugin(&p, ins, outs, N, 64);
  const float nonsense[] = {NAN, INFINITY, -INFINITY, 1e30f, 1, -1, 0, 1e-40f};
  for (size_t k = 0; k < sizeof nonsense / sizeof *nonsense; k++) {
    for (int i = 0; i < N / 4; i++) other[1][i] = i % 7 || k > 3 ? nonsense[k] : 0.1f;
    run_plugin(&p, (const float *const[]){other[1]}, (float *const[]){other[0]}, N / 4, 64);
    for (int i = 0; i < N / 4; i++) assert_true(isfinite(other[0][i]) && fabsf(other[0][i]) < 300);
  }
  p.mix = NAN, p.limit = -INFINITY, p.gate = 7;
  run_plugin(&p, ins, others, N / 4, 64);
  p.mix = 1, p.limit = 60, p.gate = 0;
  begin_plugin(&p);
  run_plugin(&p, ins, others, N, 64);
  assert_true(worst_difference(out[0], other[0], N) == 0);
  close_plugin(&p);
  assert_untrapped();
}

/* A host may give the same buffer in and out, also crosswise. */
static void in_place_is_the_same(void **state) {
  (void)state;
  draw_host(4);
  plugin p = open_plugin(2, HZ);
  begin_plugin(&p);
  run_plugin(&p, ins, outs, N, 1024);
  begin_plugin(&p);
  for (int c = 0; c < 2; c++) memcpy(other[c], in[c], sizeof other[c]);
  run_plugin(&p, (const float *const *)others, (float *const[]){other[1], other[0]}, N, 1024);
  assert_true(worst_difference(out[0], other[1], N) == 0 && worst_difference(out[1], other[0], N) == 0);
  close_plugin(&p);
  assert_untrapped();
}

/* A thread that has never called the plug-in: its first run is watched, too. */
typedef struct job {
  plugin p;
  float *out;
  int channel, n_trapped;
  const char *trapped;
} job;

static void *work_alone(void *user) {
  job *j = user;
  run_plugin(&j->p, (const float *const[]){in[j->channel]}, (float *const[]){j->out}, N, 64);
  j->n_trapped = n_trapped, j->trapped = trapped;
  return NULL;
}

static void threads_do_not_meet(void **state) {
  pthread_t threads[2];
  job jobs[2] = {{.out = other[0], .channel = 0}, {.out = other[1], .channel = 1}};
  (void)state;
  draw_host(5);
  for (int c = 0; c < 2; c++) {
    jobs[c].p = open_plugin(1, HZ);
    begin_plugin(&jobs[c].p);
    run_plugin(&jobs[c].p, ins + c, outs + c, N, 64);
    begin_plugin(&jobs[c].p);
  }
  for (int c = 0; c < 2; c++) assert_int_equal(pthread_create(&threads[c], NULL, work_alone, &jobs[c]), 0);
  for (int c = 0; c < 2; c++) pthread_join(threads[c], NULL);
  for (int c = 0; c < 2; c++) {
    close_plugin(&jobs[c].p);
    if (jobs[c].n_trapped) fail_msg("a thread's first run called %s", jobs[c].trapped);
    assert_true(worst_difference(out[c], other[c], N) == 0);
  }
}

static void planted_calls_are_seen(void **state) {
  (void)state;
  plugin p = open_plugin(1, HZ);
  for (int kind = 0; kind < 5; kind++) {
    n_trapped = 0;
    run_plugin(&p, ins, outs, 8, 8);
    print_message("planted: %s\n", n_trapped ? trapped : "nothing seen");
    assert_int_equal(n_trapped > 0, kind < 4);
  }
  close_plugin(&p);
}

/* ---- times ---- */

static double seconds_of(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int compare_times(const void *a, const void *b) {
  const float x = *(const float *)a, y = *(const float *)b;
  return (x > y) - (x < y);
}

static void tell_times(const char *what, float *ms, long n) {
  double sum = 0;
  for (long i = 0; i < n; i++) sum += ms[i];
  qsort(ms, (size_t)n, sizeof *ms, compare_times);
  printf("%s: mean %.3f ms, median %.3f, 99 of 100 within %.3f, 9999 of 10000 within %.3f, worst %.3f\n", what,
         sum / (double)n, ms[n / 2], ms[n - 1 - n / 100], ms[n - 1 - n / 10000], ms[n - 1]);
}

enum { BLOCK = 64 };

/* This process and one that does nothing else than work, on one core. Returns the other's number. */
static pid_t keep_busy(void) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(sched_getcpu(), &one);
  sched_setaffinity(0, sizeof one, &one);
  const pid_t rival = fork();
  if (rival == 0)
    for (volatile uint64_t i = 0;; i++) continue;
  const int has_priority = sched_setscheduler(0, SCHED_FIFO, &(struct sched_param){.sched_priority = 10}) == 0;
  printf("beside a busy process on the same core, %s priority\n", has_priority ? "with" : "without");
  return rival;
}

static void tell_longer(const char *what, const float *ms, long n, double limit_ms) {
  long n_longer = 0;
  for (long i = 0; i < n; i++) n_longer += ms[i] > limit_ms;
  printf("%s longer than %.3f ms: %ld of %ld blocks\n", what, limit_ms, n_longer, n);
}

static void wait_until(double seconds) {
  const struct timespec t = {(time_t)seconds, (long)(1e9 * (seconds - floor(seconds)))};
  clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
}

/* The first block includes what no later one has: caches that are cold. */
static int time_blocks(double seconds, int is_busy) {
  const long n = (long)(seconds * HZ / BLOCK);
  const double length_ms = 1e3 * BLOCK / HZ;
  float *cpu_ms = calloc((size_t)n + 1, sizeof *cpu_ms), *wall_ms = calloc((size_t)n + 1, sizeof *wall_ms),
        *woken_ms = calloc((size_t)n + 1, sizeof *woken_ms);
  draw_host(6);
  plugin p = open_plugin(1, HZ);
  if (!cpu_ms || !wall_ms || !woken_ms || !p.handle) return 2;
  begin_plugin(&p);
  const pid_t rival = is_busy ? keep_busy() : 0;
  const double begin = seconds_of(CLOCK_MONOTONIC) + 0.1;
  for (long i = 0; i < n; i++) {
    const long at = i * BLOCK % (N - BLOCK);
    const double due = begin + (double)(i * BLOCK) / HZ;
    if (is_busy) wait_until(due);
    const double cpu = seconds_of(CLOCK_THREAD_CPUTIME_ID), wall = seconds_of(CLOCK_MONOTONIC);
    run_plugin(&p, (const float *const[]){in[0] + at}, (float *const[]){out[0]}, BLOCK, BLOCK);
    cpu_ms[i] = (float)(1e3 * (seconds_of(CLOCK_THREAD_CPUTIME_ID) - cpu));
    wall_ms[i] = (float)(1e3 * (seconds_of(CLOCK_MONOTONIC) - wall)), woken_ms[i] = (float)(1e3 * (wall - due));
  }
  if (is_busy) kill(rival, SIGKILL), waitpid(rival, NULL, 0);
  printf("%ld blocks of %.3f ms, %d calls trapped\n", n, length_ms, n_trapped);
  tell_longer("processor", cpu_ms, n, length_ms / 5), tell_longer("clock", wall_ms, n, length_ms);
  tell_times("processor", cpu_ms, n), tell_times("clock", wall_ms, n);
  if (is_busy) tell_times("woken late", woken_ms, n); /* by the machine, or by a block that took too long */
  close_plugin(&p), free(cpu_ms), free(wall_ms), free(woken_ms);
  return 0;
}

static int time_least(double seconds, int n_runs) {
  const long n = (long)(seconds * HZ / BLOCK);
  float *ms = malloc((size_t)(n + 1) * sizeof *ms);
  draw_host(6);
  plugin p = open_plugin(1, HZ);
  if (!ms || !p.handle) return 2;
  for (int run = 0; run < n_runs; run++) {
    begin_plugin(&p);
    for (long i = 0; i < n; i++) {
      const double cpu = seconds_of(CLOCK_THREAD_CPUTIME_ID);
      run_plugin(&p, (const float *const[]){in[0] + i * BLOCK % (N - BLOCK)}, (float *const[]){out[0]}, BLOCK, BLOCK);
      const float took = (float)(1e3 * (seconds_of(CLOCK_THREAD_CPUTIME_ID) - cpu));
      ms[i] = run ? fminf(ms[i], took) : took;
    }
  }
  printf("%ld blocks of %.3f ms, the least of %d runs, %d calls trapped\n", n, 1e3 * BLOCK / HZ, n_runs, n_trapped);
  tell_times("processor", ms, n);
  close_plugin(&p), free(ms);
  return 0;
}

int main(int argc, char **argv) {
  void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
  if (library) *(void **)&descriptor_of = dlsym(library, "ladspa_descriptor");
  if (!descriptor_of)
    return fprintf(stderr, "usage: host PLUGIN.so [planted | SECONDS [busy | RUNS]]: %s\n", argc > 1 ? dlerror() : ""),
           2;
  if (argc > 3 && atoi(argv[3]) > 0) return time_least(atof(argv[2]), atoi(argv[3]));
  if (argc > 2 && atof(argv[2]) > 0) return time_blocks(atof(argv[2]), argc > 3);
  const struct CMUnitTest planted[] = {cmocka_unit_test(planted_calls_are_seen)},
                          tests[] = {cmocka_unit_test(blocks_do_not_matter),
                                     cmocka_unit_test(latency_is_as_reported),
                                     cmocka_unit_test(rates_out_of_range_are_refused),
                                     cmocka_unit_test(nonsense_heals),
                                     cmocka_unit_test(in_place_is_the_same),
                                     cmocka_unit_test(threads_do_not_meet)};
  const int n_failed =
      argc > 2 ? cmocka_run_group_tests(planted, NULL, NULL) : cmocka_run_group_tests(tests, NULL, NULL);
  dlclose(library);
  return n_failed;
}
