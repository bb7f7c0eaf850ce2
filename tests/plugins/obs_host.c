/* obs_host.c: OBS's library as a host, on a screen of Xvfb (without it the test is skipped): obs_host obs-krait.so. A
 * source of two channels has three filters, called in this order: one of ours that opens the trap (trap.h), krait's,
 * and one that closes it and keeps the sound. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#include <obs-module.h>

#include "../test.h"
#include "trap.h"

enum { HZ = 48000, BLOCK = 480, N = HZ };

static const char *module_path;
static obs_source_t *source, *before, *krait, *behind;
static float in[2][N], out[2][N];
static uint64_t stamp_in, least_delay_ns, most_delay_ns; /* of the block under way */
static int n_out;

/* ---- what the host registers ---- */

static const char *name_of(void *type) {
  (void)type;
  return "test";
}
static void *create(obs_data_t *settings, obs_source_t *of) {
  (void)settings;
  return of;
}
static void destroy(void *data) { (void)data; }

static struct obs_audio_data *open_trap(void *data, struct obs_audio_data *audio) {
  (void)data;
  stamp_in = audio->timestamp;
  is_in_run = 1;
  return audio;
}

static struct obs_audio_data *close_trap(void *data, struct obs_audio_data *audio) {
  (void)data;
  is_in_run = 0;
  const uint64_t delay_ns = stamp_in - audio->timestamp;
  if (n_out == 0 || delay_ns < least_delay_ns) least_delay_ns = delay_ns;
  if (n_out == 0 || delay_ns > most_delay_ns) most_delay_ns = delay_ns;
  for (int c = 0; c < 2 && n_out + (int)audio->frames <= N; c++)
    memcpy(out[c] + n_out, audio->data[c], audio->frames * sizeof(float));
  n_out += (int)audio->frames;
  return audio;
}

static void register_all(void) {
  struct obs_source_info info = {.id = "test_source",
                                 .type = OBS_SOURCE_TYPE_INPUT,
                                 .output_flags = OBS_SOURCE_AUDIO,
                                 .get_name = name_of,
                                 .create = create,
                                 .destroy = destroy};
  obs_register_source(&info);
  info.type = OBS_SOURCE_TYPE_FILTER;
  info.id = "test_before", info.filter_audio = open_trap;
  obs_register_source(&info);
  info.id = "test_behind", info.filter_audio = close_trap;
  obs_register_source(&info);
}

/* ---- a session ---- */

static void say(int level, const char *format, va_list values, void *user) {
  (void)user;
  if (level <= LOG_WARNING) vfprintf(stderr, format, values), fputc('\n', stderr);
}

static int start_obs(void **state) {
  struct obs_audio_info audio = {.samples_per_sec = HZ, .speakers = SPEAKERS_STEREO};
  obs_module_t *module = NULL;
  (void)state;
  base_set_log_handler(say, NULL);
  if (!obs_startup("en-US", NULL, NULL) || !obs_reset_audio(&audio)) return 1;
  if (obs_open_module(&module, module_path, NULL) != MODULE_SUCCESS || !obs_init_module(module)) return 1;
  register_all();
  return 0;
}

static int stop_obs(void **state) {
  (void)state;
  obs_shutdown();
  return 0;
}

static void open_chain(double mix, double gate) {
  obs_data_t *settings = obs_data_create();
  obs_data_set_double(settings, "mix", mix);
  obs_data_set_double(settings, "gate", gate);
  source = obs_source_create_private("test_source", "microphone", NULL);
  before = obs_source_create_private("test_before", "before", NULL);
  krait = obs_source_create_private("krait_denoiser", "krait", settings);
  behind = obs_source_create_private("test_behind", "behind", NULL);
  obs_data_release(settings);
  assert_non_null(source), assert_non_null(krait);
  obs_source_filter_add(source, before);
  obs_source_filter_add(source, krait);
  obs_source_filter_add(source, behind);
}

static void close_chain(void) {
  obs_source_t *const all[] = {before, krait, behind};
  for (int i = 0; i < 3; i++) obs_source_filter_remove(source, all[i]), obs_source_release(all[i]);
  obs_source_release(source);
}

/* Sends samples from to end through the chain. */
static void play(int from, int end) {
  for (int i = from; i < end; i += BLOCK) {
    struct obs_source_audio audio = {.data = {(const uint8_t *)(in[0] + i), (const uint8_t *)(in[1] + i)},
                                     .frames = BLOCK,
                                     .speakers = SPEAKERS_STEREO,
                                     .format = AUDIO_FORMAT_FLOAT_PLANAR,
                                     .samples_per_sec = HZ,
                                     .timestamp = 1000000000 + (uint64_t)i * 1000000000 / HZ};
    obs_source_output_audio(source, &audio);
  }
}

static void restart(void) { n_out = 0, n_trapped = 0; }

static long asked(const char *what) {
  calldata_t answer = {0};
  assert_true(proc_handler_call(obs_source_get_proc_handler(krait), what, &answer));
  const long n = (long)calldata_int(&answer, "samples");
  calldata_free(&answer);
  return n;
}

/* A voice that comes and goes, in noise. */
static void draw(void) {
  uint32_t state = 7;
  for (int c = 0; c < 2; c++)
    for (int i = 0; i < N; i++) {
      double sum = 0, t = (double)i / HZ;
      for (int k = 1; k < 40; k++) sum += sin(2 * 3.14159265 * (130 + 20 * c + 15 * sin(5 * t)) * k * t) / (k + 3);
      state = state * 1664525u + 1013904223u;
      in[c][i] = (float)(0.1 * sum * fmax(0, sin(7 * t)) + 0.02 * ((double)(state >> 8) / (1 << 24) - 0.5));
    }
}

static double energy(const float *x, int n) {
  double sum = 0;
  for (int i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
  return sum;
}

/* ---- tests ---- */

/* Dry, it is the input, as late as it says and as the time stamps say, also with a gate; nothing is allocated, locked
 * or printed. */
static void dry_sound_is_late_as_told(void **state) {
  (void)state;
  for (int gate = 0; gate < 2; gate++) {
    open_chain(0, 0.5 * gate);
    const long latency = asked("latency");
    assert_true(latency == 1392 + gate * 1440);
    restart();
    play(0, N);
    assert_int_equal(n_out, N);
    if (n_trapped) fail_msg("the filter called %s", trapped);
    for (int c = 0; c < 2; c++)
      for (int i = 0; i < N; i++) {
        const float want = i < latency ? 0 : in[c][i - latency];
        if (!(fabsf(out[c][i] - want) < 1e-6f)) fail_msg("channel %d, sample %d: %g, not %g", c, i, out[c][i], want);
      }
    const uint64_t want_ns = (uint64_t)latency * 1000000000 / HZ;
    assert_true(least_delay_ns == want_ns && most_delay_ns == want_ns);
    close_chain();
  }
}

/* Clean, the noise between words is gone and the voice is there; two channels stay two. */
static void noise_is_taken(void **state) {
  (void)state;
  open_chain(1, 0);
  restart();
  play(0, N);
  const int quiet = (int)(0.55 * HZ), voiced = (int)(0.15 * HZ), latency = (int)asked("latency"), n = HZ / 5;
  for (int c = 0; c < 2; c++) {
    assert_true(energy(out[c] + quiet + latency, n) < 0.05 * energy(in[c] + quiet, n));
    assert_true(energy(out[c] + voiced + latency, n) > 0.3 * energy(in[c] + voiced, n));
  }
  assert_true(n_trapped == 0 && memcmp(out[0], out[1], sizeof out[0]) != 0);
  close_chain();
}

/* A gate that is set later begins anew, 30 ms later, and without a call that an audio thread may not make. */
static void gate_begins_anew(void **state) {
  (void)state;
  open_chain(0, 0);
  restart();
  play(0, N / 2);
  obs_data_t *settings = obs_data_create();
  obs_data_set_double(settings, "mix", 0);
  obs_data_set_double(settings, "gate", 0.5);
  obs_source_update(krait, settings);
  obs_data_release(settings);
  play(N / 2, N);
  if (n_trapped) fail_msg("the filter called %s", trapped);
  assert_int_equal(asked("latency"), 1392 + 1440);
  assert_true(most_delay_ns - least_delay_ns == (uint64_t)2832 * 1000000000 / HZ - (uint64_t)1392 * 1000000000 / HZ);
  close_chain();
}

static void properties_are_listed(void **state) {
  (void)state;
  open_chain(1, 0);
  obs_properties_t *list = obs_source_properties(krait);
  assert_non_null(obs_properties_get(list, "mix"));
  assert_non_null(obs_properties_get(list, "limit"));
  assert_non_null(obs_properties_get(list, "gate"));
  assert_non_null(strstr(obs_property_description(obs_properties_get(list, "latency")), "1392 samples, 29.0 ms"));
  obs_properties_destroy(list);
  close_chain();
}

/* A screen, whose number is in DISPLAY then; 0: there is none. */
static pid_t start_screen(void) {
  int ends[2];
  char number[16] = ":";
  if (pipe(ends)) return 0;
  const pid_t screen = fork();
  if (screen == 0) {
    char end[16];
    snprintf(end, sizeof end, "%d", ends[1]);
    dup2(open("/dev/null", O_WRONLY), STDERR_FILENO);
    execlp("Xvfb", "Xvfb", "-displayfd", end, "-screen", "0", "64x64x24", "-nolisten", "tcp", (char *)NULL);
    _exit(127);
  }
  close(ends[1]);
  const ssize_t n = read(ends[0], number + 1, sizeof number - 2);
  close(ends[0]);
  if (n <= 0) return waitpid(screen, NULL, 0), 0;
  number[strcspn(number, "\n")] = 0;
  setenv("DISPLAY", number, 1);
  return screen;
}

int main(int argc, char **argv) {
  if (argc != 2) return fprintf(stderr, "usage: obs_host obs-krait.so\n"), 2;
  const pid_t screen = start_screen();
  if (!screen) return 77;
  module_path = argv[1];
  draw();
  const struct CMUnitTest tests[] = {cmocka_unit_test(dry_sound_is_late_as_told), cmocka_unit_test(noise_is_taken),
                                     cmocka_unit_test(gate_begins_anew), cmocka_unit_test(properties_are_listed)};
  const int n_failed = cmocka_run_group_tests(tests, start_obs, stop_obs);
  kill(screen, SIGTERM), waitpid(screen, NULL, 0);
  return n_failed;
}
