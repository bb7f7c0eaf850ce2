/* doc_commands.h: what to install, as commands: what the tables know of releases and builds (commands.c), whether a
 * command may be printed (command_check.c), what packages require (requirements.c), files of requirements (pins.c).
 * fixplan.c puts the commands of all findings in order. */
#ifndef KR_DOC_COMMANDS_H
#define KR_DOC_COMMANDS_H

#include "doc.h"

/* Of METADATA: "torch (==2.4.1)" or 'triton==3.3.1; platform_system == "Linux"'. */
typedef struct doc_requirement {
  const char *name, *spec; /* spec: "==2.4.1", ">=2.0,<3" */
} doc_requirement;
int doc_read_requirement(const doc *d, const char *line, doc_requirement *out); /* 0: it does not apply here */
int doc_allows(const doc *d, const char *spec, const char *version);
void doc_diagnose_requirements(const doc *d);
void doc_read_pins(doc *d, const char *path);

/* command_check.c */
const char *doc_checked(const doc *d, const char *fix); /* as it may be printed; NULL: it must not */
int doc_has_release(const doc *d, const char *package, const char *version);
const char *doc_nearest_release(const doc *d, const char *package, const char *version);
int doc_fits_python(const doc *d, const char *package, const char *version);

/* commands.c */
int doc_comes_with_torch(const char *package); /* only its publisher builds it: another torch needs another release */
const char *doc_build_command(const doc *d, const char *package);
const char *doc_command(const doc *d, const char *key, const char *package, const char *version,
                        const char *nvcc); /* a command by its name in a rule; "" */
void doc_add_build_fixes(const doc *d, kr_list *fixes, const char *package, const char *version);
const char *doc_pair_command(const doc *d, const char *package,
                             const doc_table_line *pair); /* both of a pair, or a package for its torch, pinned */
const char *doc_torch_index(const doc *d, int torch, int cc, const char *tag);
const doc_table_line *doc_torch_row(const doc *d, int torch);
int doc_companion_column(const char *package); /* of [torch], for a package of which each release needs one torch; 0 */
const doc_table_line *doc_package_row(const doc *d, const char *package);
int doc_covers(const char *targets, int cc);
const char *doc_torch_install(const doc *d);
const char *doc_no_build(const doc *d,
                         const char *package); /* that no build of it can serve the device; "" when one can */
const char *doc_own_dropin(const doc *d, const char *package); /* that krait replaces it; "" when not */
int doc_cuda_of(const doc *d, const char *package); /* the CUDA major of the release in the text, or of torch; 0 */
const char *doc_index_for(const doc *d, int cc); /* cu128, cu130, cu126 */

#endif
