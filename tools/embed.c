/* embed OUT.c FILE...: a C file that holds each file's bytes (.incbin) and the tables that find them. Files are PTX texts,
 * MODULE.TIER.ptx, and machine code for one architecture, MODULE.TIER.sm_NN.cubin. Texts lose their comments and most of their
 * white space, register numbers become distances, and what was said before, in this text or another, becomes a reference: modules
 * for other types and tiers say much again, farther away than an archive looks back. src/cuda/ptx_text.c reads this.
 * Runs at build time on the machine that builds, hence standard C alone. */
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REFERENCE = 1 }; /* then where what it stands for begins, from the end of the last reference's (first: from the text's own begin), and its bytes */
enum { LEAST_STATEMENTS = 3, LEAST_BYTES = 24, MAX_FILES = 4096 };

typedef struct { char *data; size_t n, room; } buffer;
typedef struct { const char *data; size_t n; uint64_t hash; } statement; /* data is NULL where nothing is that could be referred to */

static void die(const char *format, ...) {
  va_list args;
  va_start(args, format);
  fputs("embed: ", stderr);
  vfprintf(stderr, format, args);
  va_end(args);
  fputc('\n', stderr);
  exit(1);
}

static void *grown(void *memory, size_t bytes) {
  memory = realloc(memory, bytes ? bytes : 1);
  if (!memory) die("no memory for %zu bytes", bytes);
  return memory;
}

static void append(buffer *b, const void *data, size_t n) {
  if (b->n + n > b->room) b->data = grown(b->data, b->room = 2 * (b->n + n) + 4096);
  if (n) memcpy(b->data + b->n, data, n);
  b->n += n;
}

static void append_byte(buffer *b, int byte) { append(b, &(char){(char)byte}, 1); }

static buffer read_file(const char *path) {
  buffer b = {0};
  char block[65536];
  FILE *f = fopen(path, "rb");
  if (!f) die("cannot read %s", path);
  for (size_t n; (n = fread(block, 1, sizeof block, f)) > 0;) append(&b, block, n);
  if (ferror(f)) die("cannot read %s", path);
  fclose(f);
  append_byte(&b, 0);
  b.n--;
  return b;
}

/* ---- one text, shortened ------------------------------------------------------------------------------------------- */

/* What the assembler does not mind goes: comments, runs of blanks and lines, blanks after commas. */
static buffer without_blanks(const char *path) {
  buffer in = read_file(path), out = {0};
  for (const char *p = in.data; p < in.data + in.n;) {
    const char last = out.n ? out.data[out.n - 1] : 0;
    if ((unsigned char)*p >= 128 || *p == REFERENCE || *p == 0) die("%s is not a PTX text", path);
    if (p[0] == '/' && p[1] == '/') {
      p += strcspn(p, "\n");
      continue;
    }
    if (*p == ' ' || *p == '\t') {
      if (last != ' ' && last != '\n' && last != ',') append_byte(&out, ' ');
    } else if (*p != '\n' || last != '\n') {
      append_byte(&out, *p);
    }
    p++;
  }
  append_byte(&out, 0);
  out.n--;
  free(in.data);
  return out;
}

static int is_letter(int c) { return c >= 'a' && c <= 'z'; }
static int is_digit(int c) { return c >= '0' && c <= '9'; }

/* %rd12 becomes %rd and one byte, where the number is near the last one with these letters. */
static buffer shortened(const char *path) {
  buffer in = without_blanks(path), out = {0};
  long last[27][27] = {{0}};
  for (const char *p = in.data; *p;) {
    const char *digits = p + 1;
    if (*p == '%')
      while (digits < p + 3 && is_letter(*digits)) digits++;
    if (*p != '%' || digits == p + 1 || !is_digit(*digits)) {
      append_byte(&out, *p++);
      continue;
    }
    if (digits[0] == '0' && is_digit(digits[1])) die("%s has a register with a leading zero", path);
    char *end;
    const long number = strtol(digits, &end, 10);
    long *before = &last[p[1] - 'a'][digits - p == 3 ? p[2] - 'a' + 1 : 0];
    const long distance = number - *before;
    *before = number;
    if (distance >= -64 && distance < 64) append(&out, p, (size_t)(digits - p)), append_byte(&out, (int)(192 + distance));
    else append(&out, p, (size_t)(end - p));
    p = end;
  }
  free(in.data);
  return out;
}

/* ---- all texts, packed: statements one after the other; where some that were kept as they are come again, a reference to them ----- */

static buffer blob;
static statement *kept;
static size_t *begins, n_kept, kept_room;
static uint32_t *places, n_slots; /* by the hash of LEAST_STATEMENTS statements: where they were first kept, plus one */

static uint64_t hash_of(const char *data, size_t n) {
  uint64_t h = 1469598103934665603u;
  for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)data[i]) * 1099511628211u;
  return h;
}

static int same(const statement *a, const statement *b) {
  return a->data && b->data && a->hash == b->hash && a->n == b->n && memcmp(a->data, b->data, a->n) == 0;
}

/* The slot that these statements have or would take. */
static uint32_t *find_slot(const statement *s) {
  uint64_t h = 0;
  for (int i = 0; i < LEAST_STATEMENTS; i++) h = (h ^ s[i].hash) * 0x9e3779b97f4a7c15u, h ^= h >> 29;
  for (uint32_t at = (uint32_t)h & (n_slots - 1);; at = (at + 1) & (n_slots - 1)) {
    int n = 0;
    while (places[at] && n < LEAST_STATEMENTS && same(&kept[places[at] - 1 + (uint32_t)n], &s[n])) n++;
    if (!places[at] || n == LEAST_STATEMENTS) return &places[at];
  }
}

static void make_room(size_t n_statements) { /* for so many more; slots stay at most half full */
  if (n_kept + n_statements > kept_room) {
    kept_room = 2 * (n_kept + n_statements);
    kept = grown(kept, kept_room * sizeof *kept);
    begins = grown(begins, kept_room * sizeof *begins);
  }
  if (n_slots >= 2 * (n_kept + n_statements)) return;
  const uint32_t n_old = n_slots;
  uint32_t *old = places;
  for (n_slots = 1 << 16; n_slots < 4 * (n_kept + n_statements);) n_slots *= 2;
  places = grown(NULL, n_slots * sizeof *places);
  memset(places, 0, n_slots * sizeof *places);
  for (uint32_t i = 0; i < n_old; i++)
    if (old[i]) *find_slot(&kept[old[i] - 1]) = old[i];
  free(old);
}

static void keep(statement s) {
  kept[n_kept] = s;
  begins[n_kept++] = blob.n;
  append(&blob, s.data, s.n);
  if (n_kept < LEAST_STATEMENTS) return;
  const statement *first = &kept[n_kept - LEAST_STATEMENTS];
  for (int i = 0; i < LEAST_STATEMENTS; i++)
    if (!first[i].data) return;
  uint32_t *slot = find_slot(first);
  if (!*slot) *slot = (uint32_t)(first - kept) + 1;
}

/* Seven bits a byte, the least first; all but the last byte have the eighth. */
static void append_number(uint64_t n) {
  for (; n >= 128; n >>= 7) append_byte(&blob, (int)(n & 127) | 128);
  append_byte(&blob, (int)n);
}

static void pack(const statement *s, size_t n_statements) {
  size_t copied = blob.n;
  make_room(2 * n_statements + 2);
  keep((statement){0});
  for (size_t i = 0; i < n_statements;) {
    const uint32_t slot = i + LEAST_STATEMENTS <= n_statements ? *find_slot(&s[i]) : 0;
    size_t n = 0, n_bytes = 0;
    for (; slot && i + n < n_statements && slot - 1 + n < n_kept && same(&kept[slot - 1 + n], &s[i + n]); n++) n_bytes += s[i + n].n;
    if (n_bytes < LEAST_BYTES) {
      keep(s[i++]);
      continue;
    }
    const size_t begin = begins[slot - 1];
    append_byte(&blob, REFERENCE);
    append_number(begin >= copied ? 2 * (begin - copied) : 2 * (copied - begin) - 1);
    append_number(n_bytes);
    keep((statement){0});
    copied = begin + n_bytes;
    i += n;
  }
}

/* The text stays in memory: statements point into it. */
static void pack_text(const char *path) {
  buffer text = shortened(path);
  size_t n = 0, n_room = 1;
  for (size_t i = 0; i < text.n; i++) n_room += text.data[i] == ';';
  statement *s = grown(NULL, n_room * sizeof *s);
  for (size_t at = 0; at < text.n; n++) {
    const char *semicolon = memchr(text.data + at, ';', text.n - at);
    const size_t bytes = semicolon ? (size_t)(semicolon - text.data) + 1 - at : text.n - at;
    s[n] = (statement){text.data + at, bytes, hash_of(text.data + at, bytes)};
    at += bytes;
  }
  pack(s, n);
  free(s);
}

/* ---- the C file ----------------------------------------------------------------------------------------------------- */

static FILE *out;

static void put_bytes(const char *name, const char *path) {
  fprintf(out, "__asm__(\".pushsection .rodata\\n.balign 16\\n.globl %s\\n.hidden %s\\n%s:\\n.incbin \\\"%s\\\"\\n.byte 0\\n.popsection\\n\");\n", name, name, name, path);
  fprintf(out, "extern const char %s[];\n", name);
}

/* "a/MODULE.TIER.sm_NN.cubin": MODULE, TIER and, with a suffix of .cubin, NN. */
typedef struct { const char *path; char module[256], tier[64]; int capability; } named;

static named name_of(const char *path) {
  named n = {.path = path};
  const char *base = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
  if (sscanf(base, "%255[^.].%63[^.].", n.module, n.tier) != 2) die("%s is not named MODULE.TIER.ptx", path);
  if (strstr(base, ".sm_")) n.capability = atoi(strstr(base, ".sm_") + 4);
  return n;
}

static int ends_with(const char *s, const char *tail) { return strlen(s) >= strlen(tail) && strcmp(s + strlen(s) - strlen(tail), tail) == 0; }

static void put_tiers(const named *texts, int n_texts) {
  fprintf(out, "\nuint64_t kr_cuda_built_tiers(void) {\n  uint64_t caps = 0;\n");
  for (int i = 0; i < n_texts; i++) {
    int seen = 0;
    for (int k = 0; k < i; k++) seen |= strcmp(texts[k].tier, texts[i].tier) == 0;
    if (seen) continue;
    fprintf(out, "  caps |= KRAIT_CAP_CUDA_");
    for (const char *p = texts[i].tier; *p; p++) fputc(is_letter(*p) ? *p - 'a' + 'A' : *p, out);
    fprintf(out, ";\n");
  }
  fprintf(out, "  return caps;\n}\n");
}

static void put_tables(const named *texts, const size_t *ends, int n_texts, const named *cubins, int n_cubins) {
  fprintf(out, "\nstatic char *kept[%d];\nstatic const struct { const char *module, *tier; uint32_t begin, end; } texts[] = {\n", n_texts + 1);
  for (int i = 0; i < n_texts; i++) fprintf(out, "  {\"%s\", \"%s\", %zu, %zu},\n", texts[i].module, texts[i].tier, i ? ends[i - 1] : 0, ends[i]);
  fprintf(out, "  {0, 0, 0, 0}};\n\nstatic const kr_cubin cubins[] = {\n");
  for (int i = 0; i < n_cubins; i++) {
    buffer code = read_file(cubins[i].path);
    fprintf(out, "  {\"%s\", \"%s\", %d, kr_code_%d, %zu},\n", cubins[i].module, cubins[i].tier, cubins[i].capability, i, code.n);
    free(code.data);
  }
  fprintf(out, "  {0, 0, 0, 0, 0}};\n\n"
    "int kr_cuda_embedded(int index, const char **module, const char **tier, const char **text, size_t *bytes) {\n"
    "  if (index < 0 || index >= %d) return 0;\n"
    "  *module = texts[index].module, *tier = texts[index].tier;\n"
    "  if (text) *text = kr_ptx_unpack(kr_code + texts[index].begin, kr_code + texts[index].end, &kept[index]), *bytes = *text ? strlen(*text) : 0;\n"
    "  return 1;\n}\n\n"
    "const kr_cubin *kr_cuda_cubin(int index) { return index >= 0 && index < %d ? &cubins[index] : NULL; }\n", n_texts, n_cubins);
  put_tiers(texts, n_texts);
}

static void write_packed(const char *path) {
  FILE *f = fopen(path, "wb");
  if (!f || fwrite(blob.data, 1, blob.n, f) != blob.n || fclose(f)) die("cannot write %s", path);
}

int main(int argc, char **argv) {
  static named texts[MAX_FILES], cubins[MAX_FILES];
  static size_t ends[MAX_FILES];
  int n_texts = 0, n_cubins = 0;
  if (argc < 2 || argc > MAX_FILES) die("usage: embed OUT.c FILE...");
  for (int i = 2; i < argc; i++) {
    if (ends_with(argv[i], ".cubin")) {
      cubins[n_cubins++] = name_of(argv[i]);
    } else {
      texts[n_texts] = name_of(argv[i]);
      pack_text(argv[i]);
      ends[n_texts++] = blob.n;
    }
  }
  const size_t room = strlen(argv[1]) + sizeof ".packed";
  char *packed = grown(NULL, room);
  snprintf(packed, room, "%s.packed", argv[1]);
  write_packed(packed);
  out = fopen(argv[1], "w");
  if (!out) die("cannot write %s", argv[1]);
  fprintf(out, "/* Made by tools/embed.c: the device code of this build. */\n#include \"cuda.h\"\n#include <krait/krait.h>\n#include <string.h>\n\n");
  put_bytes("kr_code", packed);
  for (int i = 0; i < n_cubins; i++) {
    char name[32];
    snprintf(name, sizeof name, "kr_code_%d", i);
    put_bytes(name, cubins[i].path);
  }
  put_tables(texts, ends, n_texts, cubins, n_cubins);
  if (ferror(out) || fclose(out)) die("cannot write %s", argv[1]);
  free(packed);
  return 0;
}
