/* pickle.c: the virtual machine of pickle protocols 2 to 5, without the part that runs code. Every length is checked
 * against the rest of the file, and the number of values is bounded, so memory stays within about 100 bytes per byte of
 * pickle. */
#include "pickle.h"

#include <string.h>

#include "alloc.h"
#include "status.h"

enum { MAX_PICKLE_BYTES = 64 << 20, MAX_VALUES = 2 << 20, MAX_GLOBAL_BYTES = 256 };

typedef struct kr_pickle {
  const unsigned char *bytes;
  size_t n_bytes, at;
  const char *label;
  kr_arena *arena;
  kr_pickle_value **stack;
  int64_t n_stack, stack_capacity;
  int64_t *marks; /* stack heights */
  int64_t n_marks, mark_capacity;
  kr_pickle_value **memo;
  int64_t memo_capacity, n_memoized;
  int64_t n_values;
  const kr_pickle_value *result;
} kr_pickle;

/* ---- bytes ------------------------------------------------------------------------------------------------------ */

static int32_t bad(const kr_pickle *p, const char *what) {
  return kr_fail(KRAIT_ERR_FILE_FORMAT, "%s: the pickle is damaged near byte %zu: %s", p->label, p->at, what);
}

static int32_t take_pickle(kr_pickle *p, uint64_t n, const unsigned char **bytes) {
  KR_CHECK(n <= p->n_bytes - p->at, KRAIT_ERR_FILE_READ,
           "%s: the pickle ends in the middle of a value at byte %zu of %zu; the file is truncated or "
           "inconsistent",
           p->label, p->at, p->n_bytes);
  *bytes = p->bytes + p->at;
  p->at += (size_t)n;
  return KRAIT_OK;
}

static int32_t take_pickle_number(kr_pickle *p, int n, uint64_t *number) {
  const unsigned char *bytes;
  KR_TRY(take_pickle(p, (uint64_t)n, &bytes));
  *number = 0;
  for (int i = n - 1; i >= 0; i--) *number = *number << 8 | bytes[i];
  return KRAIT_OK;
}

static int32_t take_line(kr_pickle *p, const char **text, size_t *length) {
  const unsigned char *begin = p->bytes + p->at, *end = memchr(begin, '\n', p->n_bytes - p->at);
  KR_CHECK(end, KRAIT_ERR_FILE_READ,
           "%s: the pickle ends in the middle of a name; the file is truncated or inconsistent", p->label);
  *text = (const char *)begin;
  *length = (size_t)(end - begin);
  p->at += *length + 1;
  return KRAIT_OK;
}

/* ---- values, stack, memo ---------------------------------------------------------------------------------------- */

static int32_t no_memory(const kr_pickle *p) {
  return kr_fail(KRAIT_ERR_NO_MEMORY, "%s: no memory for its pickle", p->label);
}

static int32_t new_value(kr_pickle *p, int32_t kind, kr_pickle_value **value) {
  KR_CHECK(++p->n_values <= MAX_VALUES, KRAIT_ERR_FILE_FORMAT, "%s: the pickle has more than %d values", p->label,
           MAX_VALUES);
  *value = kr_arena_try(p->arena, sizeof **value);
  if (!*value) return no_memory(p);
  (*value)->kind = kind;
  return KRAIT_OK;
}

/* Makes *array hold at least n elements. */
static int32_t reserve(const kr_pickle *p, void **array, int64_t *capacity, int64_t n, size_t element_bytes) {
  if (n <= *capacity) return KRAIT_OK;
  int64_t wanted = 2 * n + 64;
  void *grown = kr_realloc(*array, (size_t)*capacity * element_bytes, (size_t)wanted * element_bytes);
  if (!grown) return no_memory(p);
  memset((char *)grown + (size_t)*capacity * element_bytes, 0, (size_t)(wanted - *capacity) * element_bytes);
  *array = grown;
  *capacity = wanted;
  return KRAIT_OK;
}

static int32_t push(kr_pickle *p, kr_pickle_value *value) {
  KR_TRY(reserve(p, (void **)&p->stack, &p->stack_capacity, p->n_stack + 1, sizeof *p->stack));
  p->stack[p->n_stack++] = value;
  return KRAIT_OK;
}

static int32_t push_new(kr_pickle *p, int32_t kind, kr_pickle_value **value) {
  KR_TRY(new_value(p, kind, value));
  return push(p, *value);
}

/* Values below the newest mark cannot be reached until it is taken. */
static int32_t pop(kr_pickle *p, kr_pickle_value **value) {
  int64_t floor = p->n_marks ? p->marks[p->n_marks - 1] : 0;
  if (p->n_stack <= floor) return bad(p, "a value is missing");
  *value = p->stack[--p->n_stack];
  return KRAIT_OK;
}

static int32_t top(kr_pickle *p, kr_pickle_value **value) {
  KR_TRY(pop(p, value));
  p->n_stack++;
  return KRAIT_OK;
}

/* The values above the newest mark, which is removed; they stay valid until the next push. */
static int32_t pop_marked(kr_pickle *p, kr_pickle_value ***values, int64_t *n) {
  if (p->n_marks == 0) return bad(p, "a mark is missing");
  int64_t begin = p->marks[--p->n_marks];
  *values = p->stack + begin;
  *n = p->n_stack - begin;
  p->n_stack = begin;
  return KRAIT_OK;
}

static int32_t append_pickle(kr_pickle *p, kr_pickle_value *list, kr_pickle_value *const *values, int64_t n) {
  if (list->n_items + n > list->capacity) {
    int64_t capacity = list->capacity ? 2 * list->n_items + n : n;
    kr_pickle_value **items = kr_arena_try(p->arena, (size_t)capacity * sizeof *items);
    if (!items) return no_memory(p);
    if (list->n_items) memcpy(items, list->items, (size_t)list->n_items * sizeof *items);
    list->items = items;
    list->capacity = capacity;
  }
  if (n) memcpy(list->items + list->n_items, values, (size_t)n * sizeof *values);
  list->n_items += n;
  return KRAIT_OK;
}

/* Picklers count up by one per stored value: a memo cannot be made huge by one number. */
static int32_t memo_put(kr_pickle *p, uint64_t index) {
  kr_pickle_value *value;
  KR_TRY(top(p, &value));
  if (index > (uint64_t)p->n_values) return bad(p, "a memo index out of range");
  KR_TRY(reserve(p, (void **)&p->memo, &p->memo_capacity, (int64_t)index + 1, sizeof *p->memo));
  p->n_memoized += p->memo[index] == NULL;
  p->memo[index] = value;
  return KRAIT_OK;
}

static int32_t memo_get(kr_pickle *p, uint64_t index) {
  if (index >= (uint64_t)p->memo_capacity || !p->memo[index]) return bad(p, "a memo entry that was never stored");
  return push(p, p->memo[index]);
}

/* ---- globals ---------------------------------------------------------------------------------------------------- */

/* Modules that run code, start programs or access the machine. No training state needs them. */
static const char *const unsafe_modules[] = {
    "os",
    "posix",
    "nt",
    "subprocess",
    "sys",
    "importlib",
    "imp",
    "runpy",
    "shutil",
    "socket",
    "ctypes",
    "_ctypes",
    "cffi",
    "pty",
    "pdb",
    "bdb",
    "code",
    "codeop",
    "pickle",
    "_pickle",
    "cPickle",
    "dill",
    "cloudpickle",
    "marshal",
    "operator",
    "_operator",
    "commands",
    "popen2",
    "multiprocessing",
    "threading",
    "_thread",
    "signal",
    "webbrowser",
    "timeit",
    "profile",
    "cProfile",
    "trace",
    "platform",
    "pkgutil",
    "zipimport",
    "asyncio",
    "http",
    "urllib",
    "requests",
    "ftplib",
    "smtplib",
    "pip",
    "setuptools",
    "distutils",
    "torch.hub",
    "torch.jit",
    "torch.utils.cpp_extension",
    "torch.package",
    "numpy.testing",
};
/* Of Python's builtins only types and constructors of plain data are allowed. */
static const char *const safe_builtins[] = {
    "dict",    "list",  "tuple", "set",     "frozenset", "int",      "float",
    "complex", "bool",  "str",   "unicode", "long",      "bytes",    "bytearray",
    "object",  "slice", "range", "xrange",  "type",      "Ellipsis", "NotImplemented",
};

static int is_listed(const char *const *list, size_t n, const char *name, size_t length) {
  for (size_t i = 0; i < n; i++)
    if (strlen(list[i]) == length && memcmp(list[i], name, length) == 0) return 1;
  return 0;
}
#define IS_LISTED(list, name, length) is_listed(list, sizeof(list) / sizeof *(list), name, length)

/* A listed module, or anything inside one. */
static int is_unsafe_module(const char *module, size_t length) {
  for (size_t n = 1; n <= length; n++)
    if ((n == length || module[n] == '.') && IS_LISTED(unsafe_modules, module, n)) return 1;
  return 0;
}

static int32_t push_global(kr_pickle *p, const char *module, size_t module_length, const char *name,
                           size_t name_length) {
  int is_possible =
      module_length > 0 && module_length <= MAX_GLOBAL_BYTES && name_length > 0 && name_length <= MAX_GLOBAL_BYTES;
  if (!is_possible) return bad(p, "a global name of invalid length");
  int is_builtin = IS_LISTED(((const char *const[]){"builtins", "__builtin__"}), module, module_length);
  int is_unsafe = is_builtin ? !IS_LISTED(safe_builtins, name, name_length) : is_unsafe_module(module, module_length);
  KR_CHECK(!is_unsafe, KRAIT_ERR_UNSAFE, "%s: its pickle refers to %.*s.%.*s, which could run code", p->label,
           (int)module_length, module, (int)name_length, name);
  kr_pickle_value *value;
  KR_TRY(push_new(p, KR_PICKLE_GLOBAL, &value));
  char text[2 * MAX_GLOBAL_BYTES + 1];
  memcpy(text, module, module_length);
  text[module_length] = '.';
  memcpy(text + module_length + 1, name, name_length);
  value->length = module_length + 1 + name_length;
  value->text = kr_arena_copy(p->arena, text, value->length);
  return kr_arena_failed(p->arena) ? no_memory(p) : KRAIT_OK;
}

static int32_t op_global(kr_pickle *p, int unused) {
  const char *module, *name;
  size_t module_length, name_length;
  (void)unused;
  KR_TRY(take_line(p, &module, &module_length));
  KR_TRY(take_line(p, &name, &name_length));
  return push_global(p, module, module_length, name, name_length);
}

static int32_t op_stack_global(kr_pickle *p, int unused) {
  kr_pickle_value *module, *name;
  (void)unused;
  KR_TRY(pop(p, &name));
  KR_TRY(pop(p, &module));
  if (module->kind != KR_PICKLE_TEXT || name->kind != KR_PICKLE_TEXT) return bad(p, "a global without a name");
  return push_global(p, module->text, module->length, name->text, name->length);
}

/* ---- calls ----------------------------------------------------------------------------------------------- */

/* callee(args), or callee.__new__(args): the difference is the caller's. With keyword arguments n is 3. */
static int32_t op_call(kr_pickle *p, int n) {
  kr_pickle_value *keywords, *args, *callee, *object;
  if (n == 3) KR_TRY(pop(p, &keywords));
  KR_TRY(pop(p, &args));
  KR_TRY(pop(p, &callee));
  if (args->kind != KR_PICKLE_TUPLE) return bad(p, "arguments that are not a tuple");
  KR_TRY(push_new(p, KR_PICKLE_OBJECT, &object));
  object->callee = callee;
  object->args = args;
  return KRAIT_OK;
}

/* In Python this may call __setstate__; here the state is kept beside the object. */
static int32_t op_build(kr_pickle *p, int unused) {
  kr_pickle_value *state, *object;
  (void)unused;
  KR_TRY(pop(p, &state));
  KR_TRY(top(p, &object));
  object->state = state;
  return KRAIT_OK;
}

static int32_t op_persistent(kr_pickle *p, int unused) {
  kr_pickle_value *id, *value;
  (void)unused;
  KR_TRY(pop(p, &id));
  KR_TRY(push_new(p, KR_PICKLE_PERSISTENT, &value));
  value->callee = id;
  return KRAIT_OK;
}

/* ---- plain values ------------------------------------------------------------------------------------------------ */

static int32_t op_none(kr_pickle *p, int unused) {
  kr_pickle_value *value;
  (void)unused;
  return push_new(p, KR_PICKLE_NONE, &value);
}

static int32_t op_bool(kr_pickle *p, int truth) {
  kr_pickle_value *value;
  KR_TRY(push_new(p, KR_PICKLE_BOOL, &value));
  value->whole = truth;
  return KRAIT_OK;
}

static int32_t op_int(kr_pickle *p, int n_bytes) {
  uint64_t number;
  kr_pickle_value *value;
  KR_TRY(take_pickle_number(p, n_bytes, &number));
  KR_TRY(push_new(p, KR_PICKLE_INT, &value));
  value->whole = n_bytes == 4 ? (int64_t)(int32_t)(uint32_t)number : (int64_t)number;
  return KRAIT_OK;
}

/* Little-endian two's complement of any length. */
static int32_t op_long(kr_pickle *p, int length_bytes) {
  uint64_t length, number;
  const unsigned char *bytes;
  kr_pickle_value *value;
  KR_TRY(take_pickle_number(p, length_bytes, &length));
  KR_TRY(take_pickle(p, length, &bytes));
  KR_TRY(push_new(p, length <= 8 ? KR_PICKLE_INT : KR_PICKLE_BIG_INT, &value));
  if (length > 8 || length == 0) return KRAIT_OK;
  number = bytes[length - 1] & 0x80 ? ~0ull : 0;
  for (uint64_t i = length; i-- > 0;) number = number << 8 | bytes[i];
  value->whole = (int64_t)number;
  return KRAIT_OK;
}

static int32_t op_float(kr_pickle *p, int unused) {
  const unsigned char *bytes;
  kr_pickle_value *value;
  uint64_t bits = 0;
  (void)unused;
  KR_TRY(take_pickle(p, 8, &bytes));
  KR_TRY(push_new(p, KR_PICKLE_FLOAT, &value));
  for (int i = 0; i < 8; i++) bits = bits << 8 | bytes[i];
  memcpy(&value->real, &bits, sizeof value->real);
  return KRAIT_OK;
}

static int32_t push_text(kr_pickle *p, int length_bytes, int32_t kind) {
  uint64_t length;
  const unsigned char *bytes;
  kr_pickle_value *value;
  KR_TRY(take_pickle_number(p, length_bytes, &length));
  KR_TRY(take_pickle(p, length, &bytes));
  KR_TRY(push_new(p, kind, &value));
  value->length = (size_t)length;
  value->text = kr_arena_copy(p->arena, (const char *)bytes, (size_t)length);
  return kr_arena_failed(p->arena) ? no_memory(p) : KRAIT_OK;
}

static int32_t op_text(kr_pickle *p, int length_bytes) { return push_text(p, length_bytes, KR_PICKLE_TEXT); }
static int32_t op_bytes(kr_pickle *p, int length_bytes) { return push_text(p, length_bytes, KR_PICKLE_BYTES); }

/* ---- containers -------------------------------------------------------------------------------------------------- */

static int32_t op_empty(kr_pickle *p, int kind) {
  kr_pickle_value *value;
  return push_new(p, kind, &value);
}

static int32_t op_mark(kr_pickle *p, int unused) {
  (void)unused;
  KR_TRY(reserve(p, (void **)&p->marks, &p->mark_capacity, p->n_marks + 1, sizeof *p->marks));
  p->marks[p->n_marks++] = p->n_stack;
  return KRAIT_OK;
}

/* A tuple, list, set or map of all values above the mark. */
static int32_t op_marked(kr_pickle *p, int kind) {
  kr_pickle_value **values, *value;
  int64_t n;
  KR_TRY(pop_marked(p, &values, &n));
  if (kind == KR_PICKLE_MAP && n % 2) return bad(p, "a key without a value");
  KR_TRY(new_value(p, kind, &value));
  KR_TRY(append_pickle(p, value, values, n));
  return push(p, value);
}

static int32_t op_tuple(kr_pickle *p, int n) {
  kr_pickle_value *values[3], *value;
  for (int i = n - 1; i >= 0; i--) KR_TRY(pop(p, &values[i]));
  KR_TRY(new_value(p, KR_PICKLE_TUPLE, &value));
  KR_TRY(append_pickle(p, value, values, n));
  return push(p, value);
}

/* Objects may be lists or sets in Python (a subclass, a deque); their elements are not needed here. */
static int32_t add_items(kr_pickle *p, kr_pickle_value *const *values, int64_t n, int32_t kind) {
  kr_pickle_value *list;
  KR_TRY(top(p, &list));
  if (list->kind == KR_PICKLE_OBJECT && kind != KR_PICKLE_MAP) return KRAIT_OK;
  if (list->kind != kind && list->kind != KR_PICKLE_OBJECT) return bad(p, "elements for an object that has none");
  if (kind == KR_PICKLE_MAP && n % 2) return bad(p, "a key without a value");
  return append_pickle(p, list, values, n);
}

static int32_t op_add_marked(kr_pickle *p, int kind) {
  kr_pickle_value **values;
  int64_t n;
  KR_TRY(pop_marked(p, &values, &n));
  return add_items(p, values, n, kind);
}

static int32_t op_append(kr_pickle *p, int unused) {
  kr_pickle_value *value;
  (void)unused;
  KR_TRY(pop(p, &value));
  return add_items(p, &value, 1, KR_PICKLE_LIST);
}

static int32_t op_set_item(kr_pickle *p, int unused) {
  kr_pickle_value *pair[2];
  (void)unused;
  KR_TRY(pop(p, &pair[1]));
  KR_TRY(pop(p, &pair[0]));
  return add_items(p, pair, 2, KR_PICKLE_MAP);
}

/* ---- stack and frame --------------------------------------------------------------------------------------------- */

static int32_t op_pop(kr_pickle *p, int unused) {
  kr_pickle_value *value;
  (void)unused;
  if (p->n_marks && p->n_stack == p->marks[p->n_marks - 1]) return p->n_marks--, KRAIT_OK;
  return pop(p, &value);
}

static int32_t op_pop_mark(kr_pickle *p, int unused) {
  kr_pickle_value **values;
  int64_t n;
  (void)unused;
  return pop_marked(p, &values, &n);
}

static int32_t op_put(kr_pickle *p, int n_bytes) {
  uint64_t index;
  KR_TRY(take_pickle_number(p, n_bytes, &index));
  return memo_put(p, index);
}

static int32_t op_get(kr_pickle *p, int n_bytes) {
  uint64_t index;
  KR_TRY(take_pickle_number(p, n_bytes, &index));
  return memo_get(p, index);
}

static int32_t op_memoize(kr_pickle *p, int unused) {
  (void)unused;
  return memo_put(p, (uint64_t)p->n_memoized);
}

static int32_t op_proto(kr_pickle *p, int unused) {
  uint64_t version;
  (void)unused;
  KR_TRY(take_pickle_number(p, 1, &version));
  return version >= 2 && version <= 5 ? KRAIT_OK : bad(p, "a protocol other than 2 to 5");
}

static int32_t op_frame(kr_pickle *p, int unused) {
  uint64_t length;
  (void)unused;
  KR_TRY(take_pickle_number(p, 8, &length));
  return length <= p->n_bytes - p->at ? KRAIT_OK : bad(p, "a frame longer than the file");
}

static int32_t op_stop(kr_pickle *p, int unused) {
  kr_pickle_value *value;
  (void)unused;
  KR_TRY(pop(p, &value));
  p->result = value;
  return KRAIT_OK;
}

static const struct {
  int32_t (*run)(kr_pickle *p, int argument);
  int argument;
} opcodes[256] = {
    [0x80] = {op_proto, 0},
    [0x95] = {op_frame, 0},
    ['.'] = {op_stop, 0},
    ['N'] = {op_none, 0},
    [0x88] = {op_bool, 1},
    [0x89] = {op_bool, 0},
    ['J'] = {op_int, 4},
    ['K'] = {op_int, 1},
    ['M'] = {op_int, 2},
    [0x8a] = {op_long, 1},
    [0x8b] = {op_long, 4},
    ['G'] = {op_float, 0},
    ['X'] = {op_text, 4},
    [0x8c] = {op_text, 1},
    [0x8d] = {op_text, 8},
    ['U'] = {op_text, 1},
    ['T'] = {op_text, 4},
    ['C'] = {op_bytes, 1},
    ['B'] = {op_bytes, 4},
    [0x8e] = {op_bytes, 8},
    [0x96] = {op_bytes, 8},
    [']'] = {op_empty, KR_PICKLE_LIST},
    [')'] = {op_empty, KR_PICKLE_TUPLE},
    ['}'] = {op_empty, KR_PICKLE_MAP},
    [0x8f] = {op_empty, KR_PICKLE_SET},
    ['('] = {op_mark, 0},
    ['t'] = {op_marked, KR_PICKLE_TUPLE},
    ['l'] = {op_marked, KR_PICKLE_LIST},
    ['d'] = {op_marked, KR_PICKLE_MAP},
    [0x91] = {op_marked, KR_PICKLE_SET},
    [0x85] = {op_tuple, 1},
    [0x86] = {op_tuple, 2},
    [0x87] = {op_tuple, 3},
    ['a'] = {op_append, 0},
    ['e'] = {op_add_marked, KR_PICKLE_LIST},
    ['s'] = {op_set_item, 0},
    ['u'] = {op_add_marked, KR_PICKLE_MAP},
    [0x90] = {op_add_marked, KR_PICKLE_SET},
    ['0'] = {op_pop, 0},
    ['1'] = {op_pop_mark, 0},
    ['q'] = {op_put, 1},
    ['r'] = {op_put, 4},
    [0x94] = {op_memoize, 0},
    ['h'] = {op_get, 1},
    ['j'] = {op_get, 4},
    ['c'] = {op_global, 0},
    [0x93] = {op_stack_global, 0},
    ['R'] = {op_call, 2},
    [0x81] = {op_call, 2},
    [0x92] = {op_call, 3},
    ['b'] = {op_build, 0},
    ['Q'] = {op_persistent, 0},
};

static int32_t run_pickle(kr_pickle *p) {
  while (!p->result) {
    const unsigned char *code;
    KR_TRY(take_pickle(p, 1, &code));
    KR_CHECK(opcodes[*code].run, KRAIT_ERR_FILE_FORMAT,
             "%s: its pickle uses opcode 0x%02x, which torch.save does not write", p->label, *code);
    KR_TRY(opcodes[*code].run(p, opcodes[*code].argument));
  }
  return KRAIT_OK;
}

int32_t kr_pickle_read(const unsigned char *bytes, size_t n_bytes, const char *label, kr_arena *arena,
                       const kr_pickle_value **root) {
  *root = NULL;
  KR_CHECK(n_bytes <= MAX_PICKLE_BYTES, KRAIT_ERR_FILE_FORMAT, "%s: a pickle of %zu bytes, more than %d", label,
           n_bytes, MAX_PICKLE_BYTES);
  kr_pickle p = {.bytes = bytes, .n_bytes = n_bytes, .label = label, .arena = arena};
  int32_t status =
      reserve(&p, (void **)&p.stack, &p.stack_capacity, 1, sizeof *p.stack); /* so that adding 0 to it is defined */
  if (status == KRAIT_OK) status = run_pickle(&p);
  kr_free(p.stack);
  kr_free(p.marks);
  kr_free(p.memo);
  *root = p.result;
  return status;
}

const kr_pickle_value *kr_pickle_find(const kr_pickle_value *map, const char *key) {
  if (map->kind != KR_PICKLE_MAP && map->kind != KR_PICKLE_OBJECT) return NULL;
  for (int64_t i = map->n_items - 2; i >= 0; i -= 2)
    if (map->items[i]->kind == KR_PICKLE_TEXT && map->items[i]->length == strlen(key) &&
        memcmp(map->items[i]->text, key, map->items[i]->length) == 0) return map->items[i + 1];
  return NULL;
}

#ifdef KR_FUZZ
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  kr_arena *arena = kr_arena_open();
  const kr_pickle_value *root;
  if (arena) kr_pickle_read(data, size, "fuzz", arena, &root);
  kr_arena_close(&arena);
  return 0;
}
#endif
