/* restore_film.c: a film or a picture from its file to the result's: frames are read, restored and written batch by
 * batch, so that memory does not grow with the film. */
#define _GNU_SOURCE
#include "public_names.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc.h"
#include "clock.h"
#include "film_out.h"
#include "png.h"
#include "restorer.h"
#include "sized.h"
#include "status.h"

enum { PATH_BYTES = 4096 };

typedef struct film {
  krait_restorer *r;
  const char *in, *out;
  int fd;
  kr_film_about about;
  kr_film_times times; /* if frames are not evenly spaced in time */
  kr_restore_choices plan;
  kr_batches *batches;
  kr_parts *parts;
  kr_film_out *encoder;
  krait_restore_info info;
  int samples, is_stopped;
} film;

/* ---- where frames go ---- */

static int is_png(const char *path) {
  const size_t n = strlen(path);
  return n > 4 && strcmp(path + n - 4, ".png") == 0;
}
/* Each frame of a film as a picture of its own. */
static int is_numbered(const film *f) { return !f->about.is_picture && is_png(f->out) && strchr(f->out, '%'); }

/* One %d, of at most nine digits. */
static int32_t check_pattern(const char *path) {
  const char *at = strchr(path, '%');
  const size_t digits = strspn(at + 1, "0123456789");
  KR_CHECK(at[1 + digits] == 'd' && digits <= 2 && !strchr(at + 1, '%'), KRAIT_ERR_ARGUMENT,
           "%s: the only %% must be a number's, as in frames/%%05d.png", path);
  return KRAIT_OK;
}

/* n_across pictures of one size, side by side. */
static int32_t write_png(const char *path, const kr_frame_size *size, int n_across, const uint8_t *const rgb[]) {
  const int64_t width = size->out_w * n_across, n = size->out_h * width;
  kr_outfile file = {0};
  uint32_t *pixels = kr_alloc_array((size_t)n, sizeof *pixels);
  KR_CHECK(pixels, KRAIT_ERR_NO_MEMORY, "no memory to write %s", path);
  for (int64_t i = 0; i < n; i++) {
    const uint8_t *at = rgb[i % width / size->out_w] + 3 * (i / width * size->out_w + i % size->out_w);
    pixels[i] = (uint32_t)at[0] << 16 | (uint32_t)at[1] << 8 | (uint32_t)at[2];
  }
  int32_t status = kr_outfile_begin(&file, path);
  if (status >= 0) status = kr_png_put(&file, pixels, (int32_t)width, (int32_t)size->out_h);
  if (status >= 0) status = kr_outfile_commit(&file);
  if (status < 0) kr_outfile_abandon(&file);
  kr_free(pixels);
  return status;
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral" /* check_pattern */
static void name_numbered(const film *f, int64_t number, char path[PATH_BYTES]) {
  snprintf(path, PATH_BYTES, f->out, (int)number);
}
#pragma GCC diagnostic pop

static int32_t write_numbered(const film *f, const kr_frame_size *size, const uint8_t *rgb) {
  char path[PATH_BYTES];
  name_numbered(f, f->info.n_frames + 1, path);
  return write_png(path, size, 1, &rgb);
}

static void remove_numbered(const film *f) {
  char path[PATH_BYTES];
  for (int64_t i = 1; i <= f->info.n_frames; i++) {
    name_numbered(f, i, path);
    unlink(path);
  }
}

/* The frame in the middle, before and after, as far as the film says how long it is. */
static int32_t write_plot(const film *f, const kr_frame_size *size, const void *rgb, const float *before) {
  const int64_t n = 3 * size->out_h * size->out_w;
  if (!f->plan.o.plot_path || f->info.n_frames != f->about.n_frames / 2) return KRAIT_OK;
  uint8_t *both = kr_alloc((size_t)(2 * n));
  KR_CHECK(both, KRAIT_ERR_NO_MEMORY, "no memory to write %s", f->plan.o.plot_path);
  kr_frame_put(size, before, KR_SAMPLES_8, both);
  for (int64_t i = 0; i < n; i++)
    both[n + i] = f->samples == KR_SAMPLES_8 ? ((const uint8_t *)rgb)[i]
                                             : (uint8_t)((((const uint16_t *)rgb)[i] + 128) / 257);
  const int32_t status = write_png(f->plan.o.plot_path, size, 2, (const uint8_t *const[]){both, both + n});
  kr_free(both);
  return status;
}

static int32_t begin_encoder(film *f, const kr_frame_size *size) {
  const kr_film_look look = {.width = size->out_w, .height = size->out_h, .is_ten_bits = f->plan.o.is_ten_bits,
                             .is_hevc = f->plan.o.is_hevc, .quality = f->plan.o.quality,
                             .times = f->times.n ? &f->times : NULL};
  return kr_film_out_begin(f->out, &look, f->fd, &f->about, &f->encoder);
}

static int32_t put_film_frame(void *user, const kr_frame_size *size, const void *rgb, const float *before) {
  film *f = user;
  KR_TRY(write_plot(f, size, rgb, before));
  if (is_numbered(f)) KR_TRY(write_numbered(f, size, rgb));
  else if (f->about.is_picture) KR_TRY(write_png(f->out, size, 1, (const uint8_t *const[]){rgb}));
  else {
    if (!f->encoder) KR_TRY(begin_encoder(f, size));
    KR_TRY(kr_film_out_add(f->encoder, rgb));
  }
  f->info.n_frames++;
  return KRAIT_OK;
}

/* ---- batches that were finished before ---- */

static int32_t open_parts(film *f) {
  const krait_restore_options *o = &f->plan.o;
  char key[4608];
  struct stat st;
  KR_CHECK(fstat(f->fd, &st) == 0, KRAIT_ERR_FILE_READ, "cannot read %s", f->in);
  snprintf(key, sizeof key,
           "%s %lld %lld.%09ld %lld %lld %lld %lld %d %lld %lld %lld %lld %lld %.17g %.17g %.17g %llu %s %d %lld",
           f->in, (long long)st.st_size, (long long)st.st_mtim.tv_sec, st.st_mtim.tv_nsec, (long long)o->width,
           (long long)o->height, (long long)o->shorter, (long long)o->longest, (int)o->is_padded,
           (long long)o->frames_per_batch, (long long)o->overlap, (long long)o->tile, (long long)o->tile_overlap,
           (long long)o->steps, o->scale, o->rescale, o->condition_noise, (unsigned long long)o->seed, o->colour,
           f->r->models.c.is_3b, (long long)f->r->models.c.n_layers);
  return kr_parts_open(f->out, key, kr_batches_size(f->batches), f->samples, &f->parts);
}

static int32_t find_part(void *user, kr_batch_part *part, int *found) {
  return kr_parts_next(((film *)user)->parts, part, found);
}
static int32_t keep_part(void *user, const kr_batch_part *part) { return kr_parts_add(((film *)user)->parts, part); }

/* ---- the work ---- */

static int32_t tell_film(void *user, int stage, double share) {
  film *f = user;
  const krait_restore_progress p = {sizeof p, stage, share, f->info.n_frames, f->about.n_frames, f->r->plan};
  if (!f->plan.o.progress || f->plan.o.progress(f->plan.o.user, &p) == 0) return KRAIT_OK;
  f->is_stopped = 1;
  return kr_fail(KRAIT_ERR_CANCELLED, "%s was not finished: stopped after %lld frames", f->out,
                 (long long)f->info.n_frames);
}

static int32_t open_batches(film *f, int64_t width, int64_t height) {
  const int is_kept = f->plan.o.resume && !f->about.is_picture;
  f->samples = f->plan.o.is_ten_bits && kr_film_out_is(f->out) ? KR_SAMPLES_16 : KR_SAMPLES_8;
  const kr_batches_use use = {.r = f->r, .plan = &f->plan, .samples = f->samples, .out = put_film_frame,
                              .progress = tell_film, .user = f,
                              .known = is_kept ? find_part : NULL, .finished = is_kept ? keep_part : NULL};
  KR_TRY(kr_batches_open(&use, height, width, &f->batches));
  const kr_frame_size *size = kr_batches_size(f->batches);
  f->info.from_width = width, f->info.from_height = height, f->info.width = size->out_w, f->info.height = size->out_h;
  f->info.cropped_width = size->scaled_w - size->out_w, f->info.cropped_height = size->scaled_h - size->out_h;
  f->info.device_bytes = f->r->models.plan.bytes;
  f->info.host_bytes = kr_restore_host_bytes(f->r, &f->plan, size);
  KR_TRY(tell_film(f, KR_STAGE_ENCODE, 0));
  return is_kept ? open_parts(f) : KRAIT_OK;
}

static int32_t take_frame(void *user, int64_t k, int64_t width, int64_t height, const uint8_t *rgb) {
  film *f = user;
  if (!f->batches) KR_TRY(open_batches(f, width, height));
  KR_CHECK(width == f->info.from_width && height == f->info.from_height, KRAIT_ERR_UNSUPPORTED,
           "%s: frame %lld has %lld x %lld pixels, those before it %lld x %lld: cut the film there", f->in,
           (long long)k + 1, (long long)width, (long long)height, (long long)f->info.from_width,
           (long long)f->info.from_height);
  return kr_batches_add(f->batches, rgb);
}

static int32_t check_transfer(const kr_film_about *about, const char *name) {
  const int is_hdr = strcmp(about->transfer, "smpte2084") == 0 || strcmp(about->transfer, "arib-std-b67") == 0;
  KR_CHECK(!is_hdr, KRAIT_ERR_UNSUPPORTED,
           "%s is HDR (%s), which the model has not seen; make an ordinary film of it first, for example: ffmpeg -i IN "
           "-vf zscale=t=linear:npl=100,tonemap=hable,zscale=t=bt709:m=bt709:r=tv OUT",
           name, about->transfer);
  return KRAIT_OK;
}

static int32_t check_out(const film *f) {
  char first[PATH_BYTES];
  if (is_numbered(f)) {
    KR_TRY(check_pattern(f->out));
    name_numbered(f, 1, first);
    return kr_outfile_claim(first, 0);
  }
  KR_CHECK(!f->about.is_picture || is_png(f->out), KRAIT_ERR_ARGUMENT,
           "%s is a picture: the result must be a .png, not %s", f->in, f->out);
  KR_CHECK(f->about.is_picture || kr_film_out_is(f->out), KRAIT_ERR_ARGUMENT,
           "%s is a film: the result must be an .mp4, .mov or .mkv, or numbered pictures (frames/%%05d.png), not %s",
           f->in, f->out);
  return kr_outfile_claim(f->out, 0);
}

static int32_t finish_film(film *f, int32_t status) {
  if (status >= 0 && !f->batches)
    return kr_fail(KRAIT_ERR_FILE_READ, "%s has no frames", f->in);
  const int is_kept = f->is_stopped && f->plan.o.keep && f->info.n_frames > 0;
  if (status < 0 && !is_kept && is_numbered(f)) remove_numbered(f);
  if (status < 0 && !is_kept) return status;
  char why[300];
  snprintf(why, sizeof why, "%s", krait_error_detail());
  if (f->encoder) KR_TRY(kr_film_out_commit(f->encoder));
  return status < 0 ? kr_fail(status, "%s; %s has the film so far", why, f->out) : status;
}

/* The film's packets tell: what its header says of rates is often wrong. */
static int32_t find_times(film *f) {
  kr_film_times *t = &f->times;
  KR_TRY(kr_film_times_read(f->fd, f->in, f->about.demuxer, t));
  if (!f->about.n_frames) f->about.n_frames = t->n;
  if (!kr_film_times_are_uneven(t, f->about.rate, f->about.per)) {
    kr_film_times_free(t);
    return KRAIT_OK;
  }
  f->info.fps = (double)(t->n - 1) / (double)t->us[t->n - 1] * 1e6;
  if (is_numbered(f))
    snprintf(f->info.note, sizeof f->info.note,
             "the film's frames are not evenly spaced in time, which numbered pictures do not show");
  return KRAIT_OK;
}

static int32_t run_film(film *f) {
  KR_TRY(kr_film_describe(f->fd, f->in, &f->about));
  KR_TRY(check_transfer(&f->about, f->in));
  KR_TRY(check_out(f));
  f->info.fps = f->about.is_picture ? 0 : (double)f->about.rate / (double)f->about.per;
  if (!f->about.is_picture) KR_TRY(find_times(f));
  int32_t status = kr_film_each(f->fd, f->in, &f->about, take_frame, f);
  if (status >= 0 && f->batches) status = kr_batches_end(f->batches);
  status = finish_film(f, status);
  if (f->batches) kr_batches_report(f->batches, &f->info);
  return status;
}

int32_t krait_restorer_file(krait_restorer *r, const char *in_path, const char *out_path,
                            const krait_restore_options *options, krait_restore_info *info) {
  KR_CHECK(r && in_path && out_path, KRAIT_ERR_ARGUMENT, "restorer, in_path and out_path must not be NULL");
  film f = {.r = r, .in = in_path, .out = out_path, .fd = -1, .info.size = sizeof f.info};
  const int64_t begin_ns = kr_clock_ns();
  KR_TRY(kr_restore_choose(r, options, &f.plan));
  KR_TRY(kr_film_open(in_path, &f.fd));
  const int32_t status = run_film(&f);
  f.info.seconds = (double)(kr_clock_ns() - begin_ns) * 1e-9;
  kr_film_out_close(&f.encoder);
  kr_film_times_free(&f.times);
  kr_parts_close(&f.parts, status >= 0);
  kr_batches_close(&f.batches);
  close(f.fd);
  if (info) {
    const uint32_t size = info->size < sizeof f.info ? info->size : sizeof f.info;
    memcpy((char *)info + sizeof size, (char *)&f.info + sizeof size, size > sizeof size ? size - sizeof size : 0);
  }
  return status;
}
