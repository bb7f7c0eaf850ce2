/* planted.c: a plug-in that does in run what no plug-in may, one thing at a time, and then nothing: host.c must see
 * each but the last. */
#include <ladspa.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

static int n_runs;
static void *volatile block;

static LADSPA_Handle instantiate(const LADSPA_Descriptor *d, unsigned long rate_hz) {
  (void)d, (void)rate_hz;
  return &n_runs;
}
static void connect_port(LADSPA_Handle handle, unsigned long port, LADSPA_Data *data) {
  (void)handle, (void)port, (void)data;
}
static void cleanup(LADSPA_Handle handle) { (void)handle; }

static void run_planted(LADSPA_Handle handle, unsigned long n) {
  static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  (void)handle, (void)n;
  switch (n_runs++) {
    case 0: block = malloc(10); break;
    case 1: free(block); break;
    case 2: pthread_mutex_lock(&mutex), pthread_mutex_unlock(&mutex); break;
    case 3: (void)!write(STDERR_FILENO, "", 0); break;
    default: break;
  }
}

__attribute__((visibility("default"))) const LADSPA_Descriptor *ladspa_descriptor(unsigned long index) {
  static const LADSPA_Descriptor d = {
      .instantiate = instantiate, .connect_port = connect_port, .run = run_planted, .cleanup = cleanup};
  return index ? NULL : &d;
}
