/* doc.h: one run of the doctor: facts about the target, evidence, log and findings, of the headers below; the
 * interfaces between its parts. */
#ifndef KR_DOC_H
#define KR_DOC_H

#include <krait/doctor.h>

#include "arena.h"
#include "doc_evidence.h"
#include "doc_findings.h"
#include "doc_log.h"
#include "doc_lookups.h"
#include "doc_target.h"
#include "scan.h"
#include "tables.h"

/* The diagnoses take it as const: facts and evidence stand, and findings are added. What would be reported for other
 * facts is asked with a copy. */
struct krait_report {
  kr_arena *arena;
  krait_tables *tables;
  krait_doctor_options options;
  const char *root;
  doc_target target;
  doc_evidence evidence;
  doc_log log;
  doc_findings *found;
  doc_lookups *lookups;
};
typedef krait_report doc;

#define DOC_TEXT(list, i) (*KR_AT(list, const char *, i))
static inline void doc_add_text(const doc *d, kr_list *list, const char *text) {
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
const char *doc_print_set(const doc *d, const doc_file *file);          /* "sm_80 90, PTX 9.0 for 90" */
const char *doc_print_container(const doc *d, const doc_container *container);

/* compilers.c: the compilers and variants that packages bring */
void doc_read_compiler(doc *d, kr_source *source, const doc_file *about);
void doc_choose_variants(doc *d);      /* before files are judged: which of several libraries would be loaded */
void doc_diagnose_compilers(const doc *d);

doc_findings *doc_no_findings(kr_arena *arena); /* doctor.c; NULL: no memory */

/* members.c. fn inspects one member into a separate report; several run in parallel. */
typedef struct kr_zip kr_zip;
typedef void (*doc_member_fn)(doc *own, kr_source *source, const char *name, void *user);
void doc_each_member(doc *d, const char *path, kr_zip *zip, doc_member_fn fn, void *user);

/* symbols.c */
void doc_collect_symbols(const doc *d, doc_file *file, krait_scan *scan);
void doc_find_missing(doc *d);
int doc_abi_of_name(const char *name);                           /* DOC_ABI_* */
const char *doc_demangle(const doc *d, const char *name);        /* the name itself when it cannot be demangled */
const char *doc_function_name(const doc *d, const char *name); /* the same without arguments and template parameters */
const char *doc_scope_of(const doc *d,
                         const char *symbol); /* the outermost namespace, or the name of a free function; "" */
const char *doc_near_match(const doc *d, const char *symbol);           /* what torch exports instead, or "" */
/* The lowest torch that has all of these names that belong to its stable C interface; 0 if there are none. *n_unknown:
 * names that the tables do not know. */
int doc_stable_floor(const doc *d, const kr_list *symbols, int *n_unknown);
void doc_torch_range(const doc *d, const kr_list *symbols, int *first, int *last); /* 0: open */

/* site.c */
void doc_read_site(doc *d, const char *site);
void doc_find_environment(doc *d);
void doc_read_wheel(doc *d, const char *path);
doc_package *doc_add_package(doc *d, const char *metadata, const char *wheel, const char *direct_url);
void doc_index_package(doc *d, size_t i); /* once its name is known */
void doc_read_folder(doc *d, const char *path);
int doc_is_library_name(const char *path); /* lib.so, lib.so.12 */
const char *doc_normalise(const doc *d, const char *name, size_t n);
const doc_package *doc_find_package(const doc *d, const char *name);
const doc_package *doc_twin_package(const doc *d, const doc_package *p); /* the next of the same name; NULL */
const char *doc_read_text(const doc *d, const char *path, size_t max_bytes); /* NULL: cannot be read */
const char *doc_header(const doc *d, const char *text, const char *key);      /* first "Key: value" line; "" */

/* archives.c: source releases and conda's packages */
int doc_is_archive(const char *path); /* by its name */
void doc_read_archive(doc *d, const char *path);
void doc_diagnose_archives(const doc *d);

/* facts.c */
void doc_collect_facts(doc *d);
int doc_machine_of_gpu(const doc *d, const char *name); /* the ELF machine that a GPU comes with; 0: any */
const char *doc_path(const doc *d, const char *path); /* below --root */
int doc_exists(const doc *d, const char *path);       /* the same */

/* loader.c */
const char *doc_system_library(const doc *d,
                               const char *name); /* path, by ld.so.cache or in the system's library folders; or "" */
int doc_has_empty_element(const char *paths);
const char *doc_find_library(const doc *d, const doc_file *file, const char *name); /* path, or "" */

/* system.c */
void doc_read_system(doc *d, const char *text);
const char *doc_for_system(const doc *d, const char *command);
const char *doc_rpm_repository(const doc *d); /* the command that adds NVIDIA's repository to a system with dnf */

/* reach.c */
void doc_add_modules(doc *d, const char *line); /* of a log */
void doc_set_unreached_aside(const doc *d);

/* logtext.c */
const char *doc_symbol_in(const doc *d, const char *text); /* after "undefined symbol: ", or "" */
void doc_read_log(doc *d, const char *text, size_t n);
/* The values that a pattern takes from text; 1 when it matches. */
int doc_match(const doc *d, const char *pattern, const char *text, kr_list *keys);
int doc_is_named(const doc_table_line *package, const char *text);     /* by its own name or a module's */
const char *doc_package_in(const doc *d,
                           const char *text); /* the package that a text names, by a path or a word from the tables;
                                                 "" */
const char *doc_version_of(const doc *d, const char *package); /* installed, or as the log has it; "" */
const char *doc_shown_name(const doc_file *file); /* a module called _C.so with its folder */

/* diagnose_log.c */
const char *doc_install_library(const doc *d, const char *lib, const char *package);
const char *doc_taken(const doc_hit *hit, const char *name); /* what a pattern took as {name}; "" */
/* diagnose_words.c: what installs a library, and the path to it where the program needs one. */
const char *doc_library_command(const doc *d, const char *lib, const char *package);
/* The values of a rule's sentences, as pairs of name and value. 0: not this rule's reason. */
int doc_fill_words(const doc *d, const doc_hit *hit, kr_list *keys, const char **package);

/* diagnose_installs.c: the same, of what pip, conda and packages say about their installation. */
int doc_fill_install(const doc *d, const doc_hit *hit, kr_list *keys, const char **package);
const char *doc_edition_install(const doc *d, const char *package,
                                int wanted); /* its build for the CUDA that is here; "" */

/* findings.c: keys is a list of name, value pairs for the {names} in the rule's texts. NULL when the tables lack the
 * rule. */
doc_finding *doc_report(const doc *d, const char *id, const doc_file *file, const char *package,
                        const char *const *keys);
void doc_add_evidence(const doc *d, doc_finding *finding, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

void doc_keep_causes(const doc *d); /* hides findings that are consequences of others */
void doc_rank(const doc *d);
int doc_main_cc(const doc *d); /* the device being judged, else the first; 0 unknown */

/* The diagnoses, by subject. */
void doc_diagnose_images(doc *d);
void doc_diagnose_named_torch(const doc *d); /* after the log, whose facts are known then */
const doc_table_line *doc_optional_row(const doc *d,
                               const doc_file *file); /* the tables' entry for a part that not every GPU needs, or
                                                         NULL */
void doc_diagnose_symbols(const doc *d);
void doc_diagnose_packages(const doc *d);
void doc_diagnose_libraries(const doc *d);
const char *doc_major_of(const doc *d, const doc_table_line *soname); /* " (CUDA 12)"; "" when its name does not tell */
void doc_diagnose_driver(const doc *d);
void doc_diagnose_log(doc *d);

#endif
