/* The serve sub-command. */
#ifndef SERVER_SERVE_H
#define SERVER_SERVE_H

/* argv[0] is skipped ("serve"). Returns the exit code of the process. */
int srv_serve_main(int argc, char **argv);

#endif
