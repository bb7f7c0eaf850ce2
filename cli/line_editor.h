/* line_editor.h: lines that a user types: with editing and a history on a terminal, if libedit is there. */
#ifndef CLI_LINE_EDITOR_H
#define CLI_LINE_EDITOR_H

/* Shows the prompt on a terminal and reads a line, without its end, to be freed; NULL: there are no more. */
char *cli_line_read(const char *prompt);

#endif
