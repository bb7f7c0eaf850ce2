/* doc.h: one run of the doctor: facts about the target, and the files, packages, log and findings of the headers below;
 * the interfaces between its parts. */
#ifndef KR_DOC_H
#define KR_DOC_H

#include <krait/doctor.h>

#include "arena.h"
#include "doc_files.h"
#include "doc_findings.h"
#include "doc_log.h"
#include "doc_packages.h"
#include "names.h"
#include "scan.h"
#include "tables.h"

typedef struct doc_gpu {
  const char *name, *source;
  int cc; /* 0: unknown */
} doc_gpu;

struct krait_report {
  kr_arena *arena;
  krait_tables *tables;
  krait_doctor_options options;
  const char *root;
  /* Facts; source says where each came from. */
  kr_list gpus; /* doc_gpu */
  int judged_cc; /* the device for which files are being judged; 0: none now */
  const char *driver, *driver_source, *kernel_driver, *user_driver;
  int driver_number,
      driver_cuda; /* as krait_target; of a branch, as --driver 580, the number is that of its last release */
  int driver_needed;              /* the newest that D01 requires, or 0 */
  const char *torch, *torch_cuda, *torch_source, *torch_lib; /* torch_lib: its lib folder; "" */
  int torch_number, torch_abi, torch_is_cpu;
  int python; /* 311; 0 unknown */
  const char *python_source, *prefix;
  int has_pyvenv;
  int glibc;  /* 236 for 2.36; 0 unknown */
  int machine;
  const char *nvcc, *nvcc_path;
  int is_elsewhere; /* the target is not this machine: its driver, compiler and variables are no evidence */
  int has_nvidia_node, has_uvm_node, has_driver, has_jit;
  int n_pci; /* devices seen on the bus, used only if no GPU was known before */
  const char *env_library_path, *env_visible, *env_force_jit, *env_disable_jit, *env_no_cache;
  /* The loader's search paths: see loader.c. */
  int knows_list, knows_interpreter;
  char *list;               /* ld.so.cache; NULL: there is none */
  size_t list_bytes;
  kr_list system_libraries; /* doc_version: name, path */
  const char *interpreter_rpath, *interpreter_origin;
  kr_list provided;         /* doc_provided */
  int is_nowhere;     /* nothing was named, and no environment was found */
  int is_environment; /* a site-packages was examined */
  const char *owner, *owner_version; /* the package whose files are being inspected; "" otherwise */
  kr_list sites;      /* const char * */
  kr_list left_overs, path_files; /* const char *: what pip left behind, .pth files */
  kr_list owners;     /* doc_owner */
  kr_list compilers;  /* doc_compiler */
  kr_list builds;     /* doc_build */
  kr_list files;      /* doc_file */
  kr_list packages;   /* doc_package */
  kr_list findings;   /* doc_finding */
  kr_list unreadable; /* const char * */
  kr_list notes;      /* const char *: checks that passed */
  kr_list unjudged;   /* const char *: names of requirements that no table knows */
  kr_names said;      /* findings, by their words */
  kr_names loaded, stable, needers; /* names of libraries that torch loads; of torch's stable interface; of libraries
                                       that are needed (loader.c) */
  kr_list needs;      /* doc_need */
  int knows_needs;
  kr_names known_files, package_names; /* paths of files; names of packages: index + 1 of the first */
  doc_log log;
  int n_pins;         /* requirements that were read */
  int n_unjudged;     /* of these, with GPU code that no table tells of */
  int n_unreached;    /* findings hidden because the log's imports do not reach their files */
};
typedef krait_report doc;

#define DOC_TEXT(list, i) (*KR_AT(list, const char *, i))
static inline void doc_add_text(doc *d, kr_list *list, const char *text) {
  *(const char **)kr_list_push(d->arena, list) = text;
}
int doc_has_text(const kr_list *list, const char *text);

/* inspect.c */
int doc_is_torch_library(const char *name); /* libc10*, libtorch.so, libtorch_*; not libtorchaudio.so */
doc_file *doc_inspect_source(doc *d, kr_source *source, const char *path);
doc_file *doc_inspect_path(doc *d, const char *path);
/* Only its containers; fn is called for each image, and with NULL at a container's end; all again if a first walk was
 * wrong. Negative: damage. */
typedef void (*doc_image_fn)(doc *d, krait_scan *scan, const krait_image *image, doc_container *container, void *user);
int32_t doc_walk_source(doc *d, kr_source *source, const char *path, doc_image_fn fn, void *user,
                        const kr_list **containers);
void doc_judge_all(doc *d); /* verdicts, once the target is known: the worst over all devices */
void doc_judge_for(doc *d, int cc);                               /* for this one */
const char *doc_print_set(doc *d, const doc_file *file);          /* "sm_80 90, PTX 9.0 for 90" */
const char *doc_print_container(doc *d, const doc_container *container);

/* compilers.c: the compilers and variants that packages bring */
void doc_read_compiler(doc *d, kr_source *source, const doc_file *about);
void doc_choose_variants(doc *d);      /* before files are judged: which of several libraries would be loaded */
void doc_diagnose_compilers(doc *d);

/* members.c. fn inspects one member into a separate report; several run in parallel. */
typedef struct kr_zip kr_zip;
typedef void (*doc_member_fn)(doc *own, kr_source *source, const char *name, void *user);
void doc_each_member(doc *d, const char *path, kr_zip *zip, doc_member_fn fn, void *user);

/* symbols.c */
void doc_collect_symbols(doc *d, doc_file *file, krait_scan *scan);
void doc_find_missing(doc *d);
int doc_abi_of_name(const char *name);                           /* DOC_ABI_* */
const char *doc_demangle(doc *d, const char *name);               /* the name itself when it cannot be demangled */
const char *doc_function_name(doc *d, const char *name); /* the same without arguments and template parameters */
const char *doc_scope_of(doc *d, const char *symbol); /* the outermost namespace, or the name of a free function; "" */
const char *doc_near_match(doc *d, const char *symbol);           /* what torch exports instead, or "" */
/* The lowest torch that has all of these names that belong to its stable C interface; 0 if there are none. *n_unknown:
 * names that the tables do not know. */
int doc_stable_floor(doc *d, const kr_list *symbols, int *n_unknown);
void doc_torch_range(doc *d, const kr_list *symbols, int *first, int *last); /* 0: open */

/* site.c */
void doc_read_site(doc *d, const char *site);
void doc_find_environment(doc *d);
void doc_read_wheel(doc *d, const char *path);
doc_package *doc_add_package(doc *d, const char *metadata, const char *wheel, const char *direct_url);
void doc_index_package(doc *d, size_t i); /* once its name is known */
void doc_read_folder(doc *d, const char *path);
int doc_is_library_name(const char *path); /* lib.so, lib.so.12 */
const char *doc_normalise(doc *d, const char *name, size_t n);
const doc_package *doc_find_package(const doc *d, const char *name);
const doc_package *doc_twin_package(const doc *d, const doc_package *p); /* the next of the same name; NULL */
const char *doc_read_text(doc *d, const char *path, size_t max_bytes); /* NULL: cannot be read */
const char *doc_header(doc *d, const char *text, const char *key);      /* first "Key: value" line; "" */

/* archives.c: source releases and conda's packages */
int doc_is_archive(const char *path); /* by its name */
void doc_read_archive(doc *d, const char *path);
void doc_diagnose_archives(doc *d);

/* facts.c */
void doc_collect_facts(doc *d);
int doc_machine_of_gpu(doc *d, const char *name); /* the ELF machine that a GPU comes with; 0: any */
const char *doc_path(doc *d, const char *path); /* below --root */
int doc_exists(doc *d, const char *path);       /* the same */

/* loader.c */
const char *doc_system_library(doc *d,
                               const char *name); /* path, by ld.so.cache or in the system's library folders; or "" */
int doc_has_empty_element(const char *paths);
const char *doc_find_library(doc *d, const doc_file *file, const char *name); /* path, or "" */

/* system.c */
void doc_read_system(doc *d, const char *text);
const char *doc_for_system(doc *d, const char *command);
const char *doc_rpm_repository(doc *d); /* the command that adds NVIDIA's repository to a system with dnf */

/* command_check.c */
const char *doc_checked(doc *d, const char *fix); /* as it may be printed; NULL: it must not */
int doc_has_release(const doc *d, const char *package, const char *version);
const char *doc_nearest_release(doc *d, const char *package, const char *version);
int doc_fits_python(const doc *d, const char *package, const char *version);

/* reach.c */
void doc_add_modules(doc *d, const char *line); /* of a log */
void doc_set_unreached_aside(doc *d);

const char *doc_install_library(doc *d, const char *lib, const char *package);

/* logtext.c */
const char *doc_symbol_in(doc *d, const char *text); /* after "undefined symbol: ", or "" */
void doc_read_log(doc *d, const char *text, size_t n);
/* The values that a pattern takes from text; 1 when it matches. */
int doc_match(doc *d, const char *pattern, const char *text, kr_list *keys);
int doc_is_named(const doc_table_line *package, const char *text);     /* by its own name or a module's */
const char *doc_package_in(doc *d,
                           const char *text); /* the package that a text names, by a path or a word from the tables;
                                                 "" */
const char *doc_version_of(const doc *d, const char *package); /* installed, or as the log has it; "" */
const char *doc_shown_name(const doc_file *file); /* a module called _C.so with its folder */

/* diagnose_log.c */
const char *doc_taken(const doc_hit *hit, const char *name); /* what a pattern took as {name}; "" */
/* diagnose_words.c: what installs a library, and the path to it where the program needs one. */
const char *doc_library_command(doc *d, const char *lib, const char *package);
/* The values of a rule's sentences, as pairs of name and value. 0: not this rule's reason. */
int doc_fill_words(doc *d, const doc_hit *hit, kr_list *keys, const char **package);

/* diagnose_installs.c: the same, of what pip, conda and packages say about their installation. */
int doc_fill_install(doc *d, const doc_hit *hit, kr_list *keys, const char **package);
const char *doc_edition_install(doc *d, const char *package, int wanted); /* its build for the CUDA that is here; "" */

/* requirements.c */
typedef struct doc_requirement { /* of METADATA: "torch (==2.4.1)" or 'triton==3.3.1; platform_system == "Linux"' */
  const char *name, *spec; /* spec: "==2.4.1", ">=2.0,<3" */
} doc_requirement;
int doc_read_requirement(doc *d, const char *line, doc_requirement *out); /* 0: it does not apply here */
int doc_allows(doc *d, const char *spec, const char *version);
void doc_diagnose_requirements(doc *d);

/* findings.c: keys is a list of name, value pairs for the {names} in the rule's texts. NULL when the tables lack the
 * rule. */
doc_finding *doc_report(doc *d, const char *id, const doc_file *file, const char *package, const char *const *keys);
void doc_evidence(doc *d, doc_finding *finding, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* commands.c */
int doc_comes_with_torch(const char *package); /* only its publisher builds it: another torch needs another release */
const char *doc_build_command(doc *d, const char *package);
const char *doc_command(doc *d, const char *key, const char *package, const char *version,
                        const char *nvcc); /* a command by its name in a rule; "" */
void doc_add_build_fixes(doc *d, kr_list *fixes, const char *package, const char *version);
const char *doc_pair_command(doc *d, const char *package,
                             const doc_table_line *pair); /* both of a pair, or a package for its torch, pinned */
const char *doc_torch_index(const doc *d, int torch, int cc, const char *tag);
const doc_table_line *doc_torch_row(doc *d, int torch);
int doc_companion_column(const char *package); /* of [torch], for a package of which each release needs one torch; 0 */
const doc_table_line *doc_package_row(const doc *d, const char *package);
int doc_covers(const char *targets, int cc);
const char *doc_torch_install(doc *d);
const char *doc_no_build(doc *d, const char *package);   /* that no build of it can serve the device; "" when one can */
const char *doc_own_dropin(doc *d, const char *package); /* that krait replaces it; "" when not */
int doc_cuda_of(const doc *d, const char *package); /* the CUDA major of the release in the text, or of torch; 0 */
const char *doc_index_for(doc *d, int cc); /* cu128, cu130, cu126 */
void doc_keep_causes(doc *d); /* hides findings that are consequences of others */
void doc_rank(doc *d);
int doc_main_cc(const doc *d); /* the device being judged, else the first; 0 unknown */

/* The diagnoses, by subject. */
void doc_diagnose_images(doc *d);
void doc_diagnose_named_torch(doc *d); /* after the log, whose facts are known then */
const doc_table_line *doc_optional_row(const doc *d,
                               const doc_file *file); /* the tables' entry for a part that not every GPU needs, or
                                                         NULL */
void doc_diagnose_symbols(doc *d);
void doc_diagnose_packages(doc *d);
void doc_diagnose_libraries(doc *d);
const char *doc_major_of(doc *d, const doc_table_line *soname); /* " (CUDA 12)"; "" when its name does not tell */
void doc_diagnose_driver(doc *d);
void doc_diagnose_log(doc *d);
void doc_read_pins(doc *d, const char *path);

#endif
